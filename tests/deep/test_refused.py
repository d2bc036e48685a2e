"""What evaluation, adaptation and training refuse, in words."""
# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.deep import (
    MAML,
    SGD,
    Adam,
    Arrays,
    MetaTrainer,
    PerCoordinate,
    Pool,
    adapt,
    evaluate,
    gradient_norm,
    squared_error,
)
from fmrl.errors import FMRLError


def make_pool(seed=0):
    return Pool.of(np.random.default_rng(seed).random((60, 4)), np.repeat(np.arange(6), 10))


def made(ways, pool=None, **options):
    return (pool or POOL).tasks(ways, 2, batch=3, steps=1, **options)


def trainer(**options):
    return MetaTrainer(NET, SGD(0.1), **options)


def judged(tasks, learner=None, **options):
    return evaluate(learner or NET, tasks, **({"protocol": "inductive"} | options))


POOL, NET = make_pool(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
TEST, FOUR, EYE, Y = made(3, queries=1), made(4, queries=1), np.eye(4), [0, 1, 2, 0]
OTHER = made(3, make_pool(1), queries=1)
RANGE = "labels go from 0 to 3"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: adapt(NET, EYE, [0, 1, 2, 3]), f"{RANGE}, but the network has 3 outputs"),
        (lambda: adapt(NET, EYE, [0, 1, -1, 2]), "labels go from -1 to 2"),
        (lambda: adapt(NET, EYE, [0.0, 1.0, 2.0, 0.0]), "squared_error"),
        (lambda: adapt(NET, EYE, list("abca")), "task 0: y is not an array of numbers"),
        (lambda: adapt(NET, np.zeros((0, 4)), []), "task 0: there are no samples"),
        (lambda: adapt(NET, EYE, [0, 1]), "4 inputs but 2 targets"),
        (lambda: adapt(NET, np.eye(5), [*Y, 1]), r"Sequential does not take inputs \(3, 5\)"),
        (lambda: adapt(NET, EYE, EYE, loss=squared_error), r"outputs \(3,\) and targets \(4,\)"),
        (lambda: adapt(NET, EYE, Y, loss=F.cross_entropy), "the loss"),
        (lambda: adapt(NET, EYE, Y, steps=-1), "steps=-1 must be a whole number, at least 0"),
        (lambda: adapt(NET, EYE, Y, batch=0), "batch=0"),
        (
            lambda: adapt(NET, EYE, Y, within=torch.optim.SGD),
            "within=SGD is not an optimiser of fmrl",
        ),
        (lambda: adapt(NET, EYE, Y, run=1), "a module is one run"),
        (lambda: adapt(trainer(), EYE, Y, run=5), "choose from 0 to 0"),
        (lambda: adapt(trainer(), EYE, Y, loss=squared_error), "its own loss"),
        (lambda: adapt(nn.ReLU(), EYE, Y), "no parameters"),
        (lambda: adapt("net", EYE, Y), "str is neither"),
        (lambda: MetaTrainer(NET, SGD(), similarity=PerCoordinate), r"give PerCoordinate\(…\)"),
        (lambda: MAML(SGD(0.1), Adam()), "is not a number; give its step"),
        (lambda: judged(TEST, protocol="all"), "protocol='all' is unknown"),
        (lambda: judged(TEST, what="f1"), "what='f1' is unknown"),
        (lambda: judged(TEST, count=0), "count=0"),
        (lambda: judged(TEST, steps=-1), "steps=-1"),
        (lambda: judged(Arrays([(EYE, Y)], batch=2, steps=1)), "no queries"),
        (lambda: judged([(EYE, Y)]), "tuple is not a sequence of tasks"),
        (lambda: judged([TEST, TEST]), "2 sequences of tasks for 1 runs"),
        (lambda: judged(TEST, trainer(), runs=[]), "no run"),
        (lambda: judged(FOUR), RANGE),
        (lambda: judged([TEST, OTHER], trainer(runs=2)), "one table"),
        (lambda: trainer().fit(made(4), 1), RANGE),
        (lambda: trainer().fit(made(3), 1).fit(made(4), 2), RANGE),
        (lambda: trainer().fit([(EYE, Y)], 1), "drawn by number"),
        (lambda: gradient_norm(NET, TEST, 0), "count=0"),
        (lambda: gradient_norm(NET, TEST, loss=squared_error), "outputs"),
    ],
)
def test_what_is_refused(call, says):
    with pytest.raises(FMRLError, match=says):
        call()


def test_a_checkpoint_that_lacks_a_part_is_refused_and_says_so(tmp_path):
    """Forged headers, each with a true checksum."""
    import json

    import numpy as np
    from safetensors import safe_open
    from safetensors.torch import save_file

    from fmrl.deep import SGD, FollowLeader, load, save
    from fmrl.deep.checkpoint import iteration

    def trainer():
        torch.manual_seed(0)
        return MetaTrainer(nn.Linear(2, 1), SGD(0.1), meta=FollowLeader())

    path = save(trainer(), tmp_path / "whole")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["fmrl"])
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    forged = [{k: v for k, v in about.items() if k != name} for name in about]
    older = {k: v for k, v in about.items() if k != "seal"}  # what was written without one is read
    forged = [held for held in forged if held != older] + [
        about | {"iteration": 7},  # one letter of the header
        *(older | {name: 2**70} for name in ("iteration", "taken", "memory")),
        *(older | {"variety": value} for value in (5, [1])),
    ]
    forged += [about | {"iteration": "x"}, about | {"rounds": None}, [], "[" * 9999 + "]" * 9999]
    for held in forged:
        text = held if isinstance(held, str) else json.dumps(held)
        save_file(tensors, tmp_path / "forged", metadata={"fmrl": text})
        with pytest.raises(FMRLError):
            load(trainer(), tmp_path / "forged")
        assert iteration(tmp_path / "forged") in (0, about["iteration"])
    assert np.isfinite(load(trainer(), path).phi.numpy()).all()
    with pytest.raises(FMRLError, match="goes into a trainer"):
        load(path)
    save_file(tensors, tmp_path / "older", metadata={"fmrl": json.dumps(older)})
    assert torch.equal(load(trainer(), tmp_path / "older").phi, trainer().phi)

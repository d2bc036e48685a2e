"""What evaluation, adaptation and training refuse, in words."""
# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.deep import SGD, Arrays, MetaTrainer, Pool, adapt, evaluate, gradient_norm, squared_error
from fmrl.errors import FMRLError


def make_pool(seed=0):
    return Pool.of(np.random.default_rng(seed).random((60, 4)), np.repeat(np.arange(6), 10))


POOL, NET = make_pool(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
TEST = POOL.tasks(3, 2, batch=3, steps=1, queries=1)
EYE = np.eye(4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: adapt(NET, EYE, [0, 1, 2, 3]), "labels go from 0 to 3, but the network has 3 outputs"),
        (lambda: adapt(NET, EYE, [0, 1, -1, 2]), "labels go from -1 to 2"),
        (lambda: adapt(NET, EYE, [0.0, 1.0, 2.0, 0.0]), "squared_error"),
        (lambda: adapt(NET, EYE, list("abca")), "task 0: y is no array of numbers"),
        (lambda: adapt(NET, np.zeros((0, 4)), []), "task 0: there are no samples"),
        (lambda: adapt(NET, EYE, [0, 1]), "4 inputs but 2 targets"),
        (lambda: adapt(NET, np.eye(5), [0, 1, 2, 0, 1]), r"Sequential does not take inputs \(3, 5\)"),
        (lambda: adapt(NET, EYE, EYE, loss=squared_error), r"outputs \(3,\) and targets \(4,\)"),
        (lambda: adapt(NET, EYE, [0, 1, 2, 0], loss=F.cross_entropy), "the loss"),
        (lambda: adapt(NET, EYE, [0, 1, 2, 0], steps=-1), "steps=-1 must be a whole number, at least 0"),
        (lambda: adapt(NET, EYE, [0, 1, 2, 0], batch=0), "batch=0"),
        (lambda: adapt(NET, EYE, [0, 1, 2, 0], within=torch.optim.SGD), "within=SGD is no optimiser of fmrl.deep"),
        (lambda: adapt(NET, EYE, [0, 1, 2, 0], run=1), "a module is one run"),
        (lambda: adapt(MetaTrainer(NET, SGD(0.1)), EYE, [0, 1, 2, 0], run=5), "choose from 0 to 0"),
        (lambda: adapt(MetaTrainer(NET, SGD(0.1)), EYE, [0, 1, 2, 0], loss=squared_error), "its own loss"),
        (lambda: adapt(nn.ReLU(), EYE, [0, 1, 2, 0]), "no parameters"),
        (lambda: adapt("net", EYE, [0, 1, 2, 0]), "str is neither"),
        (lambda: evaluate(NET, TEST, protocol="both"), "protocol='both' is unknown"),
        (lambda: evaluate(NET, TEST, protocol="inductive", what="f1"), "what='f1' is unknown"),
        (lambda: evaluate(NET, TEST, protocol="inductive", count=0), "count=0"),
        (lambda: evaluate(NET, TEST, steps=-1, protocol="inductive"), "steps=-1"),
        (lambda: evaluate(NET, Arrays([(EYE, [0, 1, 2, 0])], batch=2, steps=1), protocol="inductive"), "no queries"),
        (lambda: evaluate(NET, [(EYE, [0, 1, 2, 0])], protocol="inductive"), "tuple is no sequence of tasks"),
        (lambda: evaluate(NET, [TEST, TEST], protocol="inductive"), "2 sequences of tasks for 1 runs"),
        (lambda: evaluate(MetaTrainer(NET, SGD(0.1)), TEST, protocol="inductive", runs=[]), "no run"),
        (lambda: evaluate(NET, POOL.tasks(4, 2, batch=3, steps=1, queries=1), protocol="inductive"), "labels go from 0 to 3"),
        (
            lambda: evaluate(
                MetaTrainer(NET, SGD(0.1), runs=2), [TEST, make_pool(1).tasks(3, 2, batch=3, steps=1, queries=1)], protocol="inductive"
            ),
            "one table",
        ),
        (lambda: MetaTrainer(NET, SGD(0.1)).fit(POOL.tasks(4, 2, batch=3, steps=1), 1), "labels go from 0 to 3"),
        (
            lambda: MetaTrainer(NET, SGD(0.1)).fit(POOL.tasks(3, 2, batch=3, steps=1), 1).fit(POOL.tasks(4, 2, batch=3, steps=1), 2),
            "labels go from 0 to 3",
        ),
        (lambda: MetaTrainer(NET, SGD(0.1)).fit([(EYE, [0, 1, 2, 0])], 1), "drawn by number"),
        (lambda: gradient_norm(NET, TEST, 0), "count=0"),
        (lambda: gradient_norm(NET, TEST, loss=squared_error), "outputs"),
    ],
)  # fmt: skip
def test_what_is_refused(call, says):
    with pytest.raises(FMRLError, match=says):
        call()

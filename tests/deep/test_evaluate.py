"""Evaluation and adaptation against loops over tasks."""
# ruff: noqa: E402

import copy

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.deep import (
    SGD,
    Adam,
    Arrays,
    Evaluation,
    Interpolate,
    Layout,
    MetaTrainer,
    Pool,
    adapt,
    evaluate,
    gradient_norm,
    omniglot_net,
    squared_error,
)
from fmrl.deep import adaptation as adapting
from fmrl.errors import FMRLError

torch.set_num_threads(1)
EVALUATING = __import__("importlib").import_module(
    "fmrl.deep.evaluate"
)  # the package's name is the function


def make_pool(seed=0):
    rng = np.random.default_rng(seed)
    return Pool.of(rng.random((60, 4)), np.repeat(np.arange(6), 10))


def make_net(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8, track_running_stats=False),
        nn.Tanh(),
        nn.Linear(8, outputs),
    ).double()


def ragged(seed=0, outputs=None, classes=3):
    """Tasks of different sizes, with different numbers of queries."""
    rng, tasks = np.random.default_rng(seed), []
    for n, q in ((5, 3), (8, 2), (5, 3), (7, 4)):
        size = (n + q,) if outputs is None else (n + q, outputs)
        X, y = (
            rng.random((n + q, 4)),
            rng.integers(0, classes, n + q) if outputs == 0 else rng.normal(size=size),
        )
        tasks.append((X[:n], y[:n], X[n:], y[n:]))
    return tasks


def by_loop(net, tasks, steps, count, protocol, step, loss, score):
    """What people write: one task at a time, torch.optim, the protocol spelled out."""
    found = []
    index, label, groups = tasks.with_steps(steps).queried(0, count)
    where = {int(a): (g, i) for g in groups for i, a in enumerate(g.at)}
    for k in range(count):
        module = copy.deepcopy(net)
        optimiser = torch.optim.SGD(module.parameters(), lr=step)
        for s in range(steps):
            optimiser.zero_grad()
            loss(module(tasks.inputs[index[k, s]]), label[k, s]).backward()
            optimiser.step()
        g, i = where[k]
        support, query = tasks.inputs[g.support[i]], tasks.inputs[g.query[i]]
        alone = torch.stack([module(torch.cat([support, q[None]]))[-1] for q in query])
        found.append(
            score(module(query) if protocol == "transductive" else alone, g.targets[i]).item()
        )
    return found


@pytest.mark.parametrize("protocol", ["transductive", "inductive"])
def test_own_tasks_with_queries(protocol):
    tasks, net = Arrays(ragged(outputs=0), batch=3, steps=1), make_net()
    found = evaluate(net, tasks, 6, protocol=protocol, count=4, within=SGD(0.3))
    loop = by_loop(
        net,
        tasks,
        6,
        4,
        protocol,
        0.3,
        F.cross_entropy,
        lambda out, y: (out.argmax(1) == y).double().mean(),
    )
    assert found.what == "accuracy" and found.tasks.tolist() == pytest.approx(loop, abs=1e-12)
    assert len(set(loop)) > 2
    losses = evaluate(net, tasks, 6, protocol=protocol, count=4, within=SGD(0.3), what="loss")
    expected = by_loop(net, tasks, 6, 4, protocol, 0.3, F.cross_entropy, F.cross_entropy)
    assert losses.tasks.tolist() == pytest.approx(
        expected, abs=1e-12
    ) and losses.loss == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("outputs", [None, 1, 2])
def test_regression_is_judged_by_its_loss(outputs):
    tasks, net = Arrays(ragged(outputs=outputs), batch=3, steps=2), make_net(outputs or 1)

    def loss(out, y):
        return F.mse_loss(out if y.ndim == 2 else out[:, 0], y)

    found = evaluate(
        net, tasks, 6, protocol="inductive", count=4, within=SGD(0.1), loss=squared_error
    )
    assert found.what == "loss"
    assert found.tasks.tolist() == pytest.approx(
        by_loop(net, tasks, 6, 4, "inductive", 0.1, loss, loss), abs=1e-12
    )
    with pytest.raises(FMRLError, match="measured the loss"):
        _ = found.accuracy
    with pytest.raises(FMRLError, match="accuracy needs"):
        evaluate(
            net,
            tasks,
            6,
            protocol="inductive",
            within=SGD(0.1),
            loss=squared_error,
            what="accuracy",
        )
    trainer = MetaTrainer(
        net, SGD(0.1), loss=squared_error, meta_batch=2, meta=Interpolate(1.0, 1.0, 1)
    ).fit(tasks, 3)
    assert evaluate(trainer, tasks, 6, protocol="inductive", count=4) != found
    X, y, _, _ = ragged(outputs=outputs)[1]
    one = adapt(net, X, y, 1, within=SGD(0.1), loss=squared_error)
    plain = copy.deepcopy(net)
    loss(plain(torch.as_tensor(X)), torch.as_tensor(y)).backward()
    expected = Layout.of(net).flat(net) - 0.1 * torch.cat(
        [p.grad.flatten() for p in plain.parameters()]
    )
    assert (Layout.of(net).flat(one) - expected).abs().max() < 1e-12


def test_every_run_has_its_own_step():
    test, net = make_pool().tasks(3, 2, batch=3, steps=1, queries=2), make_net()
    trainer = MetaTrainer([net, copy.deepcopy(net)], [SGD(0.01), SGD(1.0)])
    for run, (found, step) in enumerate(
        zip(
            evaluate(trainer, test, 4, protocol="inductive", count=5, what="loss"),
            (0.01, 1.0),
            strict=True,
        )
    ):
        alone = evaluate(net, test, 4, protocol="inductive", count=5, what="loss", within=SGD(step))
        assert (found.tasks - alone.tasks).abs().max() < 1e-12
        assert evaluate(
            trainer, test, 4, protocol="inductive", count=5, what="loss", runs=[run]
        ) == [found]


def test_tasks_beyond_the_stack_are_others(monkeypatch):
    test, net = make_pool().tasks(3, 2, batch=3, steps=1, queries=2), make_net()
    trainer = MetaTrainer(net, SGD(0.1), runs=2)
    whole = evaluate(trainer, test, 3, protocol="transductive", count=7, what="loss")
    monkeypatch.setattr(EVALUATING, "STACK", 4)
    pieces = evaluate(trainer, test, 3, protocol="transductive", count=7, what="loss")
    later = evaluate(
        net, test, 3, protocol="transductive", count=3, start=4, what="loss", within=SGD(0.1)
    )
    assert len(set(whole[0].tasks.tolist())) == 7
    for a, b in zip(whole, pieces, strict=True):
        assert (a.tasks - b.tasks).abs().max() < 1e-12
    assert (whole[0].tasks[4:] - later.tasks).abs().max() < 1e-12


def test_few_samples_at_a_time_are_the_same(monkeypatch):
    tasks, net = Arrays(ragged(outputs=0), batch=3, steps=1), make_net()
    whole = evaluate(net, tasks, 2, protocol="inductive", count=9, within=SGD(0.3), what="loss")
    monkeypatch.setattr(EVALUATING, "PIXELS", 1)
    assert (
        evaluate(net, tasks, 2, protocol="inductive", count=9, within=SGD(0.3), what="loss").tasks
        - whole.tasks
    ).abs().max() < 1e-12


def test_less_memory_means_smaller_pieces(monkeypatch):
    test, tried = make_pool().tasks(3, 2, batch=3, steps=1, queries=2), []
    net = nn.Linear(4, 3).double()  # which a CPU too runs in a stack
    plenty = evaluate(net, test, 2, protocol="transductive", count=4, within=SGD(0.1), what="loss")

    def scarce(body, device):
        tried.append(body.__self__.piece)
        if tried[-1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return body

    monkeypatch.setattr(EVALUATING, "capture", scarce)
    found = evaluate(net, test, 2, protocol="transductive", count=4, within=SGD(0.1), what="loss")
    assert tried == [4, 2, 1] and (found.tasks - plenty.tasks).abs().max() < 1e-12


def test_an_evaluation():
    scores = torch.tensor([0.2, 0.4, 0.9, 0.5], dtype=torch.float64)
    found = Evaluation(scores, "inductive", 5)
    assert found.accuracy == pytest.approx(0.5)
    half = stats.t.ppf(0.975, 3) * np.std(scores.numpy(), ddof=1) / 2
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)
    assert found == Evaluation(scores.clone(), "inductive", 5) and found != Evaluation(
        scores, "transductive", 5
    )
    assert found != Evaluation(scores, "inductive", 5, "loss") and found != 3
    one = Evaluation(scores[:1], "inductive", 5)
    assert "nan" not in repr(one) and "1 task," in repr(one) and np.isnan(one.interval).all()


def test_zero_steps_judge_phi():
    tasks, net = Arrays(ragged(outputs=0), batch=3, steps=1), make_net()
    found = evaluate(net, tasks, 0, protocol="transductive", count=4, what="loss")
    expected = [
        F.cross_entropy(net(torch.as_tensor(Xq)), torch.as_tensor(yq)).item()
        for _, _, Xq, yq in ragged(outputs=0)
    ]
    assert found.tasks.tolist() == pytest.approx(expected)
    X, y, _, _ = ragged(outputs=0)[0]
    assert torch.equal(Layout.of(net).flat(adapt(net, X, y, 0)), Layout.of(net).flat(net))


def test_a_double_network_takes_a_double_step():
    net = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    X, y = torch.tensor([[1.0, 0.0]]), [1.0]
    adapted = adapt(net, X, y, 1, within=SGD(0.1), loss=squared_error)
    assert adapted.weight.tolist() == [[0.2, 0.0]]  # 0.1 in single precision would be 1.5e-9 off


def test_adaptation_takes_the_trainers_path_and_precision(monkeypatch):
    made = []

    class Spy(adapting.InnerLoop):
        def __init__(self, *args, **options):
            made.append((options.get("path"), options.get("precision")))
            super().__init__(*args, **options)

    monkeypatch.setattr(adapting, "InnerLoop", Spy)
    trainer = MetaTrainer(make_net(), SGD(0.1), path="functional", precision="ieee")
    adapt(trainer, np.eye(4), [0, 1, 2, 0], 1)
    evaluate(
        trainer,
        make_pool().tasks(3, 2, batch=3, steps=1, queries=2),
        1,
        protocol="inductive",
        count=1,
    )
    assert made == [("functional", "ieee")] * 2


def test_a_trainer_keeps_few_loops():
    trainer, test = (
        MetaTrainer(make_net(), SGD(0.1)),
        make_pool().tasks(3, 2, batch=3, steps=1, queries=1),
    )
    first = evaluate(trainer, test, 1, protocol="transductive", count=1)
    for count in range(1, 3 * EVALUATING.KEPT):
        evaluate(trainer, test, 1, protocol="transductive", count=count)
    assert len(trainer._evaluations) == EVALUATING.KEPT
    assert evaluate(trainer, test, 1, protocol="transductive", count=1) == first


def test_images_get_their_channel_axis():
    rng = np.random.default_rng(0)
    X, y, net = (
        rng.random((6, 14, 14)),
        [0, 1, 2] * 2,
        omniglot_net(3, filters=4, side=14, seed=0).double(),
    )
    flat = [Layout.of(net).flat(adapt(net, images, y, 2)) for images in (X, X[:, None])]
    assert torch.equal(*flat)


def test_whole_numbers_reach_an_embedding():
    rng, words = (
        np.random.default_rng(0),
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)).double(),
    )
    parts = [
        [
            rng.integers(0, 5, (n, 2)) if i % 2 == 0 else rng.integers(0, 2, n)
            for i, n in enumerate((6, 6, 4, 4))
        ]
        for _ in range(3)
    ]
    tasks = Arrays([tuple(p) for p in parts], batch=3, steps=1)
    for protocol in ("transductive", "inductive"):
        found = evaluate(words, tasks, 3, protocol=protocol, count=3, within=SGD(0.3), what="loss")
        expected = by_loop(words, tasks, 3, 3, protocol, 0.3, F.cross_entropy, F.cross_entropy)
        assert found.tasks.tolist() == pytest.approx(expected, abs=1e-12)
    words[0].weight.requires_grad_(False)
    words[2].weight.requires_grad_(False)
    index, label = tasks.draw(0, 1)
    F.cross_entropy(words(tasks.inputs[index[0, 0]]), label[0, 0]).backward()
    assert gradient_norm(words, tasks, 1) == pytest.approx(words[2].bias.grad.norm().item())


def test_a_trainers_carried_moments_are_used():
    """A test task goes on from the trainer's second moments and step count, as one
    torch.optim.Adam would.
    """
    trainer = MetaTrainer(make_net(), Adam(1e-2, eps=1e-3), meta_batch=2).fit(
        make_pool().tasks(3, 4, batch=3, steps=2), 3
    )
    X, y, module = torch.eye(4, dtype=torch.float64), torch.tensor([0, 1, 2, 0]), trainer.trained()
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2, betas=(0.0, 0.999), eps=1e-3)
    # eps: the bias before batch norm has a gradient of rounding errors, which a small one would
    # make large
    for p, second in zip(
        module.parameters(), Layout.of(module).split(trainer.second[0]).values(), strict=True
    ):
        step = torch.tensor(3.0 * 2 * 2)
        optimiser.state[p] = {
            "step": step,
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": second.clone(),
        }
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(module(X), y).backward()
        optimiser.step()
    flat = Layout.of(module).flat
    assert (flat(adapt(trainer, X, y, 2)) - flat(module)).abs().max() < 1e-12
    assert (
        flat(adapt(trainer.trained(), X, y, 2, within=Adam(1e-2, eps=1e-3))) - flat(module)
    ).abs().max() > 1e-4


def test_test_classes_that_were_trained_on_are_named(recwarn):
    """In one table by their place, in two by a name that is a string: numbers may mean others."""
    rng, y = np.random.default_rng(0), np.repeat(np.arange(6), 10)
    X, facts = rng.random((60, 4)), {"batch": 2, "steps": 1, "queries": 1}

    def said(train, test, old, new):
        recwarn.clear()
        trainer = MetaTrainer(nn.Linear(4, 2), SGD(0.1), meta_batch=1)
        trainer.fit(train.tasks(2, 2, classes=old, **facts), 1)
        tasks = test.tasks(2, 2, classes=new, **facts)
        evaluate(trainer, tasks, 1, protocol="inductive", count=2, compare=False)
        return [str(w.message) for w in recwarn if "trained on" in str(w.message)]

    pool, again = Pool.of(X, y), Pool.of(X, y)
    letters, others = (Pool.of(X, np.array(list("abcdef"))[y]) for _ in range(2))
    assert (
        "2 of the 3 test classes were trained on (2, 3)"
        in said(pool, pool, [0, 1, 2, 3], [2, 3, 4])[0]
    )
    assert "6 of the 6 test classes" in said(pool, pool, None, None)[0]
    assert "(b)" in said(letters, others, ["a", "b"], ["b", "c"])[0]
    for quiet in (
        (pool, pool, [0, 1], [2, 3]),
        (letters, others, ["a", "b"], ["c", "d"]),
        (pool, again, [0, 1], [0, 1]),
    ):
        assert said(*quiet) == []


def test_tasks_of_a_list_are_judged_once():
    """A task judged twice says nothing new, and made the interval too narrow."""
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(4, 2)), [0, 1, 0, 1], rng.normal(size=(6, 2)), [0, 1] * 3)] * 7
    tasks, net = Arrays(made, batch=4, steps=2), torch.nn.Linear(2, 2)
    how = {"protocol": "inductive", "within": SGD(0.1), "compare": False}
    found = evaluate(net, tasks, 2, **how)
    assert len(found.tasks) == 7
    with pytest.warns(RuntimeWarning, match="there are 7 test tasks"):
        assert evaluate(net, tasks, 2, count=20, **how) == found
    assert len(evaluate(net, tasks, 2, count=3, **how).tasks) == 3


def test_numbers_that_are_not_finite_are_refused():
    X, y = np.ones((4, 2)), np.zeros(4)
    net, how = torch.nn.Linear(2, 1), {"within": SGD(0.1), "loss": squared_error}
    bad = np.where(np.arange(4) == 2, np.nan, 1.0)
    for rows, targets in ((X * bad[:, None], y), (X, bad)):
        with pytest.raises(FMRLError, match="not finite"):
            adapt(net, rows, targets, 3, **how)
        tasks = Arrays([(rows, targets, X, y)], batch=4, steps=3)
        with pytest.raises(FMRLError, match="1 of 1 test tasks is not a finite number"):
            evaluate(net, tasks, 3, protocol="inductive", compare=False, **how)

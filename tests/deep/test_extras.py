"""MAML, logging, and the settings of the paper's runs."""
# ruff: noqa: E402

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.deep import (
    MAML,
    SGD,
    Arrays,
    AverageDeviation,
    Layout,
    MetaTrainer,
    PerCoordinate,
    Pool,
    Progress,
    TensorBoard,
    evaluate,
    gradient_norm,
    squared_error,
)
from fmrl.errors import FMRLError
from fmrl.reproduce.deep.settings import compare, reference, runs
from fmrl.reproduce.deep.study import train_tasks


def test_first_order_maml_is_the_gradient_at_the_end():
    rng = np.random.default_rng(0)
    pool = Pool.of(rng.random((40, 4)), np.repeat(np.arange(4), 10))
    tasks = pool.tasks(2, 3, batch=3, steps=2, queries=2)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    layout = Layout.of(net)
    index, label, _, query = tasks.draw_queries(0, 1)
    batch = (pool.inputs[index], label, pool.inputs[query], tasks.query_labels[None])
    module = layout.module(net, layout.flat(net))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for s in range(2):
        optimiser.zero_grad()
        F.cross_entropy(module(batch[0][0, s]), label[0, s]).backward()
        optimiser.step()
    optimiser.zero_grad()
    F.cross_entropy(module(batch[2][0]), tasks.query_labels).backward()
    expected = layout.join({n: p.grad for n, p in module.named_parameters()})
    first = MAML(0.1, first_order=True).gradient(net, layout, layout.flat(net), batch)
    whole = MAML(0.1).gradient(net, layout, layout.flat(net), batch)
    assert (first - expected).abs().max() < 1e-12
    assert 1e-6 < (whole - first).abs().max() < 1
    assert not torch.equal(layout.flat(MAML().fit(net, tasks, 2)), layout.flat(net))


def sines(count, seed, ragged=False):
    """Waves of random amplitude and phase: (X, y, Xq, yq) each."""
    rng, tasks = np.random.default_rng(seed), []
    for i in range(count):
        n = 5 + i % 3 if ragged else 5
        a, b, X = rng.uniform(0.5, 2), rng.uniform(0, 3), rng.uniform(-3, 3, (n + 10, 1))
        y = a * np.sin(X + b)
        tasks.append((X[:n], y[:n], X[n:], y[n:]))
    return tasks


def small_net(outputs=1, inputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs)).double()


@pytest.mark.parametrize("first_order", [False, True])
def test_maml_takes_the_mean_over_tasks_of_any_sizes(first_order, monkeypatch):
    net, tasks = small_net(), Arrays(sines(5, 0, ragged=True), batch=5, steps=2)
    layout, maml = Layout.of(net), MAML(0.1, 0.01, first_order, loss=squared_error)
    index, label, groups = tasks.queried(0, 5)
    single = []
    for g in groups:
        for i, at in enumerate(g.at):
            batch = (tasks.inputs[index[at]], label[at], tasks.inputs[g.query[i]], g.targets[i])
            single.append(maml.gradient(net, layout, layout.flat(net), [b[None] for b in batch]))
    assert len(groups) == 3 and len(single) == 5
    stacked = (tasks.inputs[index[:2]], label[:2], tasks.inputs[groups[0].query], groups[0].targets)
    together = maml.gradient(net, layout, layout.flat(net), [b[[0, 0, 1]] for b in stacked])
    apart = [
        maml.gradient(net, layout, layout.flat(net), [b[[i]] for b in stacked]) for i in (0, 1)
    ]
    assert (together - (2 * apart[0] + apart[1]) / 3).abs().max() < 1e-12
    monkeypatch.setattr(
        torch.optim, "Adam", torch.optim.SGD
    )  # Adam would hide the scale of the gradient
    moved = layout.flat(maml.fit(net, tasks, 1)) - layout.flat(net)
    assert (moved + 0.01 * torch.stack(single).mean(0)).abs().max() < 1e-12


def test_maml_learns_sines():
    train, test = Arrays(sines(200, 0), batch=5, steps=1), Arrays(sines(50, 1), batch=5, steps=1)
    net, looks = small_net(), []
    trained = MAML(0.05, 1e-2, loss=squared_error).fit(
        net, train, 150, 10, each=lambda i, m: looks.append(i), every=60
    )
    before, after = (
        evaluate(
            m, test, 1, protocol="transductive", count=50, within=SGD(0.05), loss=squared_error
        )
        for m in (net, trained)
    )
    assert after.what == "loss" and after.interval[1] < before.interval[0], (before, after)
    assert looks == [60, 120, 150]
    assert (
        MAML(loss=squared_error).fit(
            net, train, 10**9, seconds=0.1, each=lambda i, m: looks.append(i)
        )
        and looks[-1] < 10**6
    )
    ends = [
        Layout.of(net).flat(MAML(loss=squared_error).fit(net, train, 1, seed=s)) for s in (0, 0, 1)
    ]
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


class Recurrent(nn.Module):
    """A network that torch.func.vmap refuses."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def test_maml_leaves_frozen_parameters():
    net = small_net()
    net[0].weight.requires_grad_(False)
    trained = MAML(loss=squared_error).fit(net, Arrays(sines(5, 0), batch=5, steps=1), 2)
    assert torch.equal(trained[0].weight, net[0].weight) and not torch.equal(
        trained[0].bias, net[0].bias
    )
    tasks, module, layout = (
        Arrays(sines(1, 0), batch=5, steps=3),
        copy.deepcopy(net),
        Layout.of(net),
    )
    index, label, (g,) = tasks.queried(0, 1)
    optimiser = torch.optim.SGD(
        module.parameters(), lr=0.1
    )  # leaves the frozen layer where it is in the task, too
    for s in range(3):
        optimiser.zero_grad()
        F.mse_loss(module(tasks.inputs[index[0, s]]), label[0, s]).backward()
        optimiser.step()
    optimiser.zero_grad()
    F.mse_loss(module(tasks.inputs[g.query[0]]), g.targets[0]).backward()
    expected = layout.join(
        {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
    )
    batch = (tasks.inputs[index], label, tasks.inputs[g.query], g.targets)
    found = MAML(0.1, first_order=True, loss=squared_error).gradient(
        net, layout, layout.flat(net), batch
    )
    assert (found - expected).abs().max() < 1e-12


@pytest.mark.filterwarnings("ignore:the Recurrent at net is run task by task")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: MAML(-1), "inner=-1 must be positive"),
        (lambda: MAML(1, float("nan")), "outer=nan must be positive"),
        (
            lambda: MAML().fit(
                small_net(), Arrays([t[:2] for t in sines(2, 0)], batch=5, steps=1), 1
            ),
            "MAML needs queries",
        ),
        (lambda: MAML().fit(small_net(), [t[:2] for t in sines(2, 0)], 1), "MAML needs queries"),
        (
            lambda: MAML().fit(small_net(), Arrays(sines(2, 0), batch=5, steps=1), 1),
            "are not class numbers",
        ),
        (
            lambda: MAML().fit(small_net(), Arrays(sines(2, 0), batch=5, steps=1), 1, meta_batch=0),
            "meta_batch=0",
        ),
        (
            lambda: MAML(loss=squared_error).fit(
                nn.Sequential(nn.Linear(1, 4), nn.Dropout(), nn.Linear(4, 1)),
                Arrays(sines(2, 0), batch=5, steps=1),
                1,
            ),
            "drops units",
        ),
        (
            lambda: MAML(loss=lambda outputs, targets: outputs.mean()).fit(
                small_net(), Arrays(sines(2, 0), batch=5, steps=1), 1
            ),
            "the loss returned",
        ),
        (
            lambda: MAML().fit(
                Recurrent(), Arrays([(np.zeros((4, 3, 1)), [0] * 4) * 2] * 2, batch=4, steps=1), 1
            ),
            "vmap, which MAML needs",
        ),
        (lambda: SGD("fast"), "step must be positive"),
    ],
)
def test_what_is_refused(call, says):
    with pytest.raises(FMRLError, match=says):
        call()


def test_logging(tmp_path):
    pytest.importorskip("tensorboard")
    tasks = Arrays([(np.eye(2), [0, 1])], batch=2, steps=2)
    lines, board = [], TensorBoard(tmp_path, lambda trainer: {"one": 1.0})
    progress = Progress(4, lines.append)

    def each(trainer):
        board(trainer)
        progress(trainer)

    net = nn.Linear(2, 2).double()
    MetaTrainer(net, SGD(0.1), meta_batch=1).fit(tasks, 4, each=each, every=2)
    assert (
        len(lines) == 2
        and "task-steps/s" in lines[1]
        and "loss" in lines[0]
        and "task-steps/s" not in lines[0]
    )
    assert gradient_norm(net, tasks, 3) > 0
    assert tags(tmp_path) == {"loss/0", "eta/0", "one"}
    board = TensorBoard(tmp_path / "rule")
    MetaTrainer(net, SGD(lipschitz=1.0), similarity=AverageDeviation(first=1.0), meta_batch=1).fit(
        tasks, 1, each=board
    )
    assert tags(tmp_path / "rule") == {"loss/0", "eta/0", "guess/0"}
    board = TensorBoard(tmp_path / "shape")
    MetaTrainer(net, SGD(), similarity=PerCoordinate(0.1), meta_batch=1).fit(tasks, 1, each=board)
    assert tags(tmp_path / "shape") == {"loss/0", "eta/0"}


def tags(folder):
    """Names of the scalars that were written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])


def test_a_study_takes_what_its_classes_have():
    """The authors ask for 25 samples of Omniglot's classes, which have 20."""
    pool = Pool.of(np.zeros((800, 8, 8), np.uint8), np.repeat(np.arange(40), 20))
    most = max(runs(), key=lambda q: q.train_shots)
    tasks = train_tasks(most, pool, lambda run: (range(30), range(30, 40)))
    assert most.train_shots == 25 and tasks.episodes.shots == 20


def test_the_papers_runs():
    assert (
        len(runs()) == 32
        and len(runs("Mini-ImageNet")) == 16
        and len(runs(seeds={"o15_i5": 3})) == 34
    )
    accuracy = reference()["o15_i5"]["accuracy"]["test"]
    final = {
        p: {"accuracy": accuracy + 0.014, "error": 0.003, "tasks": 500}
        for p in ("transductive", "inductive")
    }
    assert compare({"o15_i5": {"curve": [], "final": final}})[0]["within"]

"""MAML, logging, and the settings of the paper's runs."""
# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.deep import SGD, Arrays, Layout, MetaTrainer, Pool, gradient_norm
from fmrl.deep.logging import Progress, TensorBoard
from fmrl.deep.maml import MAML
from fmrl.deep.reproduce import compare, reference, runs


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
    assert len(lines) == 2 and "task-steps/s" in lines[1] and list(tmp_path.iterdir())
    assert gradient_norm(net, tasks, 3) > 0


def test_the_papers_runs():
    assert len(runs()) == 32 and len(runs("Mini-ImageNet")) == 16 and len(runs(seeds={"o15_i5": 3})) == 34
    accuracy = reference()["o15_i5"]["accuracy"]["test"]
    final = {p: {"accuracy": accuracy + 0.014, "error": 0.003, "tasks": 500} for p in ("transductive", "inductive")}
    assert compare({"o15_i5": {"curve": [], "final": final}})[0]["within"]

"""The fused kernels: in Triton's interpreter where Triton is installed, and on CUDA where there
is one.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

CODE = """
import sys
import numpy as np
from fmrl.deep import SGD, Adam, FLIBatch, Interpolate, Layout, MetaTrainer, Pool
from fmrl.deep import mini_imagenet_net, omniglot_net
from fmrl.deep.engines import fused
rng, pooled = np.random.default_rng(0), sys.argv[1] == "pooled"
fused.SPLIT = 0 if sys.argv[1] == "whole" else 160
bits = (rng.random((60, 28, 28)) > 0.3).astype(np.uint8)
X = rng.random((60, 3, 11, 11), dtype=np.float32) if pooled else bits
build, size = (mini_imagenet_net, {"side": 11}) if pooled else (omniglot_net, {})
tasks = Pool.of(X, np.repeat(np.arange(6), 10)).tasks(3, 4, batch=3, steps=2, seed=3)
rest = {"meta_batch": 2, "precision": "ieee"}
for within in (Adam(1e-3),) if pooled else (Adam(1e-3), SGD(0.1)):
    found = {}
    for path in ("fused", "stacked"):
        net = build(3, filters=16, seed=0, **size)
        trainer = MetaTrainer(net, within, FLIBatch(), Interpolate(1.0, 0.0, 4), path=path, **rest)
        loop = trainer.fit(tasks, 2).loop
        assert (loop.pooled if pooled else loop.plan is not None) == (path == "fused")
        found[path] = trainer.phi
    moved = (found["stacked"] - Layout.of(net).flat(net)).norm()
    assert (found["fused"] - found["stacked"]).norm() < 1e-4 * moved, within
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("network", ["split", "whole", "pooled"])
def test_kernels_in_the_interpreter(network):
    alone = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", CODE, network], check=True, env=os.environ | alone)


OTHERS = """
import itertools
import torch
from types import SimpleNamespace
from torch import nn
from fmrl.deep import SGD, Adam
from fmrl.deep.engines import convolution, recurrent
from fmrl.deep.engines.agreement import descend_error


def same(f, g, tensors):
    found = []
    for form in (f, g):
        out = form(*tensors)
        out = out if isinstance(out, tuple) else (out,)
        torch.manual_seed(1)
        total = sum((o * torch.randn_like(o)).sum() for o in out)
        found.append([o.detach() for o in out] + list(torch.autograd.grad(total, tensors)))
    worst = max(float((a - b).norm() / b.norm()) for a, b in zip(*found, strict=True))
    assert worst < 1e-5, worst


torch.manual_seed(0)
kinds = (3, 5, 3, 1, 1, 1), (17, 8, 3, 2, 1, 1), (4, 33, 2, 2, 2, 0)
for C, O, k, stride, dilation, pad in kinds:
    x = torch.randn(2, C, 3, 9, 10, requires_grad=True)
    flat = torch.randn(2, O * C * k * k + 5)[:, 5:]  # weights that lie apart
    rest = (pad, pad + 1, pad, pad), (stride, stride), (dilation, dilation)
    forms = [
        lambda x, w, kind=kind: kind.apply(x, w, *rest)
        for kind in (convolution._Kernels, convolution._Product)
    ]
    same(*forms, [x, flat.view(2, O, C, k, k).requires_grad_()])
shapes = (2, 5, 3, 28), (2, 28, 7), (2, 3, 7), (2, 3, 7)
tensors = [torch.randn(s, requires_grad=True) for s in shapes]
plain = recurrent._steps


kernels = tuple(recurrent._by_kernel(name) for name in ("lstm_cell", "lstm_cell_back"))
found = []
for steps in (lambda like: kernels, plain):
    recurrent._steps = steps
    y, c = recurrent._LSTM.apply(*tensors)
    slopes = torch.autograd.grad(y.pow(2).sum() + c.sum(), tensors)
    found.append([y.detach(), c.detach(), *slopes])
assert max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) < 1e-5
recurrent._steps = plain
for within, *flags in itertools.product((SGD(0.1), Adam(0.1)), *[(False, True)] * 4):
    averages, observe, shaped, frozen = flags
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(not frozen)
    loop = SimpleNamespace(within=within, inputs=torch.zeros(1), module=net, shaped=shaped,
                           observe=int(observe), precision="ieee")
    assert descend_error(loop, averages)[1]() < 1e-3, (within, flags)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_of_any_network_in_the_interpreter():
    alone = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", OTHERS], check=True, env=os.environ | alone)


@cuda
@pytest.mark.parametrize("tasks", [160, 200])  # split between programs, and not
@pytest.mark.parametrize(("batch", "ways"), [(10, 5), (20, 20), (5, 5)])
@pytest.mark.parametrize("precision", ["bf16", "tf32", "ieee"])
def test_kernels_agree_on_cuda(batch, ways, precision, tasks):
    from fmrl.deep import Adam, omniglot_net
    from fmrl.deep.engines.inner import InnerLoop

    images = (torch.rand(500, 1, 28, 28) > 0.2).to(torch.uint8).cuda()
    net = omniglot_net(ways, seed=0).cuda()
    loop = InnerLoop(
        net, Adam(), images, tasks=tasks, steps=1, batch=batch, path="fused", precision=precision
    )
    assert loop.plan is not None


@cuda
@pytest.mark.parametrize("batch", [5, 10, 15])
@pytest.mark.parametrize(("precision", "most"), [("bf16", 0.25), ("tf32", 0.25), ("ieee", 1e-4)])
def test_pooled_kernels_agree_on_cuda(batch, precision, most):
    """In full precision they agree; in a reduced one other pixels of this noise win, in every
    implementation.
    """
    from fmrl.deep import Adam, mini_imagenet_net
    from fmrl.deep.engines.agreement import pooled_error
    from fmrl.deep.engines.inner import InnerLoop

    images = torch.rand(100, 3, 84, 84, generator=torch.Generator().manual_seed(0)).cuda()
    net = mini_imagenet_net(5, seed=0).cuda()
    loop = InnerLoop(
        net, Adam(), images, tasks=50, steps=1, batch=batch, path="fused", precision=precision
    )
    assert loop.pooled and pooled_error(loop)[1]() < most


@cuda
def test_graph_replay_equals_eager():
    import numpy as np

    from fmrl.deep import Adam, MetaTrainer, Pool, omniglot_net

    pool = Pool.of(
        (np.random.default_rng(0).random((200, 28, 28)) > 0.2).astype(np.uint8),
        np.repeat(np.arange(10), 20),
        "cuda",
    )
    tasks = pool.tasks(5, 10, batch=10, steps=5)
    replayed = MetaTrainer(omniglot_net(5, seed=0).cuda(), Adam()).fit(tasks, 3)
    eager = MetaTrainer(omniglot_net(5, seed=0).cuda(), Adam())
    eager._prepare([tasks])
    eager.engine.once = eager.engine.body
    eager._chunk([tasks], 3)
    assert torch.equal(replayed.phi, eager.phi)


@cuda
def test_side_by_side_and_in_chunks_equals_alone(monkeypatch):
    """Two trainings on streams of their own, with chunks of four, give the numbers of one `fit`."""
    import numpy as np

    from fmrl.deep import Adam, MetaTrainer, Pool, omniglot_net
    from fmrl.deep.engines import iteration
    from fmrl.deep.engines.iteration import Job, train_together

    images = (np.random.default_rng(0).random((200, 28, 28)) > 0.2).astype(np.uint8)
    pool, seen = Pool.of(images, np.repeat(np.arange(10), 20), "cuda"), []
    sources = [pool.tasks(5, 10, batch=10, steps=steps) for steps in (2, 7)]

    def trainer():
        return MetaTrainer(omniglot_net(5, seed=0).cuda(), Adam(carry=True), meta_batch=3)

    alone = [trainer().fit(tasks, 23).phi for tasks in sources]
    monkeypatch.setattr(iteration, "CHUNK", 4)
    pairs = [(trainer(), tasks) for tasks in sources]
    looks = [Job(t, [tasks], 23, 10, lambda t: seen.append(t.iteration)) for t, tasks in pairs]
    assert train_together(looks)
    assert sorted(seen) == [10, 10, 20, 20, 23, 23]
    for (together, tasks), phi in zip(pairs, alone, strict=True):
        assert torch.equal(together.phi, phi)
        assert torch.equal(trainer().fit(tasks, 23).phi, phi)

"""The stacked paths against a plain loop: nn.Module, autograd, torch.optim, one task after
another, in float64.
"""
# ruff: noqa: E402

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.core.rules.meta import LastUpdate
from fmrl.core.rules.update import FAL
from fmrl.deep import (
    SGD,
    Adam,
    AdaptiveOGD,
    Arrays,
    AverageDeviation,
    Doubling,
    FLIBatch,
    FLIOnline,
    FollowLeader,
    Interpolate,
    Known,
    Layout,
    LongRun,
    MetaTrainer,
    Pool,
    adapt,
    cross_entropy,
    evaluate,
    load,
    mini_imagenet_net,
    omniglot_net,
    save,
    summed_cross_entropy,
)
from fmrl.errors import FMRLError

torch.set_num_threads(1)
K, ITERATIONS = 3, 3


def make_pool():
    rng = np.random.default_rng(0)
    return Pool.of(rng.random((60, 14, 14)), np.repeat(np.arange(6), 10))


def plain(net, within, tasks, fraction, average):
    """What people write: one task at a time."""
    layout = Layout.of(net)
    phi, carried, taken = layout.flat(net), None, 0
    for iteration in range(ITERATIONS):
        index, label = tasks.draw(iteration * K, K)
        ends, moments = [], []
        for k in range(K):
            module = layout.module(net, phi)
            if isinstance(within, SGD):
                optimiser = torch.optim.SGD(module.parameters(), lr=within.step)
            else:
                optimiser = torch.optim.Adam(
                    module.parameters(), lr=within.step, betas=(0.0, within.beta2), eps=within.eps
                )
                if within.carry and carried is not None:
                    for p, v in zip(
                        module.parameters(), layout.split(carried).values(), strict=True
                    ):
                        state = {"step": torch.tensor(float(taken)), "exp_avg_sq": v.clone()}
                        optimiser.state[p] = state | {"exp_avg": torch.zeros_like(p)}
            played = []
            for s in range(tasks.steps):
                played.append(layout.flat(module))
                optimiser.zero_grad()
                F.cross_entropy(module(tasks.inputs[index[k, s]]), label[k, s]).backward()
                optimiser.step()
            ends.append(torch.stack(played).mean(0) if average else layout.flat(module))
            if isinstance(within, Adam):
                moments.append(
                    layout.join(
                        {n: optimiser.state[p]["exp_avg_sq"] for n, p in module.named_parameters()}
                    )
                )
        if isinstance(within, Adam) and within.carry:
            decay = within.beta2**tasks.steps
            start = torch.zeros_like(phi) if carried is None else carried
            carried = start
            for v in moments:
                carried = decay * carried + (v - decay * start)
            taken += K * tasks.steps
        phi = phi + fraction(iteration) * (torch.stack(ends).mean(0) - phi)
    return phi


class Odd(nn.Module):
    """A module no fast path knows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(196, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x.flatten(1))) ** 2)


@pytest.mark.parametrize("path", ["stacked", "functional"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(
    "within",
    [SGD(0.1), Adam(1e-3, carry=True), Adam(1e-3, carry=False)],
    ids=["sgd", "carried", "reset"],
)
def test_equals_plain_loop(within, average, path):
    tasks = make_pool().tasks(3, 4, batch=5, steps=4, seed=3)
    net = omniglot_net(3, filters=8, side=14, seed=0).double()
    expected = plain(net, within, tasks, lambda i: 1 - i / 5, average)
    update = FLIBatch() if average else FLIOnline()
    trainer = MetaTrainer(
        net, within, update, Interpolate(1.0, 0.0, 5), meta_batch=K, path=path, piece=2
    ).fit(tasks, ITERATIONS)
    assert (trainer.phi[0] - expected).abs().max() < 1e-8
    assert (expected - Layout.of(net).flat(net)).abs().max() > 1e-3  # something was learned at all


@pytest.mark.parametrize(
    "net",
    [Odd().double(), mini_imagenet_net(3, filters=4, side=14, channels=1, seed=0).double()],
    ids=["odd", "pool"],
)
def test_other_modules(net):
    tasks = make_pool().tasks(3, 4, batch=5, steps=4, seed=3)
    expected = plain(net, Adam(1e-3), tasks, lambda i: 0.5, False)
    trainer = MetaTrainer(
        copy.deepcopy(net), Adam(1e-3), meta=Interpolate(0.5, 0.5, 1), meta_batch=K
    ).fit(tasks, ITERATIONS)
    assert (trainer.phi[0] - expected).abs().max() < 1e-8


@pytest.mark.parametrize("meta", [Interpolate(1.0, 0.0, 8), FollowLeader(), AdaptiveOGD()])
@pytest.mark.parametrize(
    ("similarity", "within"),
    [
        (None, Adam(1e-3)),
        (Doubling(0.1, 1.1, first=1.0), SGD(lipschitz=5.0)),
        (AverageDeviation(first=1.0), Adam(None)),
    ],
)
def test_resume_is_exact(tmp_path, meta, similarity, within):
    pool = make_pool()
    tasks = [pool.tasks(3, 4, batch=5, steps=4, seed=s) for s in (3, 4)]

    def build():
        nets = [omniglot_net(3, filters=8, side=14, seed=s).double() for s in (0, 1)]
        return MetaTrainer(nets, within, FLIOnline(), meta, similarity, meta_batch=K)

    whole = build().fit(tasks, 6)
    path = save(build().fit(tasks, 2), tmp_path / "half.safetensors")
    resumed = load(build(), path).fit(tasks, 6)
    assert torch.equal(whole.phi, resumed.phi)
    assert torch.equal(whole.eta, resumed.eta)
    if similarity is not None:
        assert not torch.equal(whole.eta, build().eta)  # the rule moved the step


def test_runs_side_by_side_equal_runs_alone():
    pool = make_pool()
    tasks = [pool.tasks(3, shots, batch=5, steps=4, seed=s) for s, shots in ((3, 4), (4, 6))]
    nets = [omniglot_net(3, filters=8, side=14, seed=s).double() for s in (0, 1)]
    both = MetaTrainer(nets, [Adam(1e-3), Adam(2e-3)], meta_batch=K).fit(tasks, 3)
    for i in range(2):
        alone = MetaTrainer(nets[i], Adam((i + 1) * 1e-3), meta_batch=K).fit(tasks[i], 3)
        assert (both.phi[i] - alone.phi[0]).abs().max() < 1e-12


def test_ragged_tasks_and_long_runs():
    rng = np.random.default_rng(1)
    tasks = Arrays(
        [(rng.random((n, 4)), rng.integers(0, 2, n)) for n in (3, 7, 20)], batch=4, steps=9
    )
    trainer = MetaTrainer(
        nn.Linear(4, 2).double(), SGD(0.1), LongRun(9), FollowLeader(), meta_batch=2
    ).fit(tasks, 4)
    assert trainer.iteration == 4 and torch.isfinite(trainer.phi).all()
    with pytest.raises(FMRLError, match="LongRun"):
        MetaTrainer(nn.Linear(4, 2), SGD(0.1), FAL())


def test_a_long_run_plays_on_with_the_step_of_the_task():
    """Nine steps of which the task has four: eta is D/(G·√4), and theta is where nine steps of
    plain SGD end.
    """
    rng = np.random.default_rng(1)
    made = [(rng.random((5, 4)), rng.integers(0, 2, 5)) for _ in range(2)]
    net = nn.Linear(4, 2).double()
    rule = {"similarity": Known(0.3), "meta": LastUpdate(), "meta_batch": 1}
    short = Arrays(made, batch=3, steps=4, seed=2)
    trainer = MetaTrainer(net, SGD(lipschitz=2.0), LongRun(9), **rule).fit(short, 1)
    assert float(trainer.eta) == pytest.approx(0.3 / 4) and trainer.state.taken == 9
    index, label = Arrays(made, batch=3, steps=9, seed=2).draw(0, 1)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.3 / 4)
    for i, y in zip(index[0], label[0], strict=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(short.inputs[i]), y).backward()
        optimiser.step()
    assert (
        trainer.phi[0] - torch.cat([p.detach().flatten() for p in net.parameters()])
    ).abs().max() < 1e-14
    with pytest.raises(FMRLError, match="fewer steps"):
        MetaTrainer(net, SGD(0.1), LongRun(3), meta_batch=1).fit(short, 1)


def test_both_protocols_and_no_default():
    pool = make_pool()
    net = omniglot_net(3, filters=8, side=14, seed=0).double()
    test = pool.tasks(3, 2, batch=3, steps=4, seed=9, queries=1)
    with pytest.raises(TypeError):
        evaluate(net, test, 5)
    for protocol in ("transductive", "inductive"):
        found = evaluate(net, test, 5, protocol=protocol, count=9, within=Adam(1e-3))
        assert expected(net, test, 5, protocol, 9) == pytest.approx(found.tasks.tolist())


def expected(net, test, steps, protocol, count):
    """The protocols written out, task by task."""
    from dataclasses import replace

    layout, answers = Layout.of(net), []
    index, label, support, query = replace(test, steps=steps).draw_queries(0, count)
    for k in range(count):
        module = layout.module(net, layout.flat(net))
        optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, betas=(0.0, 0.999))
        for s in range(steps):
            optimiser.zero_grad()
            F.cross_entropy(module(test.inputs[index[k, s]]), label[k, s]).backward()
            optimiser.step()
        if protocol == "transductive":
            guess = module(test.inputs[query[k]]).argmax(1)
        else:
            guess = torch.stack(
                [
                    module(test.inputs[torch.cat([support[k], q[None]])])[-1].argmax()
                    for q in query[k]
                ]
            )
        answers.append(float((guess == test.query_labels).double().mean()))
    return answers


def test_batch_norm_in_training_uses_the_mini_batch_and_leaves_its_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    plain = copy.deepcopy(net)
    plain[1] = nn.BatchNorm1d(4, track_running_stats=False).double()
    tasks = Arrays([(np.random.default_rng(0).random((6, 4)), [0, 1] * 3)], batch=3, steps=4)
    phis = [MetaTrainer(m, SGD(0.1)).fit(tasks, 3).phi for m in (net, plain)]
    assert torch.equal(*phis)
    assert net[1].num_batches_tracked == 0 and not net[1].running_mean.any()


def test_moments_in_turn_equal_one_optimiser_for_all_tasks():
    """The authors' loop: one Adam whose moments and step count go on, theta put back to phi
    before each task.
    """
    tasks = make_pool().tasks(3, 4, batch=5, steps=4, seed=3)
    net = omniglot_net(3, filters=8, side=14, seed=0).double()
    layout, module = Layout.of(net), copy.deepcopy(net)
    phi = layout.flat(net)
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, betas=(0.0, 0.999))
    for iteration in range(ITERATIONS):
        index, label = tasks.draw(iteration * K, K)
        ends = []
        for k in range(K):
            module.load_state_dict(layout.split(phi))
            for s in range(tasks.steps):
                optimiser.zero_grad()
                F.cross_entropy(module(tasks.inputs[index[k, s]]), label[k, s]).backward()
                optimiser.step()
            ends.append(layout.flat(module))
        phi = phi + (1 - iteration / 5) * (torch.stack(ends).mean(0) - phi)
    nets = [copy.deepcopy(net), omniglot_net(3, filters=8, side=14, seed=1).double()]
    trainer = MetaTrainer(
        nets, Adam(1e-3, carry="in turn"), meta=Interpolate(1.0, 0.0, 5), meta_batch=K
    )
    trainer.fit([tasks, make_pool_like(tasks)], ITERATIONS)
    assert (trainer.phi[0] - phi).abs().max() < 1e-8
    together = MetaTrainer(net, Adam(1e-3), meta=Interpolate(1.0, 0.0, 5), meta_batch=K).fit(
        tasks, ITERATIONS
    )
    assert (together.phi[0] - phi).abs().max() > 1e-6  # another algorithm


def make_pool_like(tasks):
    """Other tasks over the same table."""
    return tasks.pool.tasks(3, 4, batch=5, steps=4, seed=4)


@pytest.mark.parametrize(
    ("build", "loss", "threads", "within"),
    [
        (omniglot_net, cross_entropy, 1, SGD(0.1)),
        (omniglot_net, summed_cross_entropy, 2, Adam(0.01, eps=1e-3)),
        (mini_imagenet_net, cross_entropy, 2, Adam(0.01, eps=1e-3)),
        (mini_imagenet_net, summed_cross_entropy, 1, SGD(0.1)),
    ],
)
def test_passes_by_hand_equal_autograd(build, loss, threads, within):
    """Of two tasks at once, and of the last one alone; Adam is applied layer by layer."""
    tasks = make_pool().tasks(3, 4, batch=5, steps=4, seed=3)
    net = build(3, filters=4, side=14, channels=1, seed=0).double()
    found, before = {}, torch.get_num_threads()
    for path, count in (("by hand", threads), ("functional", 1)):
        options = {"meta_batch": K, "path": path, "piece": 2, "loss": loss}
        trainer = MetaTrainer(copy.deepcopy(net), within, **options)
        try:
            torch.set_num_threads(count)
            found[path] = trainer.fit(tasks, 2).phi
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(before)
        assert (trainer.loop.hand is not None) == (path == "by hand")
    assert (found["by hand"] - found["functional"]).abs().max() < 1e-12
    with pytest.raises(FMRLError, match="by hand"):
        MetaTrainer(Odd().double(), SGD(0.1), path="by hand").fit(tasks, 1)


def test_a_summed_loss_matters_where_moments_meet_another_batch():
    pool = make_pool()
    tasks, test = (
        pool.tasks(3, 4, batch=6, steps=4),
        pool.tasks(3, 1, batch=3, steps=4, queries=1, seed=9),
    )
    ends = {}
    for loss in (cross_entropy, summed_cross_entropy):
        net = omniglot_net(3, filters=8, side=14, seed=0).double()
        trainer = MetaTrainer(net, Adam(1e-3, eps=1e-20), meta_batch=K, loss=loss).fit(tasks, 2)
        X, y = pool.inputs[:30:10], [0, 1, 2]
        ends[loss] = (
            trainer.phi[0],
            Layout.of(net).flat(adapt(trainer, X, y, steps=1)) - trainer.phi[0],
        )
        assert evaluate(trainer, test, 2, protocol="transductive", count=2).steps == 2
    (phi, mean), (same, summed) = ends[cross_entropy], ends[summed_cross_entropy]
    assert (phi - same).abs().max() < 1e-9  # Adam does not feel the scale
    assert (
        0.5 < summed.norm() / mean.norm() < 0.7
    )  # but 3 samples weigh half of 6; their own squares are in the moments too


def test_runs_that_share_a_sequence_are_independent():
    tasks = make_pool().tasks(3, 4, batch=5, steps=4, seed=3)
    net = omniglot_net(3, filters=8, side=14, seed=0).double()
    both = MetaTrainer(net, Adam(1e-3), meta_batch=K, runs=2, seed=5).fit(tasks, 2)
    assert not torch.equal(both.phi[0], both.phi[1])
    for i in range(2):
        alone = MetaTrainer(net, Adam(1e-3), meta_batch=K, seed=5 + i).fit(tasks, 2)
        assert (both.phi[i] - alone.phi[0]).abs().max() < 1e-12


def test_less_memory_means_smaller_pieces(monkeypatch):
    """Memory that runs out halves the tasks that go through the network at once, and changes no
    number.
    """
    from fmrl.deep.engines import iteration as module

    tasks = make_pool().tasks(3, 4, batch=5, steps=4, seed=3)
    net = omniglot_net(3, filters=8, side=14, seed=0).double()
    plenty = MetaTrainer(copy.deepcopy(net), Adam(1e-3), meta_batch=4).fit(tasks, 2)
    tried = []

    def scarce(body, device):
        tried.append(trainer.loop.piece)
        body()  # what a capture does before it fails: the state has moved
        if trainer.loop.piece > 1:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return body

    monkeypatch.setattr(module, "capture", scarce)
    trainer = MetaTrainer(copy.deepcopy(net), Adam(1e-3), meta_batch=4)
    trainer.fit(tasks, 2)
    assert tried == [4, 2, 1] and trainer.piece == 1
    assert (trainer.phi - plenty.phi).abs().max() < 1e-12


@pytest.mark.parametrize("wrong", [None, "average", "last piece"])
def test_every_compiled_form_is_checked_before_use(monkeypatch, wrong):
    """Kernels stood in for by torch: one that sums no iterates, or errs in the smaller last piece
    of a stack, is not used.
    """
    from fmrl.deep.engines import agreement, fused
    from fmrl.deep.engines.stacked import Stacked

    net = omniglot_net(3, filters=16, side=14, seed=0)
    apply = Stacked(net)

    class Step:
        def __init__(self, plan, tasks, batch, within, precision, device, wide=None, scale=None):
            self.order, self.wide = plan.order, wide or tasks

        def __call__(self, inputs, theta, second, average, index, label, eta, bias, loss):
            leaf = torch.empty_like(theta)
            leaf[:, self.order] = theta
            values = cross_entropy(apply(leaf.requires_grad_(), inputs[index]), label)
            (gradient,) = torch.autograd.grad(values.sum(), leaf)
            if average is not None and wrong != "average":
                average += theta
            theta -= (
                eta[:, None]
                * gradient[:, self.order]
                * (3 if wrong == "last piece" and self.wide == 1 else 1)
            )
            loss.copy_(values.detach())

    monkeypatch.setattr(fused, "FusedStep", Step)
    monkeypatch.setattr(agreement, "_AGREED", {})
    images = np.random.default_rng(0).random((60, 14, 14), dtype=np.float32)
    tasks = Pool.of(images, np.repeat(np.arange(6), 10)).tasks(3, 4, batch=5, steps=4, seed=3)

    def fit(path, update, piece):
        return MetaTrainer(
            copy.deepcopy(net),
            SGD(0.1),
            update,
            meta_batch=K,
            path=path,
            piece=piece,
            precision="ieee",
        ).fit(tasks, 2)

    for update, piece, refused in (
        (FLIOnline(), None, None),
        (FLIBatch(), None, "average"),
        (FLIOnline(), 2, "last piece"),
    ):
        if wrong is not None and wrong == refused:
            with pytest.raises(FMRLError, match="differs"):
                fit("fused", update, piece)
        else:
            assert (
                fit("fused", update, piece).phi - fit("stacked", update, piece).phi
            ).abs().max() < 1e-5

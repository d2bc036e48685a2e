"""Rules that learn the step itself from a network's gradients, against ARUBA written out, and
against the core on a linear network.
"""
# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

import fmrl
from fmrl.core.rules.meta import LastUpdate
from fmrl.deep import (
    SGD,
    Adam,
    Arrays,
    AverageDeviation,
    DoG,
    Doubling,
    Fading,
    FLIOnline,
    FollowLeader,
    Interpolate,
    Isotropic,
    Layout,
    LongRun,
    MetaSGD,
    MetaTrainer,
    Observed,
    PerCoordinate,
    Pool,
    Ranks,
    adapt,
    cross_entropy,
    evaluate,
    load,
    omniglot_net,
    save,
    squared_error,
)
from fmrl.deep.engines.iteration import STRETCH
from fmrl.errors import FMRLError

torch.set_num_threads(1)
RULES = (PerCoordinate(0.2, 1.5, 0.8), Isotropic(0.2, 1.5, 0.8))
MORE = (MetaSGD(0.05, 0.1, 0.9), Observed(Doubling(0.1, 1.3, first=0.2), 1.5))


def regressions(batch=3, steps=4, seed=0):
    rng = np.random.default_rng(seed)
    slopes = 1.0 + rng.normal(size=(6, 4)) * [1.0, 0.3, 0.1, 0.0]
    rows = [rng.normal(size=(7, 4)) for _ in slopes]
    pairs = [(X, X @ w) for X, w in zip(rows, slopes, strict=True)]
    return Arrays(pairs, batch=batch, steps=steps, seed=seed)


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 1).double()


def pictures(seed=3, **options):
    rng = np.random.default_rng(0)
    pool = Pool.of(rng.random((60, 14, 14)), np.repeat(np.arange(6), 10))
    return pool.tasks(3, 4, batch=5, steps=4, seed=seed, **options)


def pictured(seed=0):
    return omniglot_net(3, filters=4, side=14, seed=seed).double()


def aruba(net, rule, tasks, iterations, K, loss=squared_error, first=0):
    """phi and eta after so many meta-batches of K, written out, one task after another."""
    layout = Layout.of(net)
    phi = layout.flat(net)
    ones = torch.ones_like(phi if isinstance(rule, PerCoordinate) else phi[:1])
    b, g, t = rule.epsilon**2 * ones, rule.zeta**2 * ones, 0
    for i in range(iterations):
        index, label = tasks.draw(first + i * K, K)
        eta, ends = torch.sqrt(b / g), []
        for k in range(K):
            module, met = layout.module(net, phi), torch.zeros_like(phi)
            for s in range(tasks.steps):
                outputs = module(tasks.inputs[index[k, s]])
                value = loss(outputs[None], label[k, s][None])[0]
                parts = torch.autograd.grad(value, list(module.parameters()))
                gradient = torch.cat([p.flatten() for p in parts])
                met += gradient**2
                module = layout.module(net, layout.flat(module) - eta * gradient)
            ends.append(layout.flat(module))
            near = (ends[-1] - phi) ** 2 / 2
            if isinstance(rule, Isotropic):
                near, met = near.sum(), met.sum()
            t += 1
            b = b + near + rule.epsilon**2 / (t + 1) ** rule.p
            g = g + met + rule.zeta**2 / (t + 1) ** rule.p
        phi = phi + 0.5 * (torch.stack(ends).mean(0) - phi)
    return phi, torch.sqrt(b / g)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_trainer_is_aruba(rule):
    """Two runs side by side, meta-batches, several steps: phi and eta of each run alone."""
    tasks, nets = regressions(), [linear(0), linear(1)]
    trainer = MetaTrainer(
        nets, SGD(), meta=Interpolate(0.5, 0.5, 1), similarity=rule, meta_batch=3,
        loss=squared_error,
    ).fit(tasks, 5)  # fmt: skip
    for run, net in enumerate(nets):
        phi, eta = aruba(net, rule, tasks, 5, 3, first=run * STRETCH)
        assert (trainer.phi[run] - phi).abs().max() < 1e-12
        assert (trainer.eta[run] - eta).abs().max() < 1e-12
    assert trainer.eta.shape == ((2, 5) if isinstance(rule, PerCoordinate) else (2,))
    assert (eta - 0.2 / 1.5).abs().min() > 1e-3  # every step was learned


@pytest.mark.parametrize("path", ["by hand", "stacked", "functional"])
def test_every_path_learns_the_same_steps(path):
    """Also where theta is kept in another order than the module's."""
    rule, tasks = PerCoordinate(0.05), pictures()
    trainer = MetaTrainer(
        pictured(), SGD(), meta=Interpolate(0.5, 0.5, 1), similarity=rule, meta_batch=3, piece=2,
        path=path,
    ).fit(tasks, 2)  # fmt: skip
    assert (trainer.order is None) == (path != "by hand")
    phi, eta = aruba(pictured(), rule, tasks, 2, 3, loss=cross_entropy)
    assert (trainer.phi[0] - phi).abs().max() < 1e-12
    assert (trainer.eta[0] - eta).abs().max() < 1e-12


@pytest.mark.parametrize("rule", (*RULES, *MORE), ids=repr)
def test_a_linear_network_is_the_core(rule):
    """Rows one by one, half their squared error, the mean of where tasks ended."""

    def half(outputs, targets):
        return (outputs[..., 0] - targets).square().sum(-1) / 2

    tasks, net = regressions(batch=1, steps=7), linear()
    net.bias = None
    index, label = tasks.draw(0, 8)
    made = [
        fmrl.Task(tasks.inputs[i[:, 0]].numpy(), y[:, 0].numpy(), loss=fmrl.Squared())
        for i, y in zip(index, label, strict=True)
    ]
    algo = fmrl.FMRL(
        fmrl.Euclidean(), fmrl.OGD(), fmrl.FLIOnline(), fmrl.FollowLeader(), rule, lipschitz=1.0
    )
    expected = fmrl.run(algo, made, Layout.of(net).flat(net).numpy())
    trainer = MetaTrainer(
        net, SGD(), FLIOnline(), FollowLeader(), rule, meta_batch=1, loss=half
    ).fit(tasks, 8)
    guess = getattr(expected.state.guess, "steps", expected.state.guess)
    np.testing.assert_allclose(trainer.phi[0].numpy(), expected.state.phi, atol=1e-12)
    np.testing.assert_allclose(trainer.eta[0].numpy(), guess, atol=1e-12)
    first = MetaTrainer(net, SGD(), similarity=rule).eta[0]
    assert ((trainer.eta[0] - first).abs() > 1e-4).all()  # every step was learned


@pytest.mark.parametrize("rule", (*RULES, *MORE), ids=repr)
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path, rule):
    tasks = pictures()

    def build(*seeds):
        nets, rules = [pictured(s) for s in seeds or (0, 1)], {"similarity": rule, "meta_batch": 2}
        return MetaTrainer(nets, SGD(), meta=FollowLeader(), seed=min(seeds, default=0), **rules)

    whole = build().fit(tasks, 5)
    half = save(build().fit(tasks, 2), tmp_path / "half.safetensors")
    resumed = load(build(), half).fit(tasks, 5)
    assert torch.equal(whole.phi, resumed.phi) and torch.equal(whole.eta, resumed.eta)
    ends = [save(t, tmp_path / f"{i}.safetensors") for i, t in enumerate((whole, resumed))]
    assert ends[0].read_bytes() == ends[1].read_bytes()  # memories too
    alone = build(1).fit(tasks, 5)
    assert (alone.phi[0] - whole.phi[1]).abs().max() < 1e-12
    assert (alone.eta[0] - whole.eta[1]).abs().max() < 1e-12


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_adaptation_takes_the_learned_step(rule):
    tasks = pictures(queries=1)
    trainer = MetaTrainer(pictured(), SGD(), similarity=rule, meta_batch=2).fit(tasks, 2)
    X, y = tasks.inputs[:6], torch.tensor([0, 1, 2, 0, 1, 2])
    module = trainer.trained()
    value = cross_entropy(module(X)[None], y[None])[0]
    layout, gradient = Layout.of(module), torch.autograd.grad(value, list(module.parameters()))
    gradient = torch.cat([g.flatten() for g in gradient])
    found = layout.flat(adapt(trainer, X, y, steps=1))
    assert (found - (layout.flat(module) - trainer.eta[0] * gradient)).abs().max() < 1e-12
    judged = evaluate(trainer, tasks, 3, protocol="inductive", count=4, what="loss")
    scores = [
        evaluate(trainer, tasks, 3, protocol="inductive", count=1, start=i, what="loss").loss
        for i in range(4)
    ]
    assert judged.loss == pytest.approx(np.mean(scores), rel=1e-12)


def test_frozen_parameters_stay_and_the_others_learn():
    """As a network that has no bias, and a loss that adds it."""
    tasks, held = regressions(), linear().bias.detach().clone()

    def trained(net, loss):
        return MetaTrainer(net, SGD(), similarity=RULES[0], meta_batch=2, loss=loss).fit(tasks, 4)

    net, bare = linear(), linear()
    net.bias.requires_grad_(False)
    bare.bias = None
    fixed = trained(net, squared_error)
    free = trained(bare, lambda outputs, targets: squared_error(outputs + held, targets))
    assert torch.equal(fixed.phi[0, 4:], held)
    assert (fixed.phi[0, :4] - free.phi[0]).abs().max() < 1e-12
    assert (fixed.eta[0, :4] - free.eta[0]).abs().max() < 1e-12


def test_known_steps_are_taken():
    """A number, or one for every parameter, which Adam can be given too."""
    tasks, steps = regressions(), (0.01, 0.02, 0.03, 0.04, 0.05)
    number, each, fixed = (
        MetaTrainer(linear(), within, similarity=rule, meta_batch=2, loss=squared_error)
        for within, rule in (
            (SGD(), fmrl.KnownStep(0.02)), (SGD(), fmrl.KnownStep((0.02,) * 5)), (SGD(0.02), None),
        )
    )  # fmt: skip
    for trainer in (number, each):
        assert torch.equal(trainer.fit(tasks, 3).phi, fixed.fit(tasks, 3).phi)
    trainer = MetaTrainer(
        [linear(0), linear(1)], Adam(None), similarity=fmrl.KnownStep(steps), loss=squared_error
    )
    start = trainer.phi
    moved = (trainer.fit(tasks, 1).phi - start).abs().mean(0)
    assert trainer.eta.tolist() == [list(steps)] * 2 and moved[4] > 2 * moved[0]


def test_a_long_run_observes_the_rounds_of_the_task():
    rule, tasks = RULES[0], regressions()
    options = {"similarity": rule, "meta_batch": 1, "loss": squared_error}
    played = [
        MetaTrainer(linear(), SGD(), update, LastUpdate(), **options).fit(tasks, 1)
        for update in (FLIOnline(), LongRun(9))
    ]
    short, long = (trainer.state.similarity for trainer in played)
    assert torch.allclose(short[2], long[2], rtol=1e-12) and not torch.equal(short[1], long[1])


@pytest.mark.parametrize(
    ("within", "rule", "says"),
    [
        (Adam(None), PerCoordinate(0.1), r"which Adam rescales; use SGD\(\)"),
        (Adam(None), Isotropic(0.1), r"which Adam rescales; use SGD\(\)"),
        (Adam(None), MetaSGD(0.1), r"which Adam rescales; use SGD\(\)"),
        (DoG(), Isotropic(0.1), r"which DoG rescales; use SGD\(\)"),
        (DoG(), fmrl.KnownStep(0.1), "which DoG rescales"),
        (DoG(), None, r"DoG\(step=None\) has no step"),
        (Fading(), PerCoordinate(0.1), "is for test tasks; train with SGD"),
        (SGD(), fmrl.FullMatrix(0.1), "a step for every parameter; use PerCoordinate"),
        (SGD(), fmrl.LowRank(2, 0.1), "a step for every parameter; use PerCoordinate"),
        (SGD(), fmrl.Covariance(), "a step for every parameter; use PerCoordinate"),
    ],
)
def test_what_a_network_cannot_learn_is_refused(within, rule, says):
    with pytest.raises(FMRLError, match=says):
        MetaTrainer(linear(), within, similarity=rule)


def test_ranks_share_a_number_and_refuse_a_vector():
    with pytest.raises(FMRLError, match=r"PerCoordinate\(.*\) asks where"):
        MetaTrainer(linear(), SGD(), similarity=RULES[0], ranks=Ranks())
    tasks = regressions()
    options = {"similarity": RULES[1], "meta_batch": 3, "loss": squared_error}
    one, none = (
        MetaTrainer(linear(), SGD(), ranks=ranks, **options).fit(tasks, 4)
        for ranks in (Ranks(), None)
    )
    assert (one.phi - none.phi).abs().max() < 1e-13 and torch.allclose(one.eta, none.eta)


def gradient_of(layout, net, theta, X, y, loss=cross_entropy):
    module = layout.module(net, theta)
    value = loss(module(X)[None], y[None])[0]
    parts = torch.autograd.grad(value, list(module.parameters()))
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_fading_step_is_aruba_plus_plus_written_out(rule, weight):
    """√(b/(g + weight·Σ∇²)) with the gradients before this one; also where theta is kept in
    another order than the module's.
    """
    tasks = pictures(queries=1)
    trainer = MetaTrainer(pictured(), SGD(), similarity=rule, meta_batch=2).fit(tasks, 3)
    assert trainer.order is not None
    net = trainer.trained()
    layout, (_, b, g, _) = Layout.of(net), trainer.state.similarity
    b, g = (trainer._from_loop(v)[0] for v in (b, g))
    X, y = tasks.inputs[:6], torch.tensor([0, 1, 2, 0, 1, 2])
    theta, met = layout.flat(net), torch.zeros_like(g)
    for _ in range(4):
        gradient = gradient_of(layout, net, theta, X, y)
        theta = theta - torch.sqrt(b / (g + weight * met)) * gradient
        met = met + (gradient**2 if b.ndim else (gradient**2).sum())
    found = layout.flat(adapt(trainer, X, y, steps=4, within=Fading(weight)))
    assert (found - theta).abs().max() < 1e-12
    plain = layout.flat(adapt(trainer, X, y, steps=4))
    assert ((found - plain).abs().max() < 1e-12) == (weight == 0)
    judge = {"protocol": "inductive", "count": 4, "what": "loss"}
    judged = evaluate(trainer, tasks, 3, within=Fading(weight), **judge)
    usual = evaluate(trainer, tasks, 3, **judge)  # from a loop of its own
    assert torch.allclose(judged.tasks, usual.tasks) == (weight == 0)


def test_a_fading_step_needs_what_aruba_has_added_up():
    X, y = np.eye(4), [0.0, 1.0, 0.0, 1.0]
    for learner in (linear(), MetaTrainer(linear(), SGD(0.1), loss=squared_error)):
        with pytest.raises(FMRLError, match=r"Isotropic or PerCoordinate|is for test tasks"):
            adapt(learner, X, y, 1, within=Fading())
    with pytest.raises(FMRLError, match="weight must be"):
        Fading(-1.0)


@pytest.mark.parametrize("rule", [None, AverageDeviation(first=0.3)], ids=repr)
def test_distance_over_gradients_written_out(rule):
    """The first radius is given, or 2/√(m+1) times the guess; D is learned from where tasks end."""
    tasks, net = regressions(), linear()
    within = DoG(0.3 * 0.8**0.5 if rule is None else None)
    trainer = MetaTrainer(
        net, within, meta=Interpolate(0.5, 0.5, 1), similarity=rule, meta_batch=1,
        loss=squared_error,
    ).fit(tasks, 6)  # fmt: skip
    layout = Layout.of(net)
    phi, D, far = layout.flat(net), 0.3, []
    index, label = tasks.draw(0, 6)
    for t in range(6):
        theta, met, radius = phi, 0.0, 0.8**0.5 * D  # of four steps
        for s in range(tasks.steps):
            X, y = tasks.inputs[index[t, s]], label[t, s]
            gradient = gradient_of(layout, net, theta, X, y, squared_error)
            met, radius = met + gradient @ gradient, max(radius, (theta - phi).norm())
            theta = theta - radius / met**0.5 * gradient
        far.append(float((theta - phi) @ (theta - phi)) / 2)
        D = D if rule is None else np.mean(far) ** 0.5
        phi = phi + 0.5 * (theta - phi)
    assert (trainer.phi[0] - phi).abs().max() < 1e-12
    assert float(trainer.eta) == pytest.approx(0.8**0.5 * D, rel=1e-12)
    module = layout.flat(adapt(trainer, np.eye(4), [1.0, 0.0, 0.0, 0.0], 1))
    assert float((module - phi).norm()) == pytest.approx(0.8**0.5 * D, rel=1e-9)  # the radius


def test_gradients_that_have_nothing_in_common_leave_the_distance_as_it_is():
    m, D = 6, torch.tensor([[0.7]], dtype=torch.float64)
    theta, radius, held = torch.zeros(1, m, dtype=torch.float64), DoG().scaled(D, m), None
    for i in range(m):
        held = DoG().move(
            theta, 3.0 * torch.eye(m, dtype=torch.float64)[i : i + 1], radius, None, held
        )
    assert float(theta.norm()) == pytest.approx(2**0.5 * 0.7)


@pytest.mark.parametrize(
    ("within", "rule", "told"),
    [(SGD(0.05), PerCoordinate(0.1), True), (Adam(0.01), Doubling(0.1, 1.3, first=0.2), True),
     (DoG(0.1), AverageDeviation(0.1), True), (SGD(), PerCoordinate(0.1), False),
     (Adam(), Doubling(0.1, 1.3, first=0.2), False), (SGD(0.05), None, False)],
)  # fmt: skip
def test_a_step_that_a_rule_sets_aside_is_said(within, rule, told, recwarn):
    MetaTrainer(linear(), within, similarity=rule)
    assert told == any("its step is not used" in str(w.message) for w in recwarn)

"""The adversary: its losses are what the theorem allows, its optimum is exact, and nobody escapes
it.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fmrl
from fmrl.theory.adversary import LowerBound, figure, force, sandwich
from fmrl.theory.bounds import lower

ROUNDING = 1 - 1e-9


def random_agent(seed, dim, radius=1.0):
    rng = np.random.default_rng(seed)

    def play(t, past):
        step = rng.standard_normal(dim)
        return step * (radius * rng.random() / np.linalg.norm(step))

    return play


@given(
    dim=st.integers(3, 50),
    rounds=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    steep=st.floats(0.1, 10),
    diameter=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**16),
    within=st.sampled_from(["omd", "ogd", "ftrl"]),
    update=st.sampled_from(["fal", "fli-online", "fli-batch"]),
)
@settings(max_examples=60, deadline=None)
def test_forces_the_stated_regret_on_fmrl(dim, rounds, steep, diameter, seed, within, update):
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal(dim)
    centre *= 0.5 * rng.random() / np.linalg.norm(centre)
    adversary = LowerBound(diameter, steep, rounds, centre=centre, seed=seed)
    history = fmrl.run(fmrl.presets.paper(within, update), adversary, np.zeros(dim))
    assert (history.regret >= ROUNDING * diameter * steep * np.sqrt(rounds) / 4).all()
    assert (np.linalg.norm(history.optimum - centre, axis=1) <= diameter / 2 * (1 + 1e-9)).all()
    assert (
        history.regret <= history.bound * (1 + 1e-9)
    ).all()  # it is within the upper bound's assumptions, too


@pytest.mark.parametrize("dim", [3, 4, 50])
@pytest.mark.parametrize("rounds", [1, 2, 256])
def test_forces_random_agents_and_ours_at_the_ends_of_the_range(dim, rounds):
    adversary = LowerBound(0.6, [1.0, 3.0], rounds, dim=dim)
    forced = [
        force(random_agent(s, dim, radius), adversary) for s, radius in enumerate((0.1, 0.3, 5.0))
    ]
    assert min(f.ratio for f in forced) >= ROUNDING
    assert forced[0].ratio == pytest.approx(1.0)  # an agent that stays in Θ* pays no cone
    assert forced[2].ratio > 1.01
    for within in ("omd", "ogd", "ftrl"):
        for algo in (
            fmrl.presets.paper(within),
            fmrl.presets.single_task(within),
            fmrl.presets.strawman(within),
        ):
            assert fmrl.run(algo, adversary, np.zeros(dim)).tar >= ROUNDING * adversary.tar


def test_an_agent_that_sees_whole_functions_does_no_better():
    def leader(t, past):  # follows the leader on a cloud of points
        cloud = np.random.default_rng(t).uniform(-0.3, 0.3, (200, 3))
        total = sum((np.array([move.function(p) for p in cloud]) for move in past), np.zeros(200))
        return cloud[np.argmin(total)]

    forced = force(leader, LowerBound(0.5, 1.0, 8, tasks=3), fmrl.Ball(1.0))
    assert (forced.regret >= ROUNDING * forced.lower).all()


@given(seed=st.integers(0, 2**16), rounds=st.integers(1, 12), reach=st.floats(0.01, 3.0))
@settings(max_examples=40, deadline=None)
def test_losses_are_convex_lipschitz_and_gradients_are_theirs(seed, rounds, reach):
    rng = np.random.default_rng(seed)
    task = LowerBound(0.5, 2.0, rounds, dim=4, seed=seed)[0]
    game, functions, total = task.open(), [], np.zeros(4)
    for i in range(rounds):
        theta = reach * rng.standard_normal(4)
        loss, gradient = game.reveal(i, theta)
        linear = game.linear
        assert abs(linear @ theta) < 1e-12 and abs(linear @ total) < 1e-12 and loss >= -1e-12
        total = total + linear
        functions.append(lambda p, linear=linear: linear @ p + game.cone(p))
        other = reach * rng.standard_normal(4)
        assert functions[-1](other) >= loss + gradient @ (other - theta) - 1e-9
        assert abs(functions[-1](other) - loss) <= 2.0 * np.linalg.norm(other - theta) * (1 + 1e-9)
    best = game.hindsight(fmrl.Ball(1.0))
    assert sum(f(best.theta) for f in functions) == pytest.approx(best.value, abs=1e-12)
    for point in rng.uniform(-1, 1, (200, 4)):
        assert sum(f(point) for f in functions) >= best.value - 1e-12


def test_a_cone_from_the_printed_distance_would_let_the_optimum_out():
    """With the cone at D*, the point at distance D* beats every point of Θ*: the paper's
    misprint, in numbers. Ours begins at D*/2.
    """
    diameter, m = 0.5, 16
    game = LowerBound(diameter, 1.0, m)[0].open()
    for i in range(m):
        game.reveal(i, np.zeros(3))
    best = -game.total / np.linalg.norm(game.total)

    def cost(r, start):
        assert game.cone(r * best) == pytest.approx(max(0.0, r - diameter / 2) / 2)
        return r * best @ game.total + m * max(0.0, r - start) / 2

    inside = cost(diameter / 2, diameter / 2)
    assert game.hindsight(fmrl.Ball(1.0)).value == pytest.approx(inside)
    assert cost(diameter, diameter) < inside < cost(diameter, diameter / 2)


@given(
    seed=st.integers(0, 2**16),
    rounds=st.integers(1, 30),
    eta=st.floats(0.01, 20),
    radius=st.floats(0.6, 2.0),
    off=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_ftrl_leaders_are_minimisers(seed, rounds, eta, radius, off):
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal(3) * 0.1 if off else np.zeros(3)
    domain = fmrl.Ball(radius, tuple(0.05 * rng.standard_normal(3)) if off else 0.0)
    game = LowerBound(0.2, 1.0, rounds, centre=centre, seed=seed)[0].open()
    phi = domain.project(rng.standard_normal(3))
    leader = game.leaders(domain, phi, np.array(eta))
    for i in range(rounds):
        game.reveal(i, domain.project(rng.standard_normal(3)))
    best = leader(rounds)

    def objective(p):
        return np.sum((p - phi) ** 2) / 2 + eta * (
            game.total @ (p - centre) + rounds * game.cone(p)
        )

    assert domain.contains(best, 1e-9)
    for scale in (1.0, 0.1, 1e-3):
        for point in best + scale * rng.standard_normal((30, 3)):
            assert objective(domain.project(point)) >= objective(best) - 1e-9 * (
                1 + abs(objective(best))
            )


def test_stacked_duels_are_separate_and_torch_stays_torch():
    torch = pytest.importorskip("torch")
    task = LowerBound(0.5, 1.0, 5, dim=3)[0]
    phi = np.stack([np.zeros(3), np.full(3, 0.2)])
    played = fmrl.play(fmrl.OMD(), task.open(), fmrl.Ball(1.0), phi, np.full(2, 0.1))
    alone = fmrl.play(fmrl.OMD(), task.open(), fmrl.Ball(1.0), phi[0], np.asarray(0.1))
    np.testing.assert_allclose(played.losses[0], alone.losses, atol=1e-14)
    adversary = LowerBound(0.5, 1.0, 5, tasks=2, centre=torch.zeros(3, dtype=torch.float64))
    for within in ("omd", "ogd", "ftrl"):
        history = fmrl.run(
            fmrl.presets.paper(within), adversary, torch.zeros(3, dtype=torch.float64)
        )
        assert (
            isinstance(history.optimum, torch.Tensor)
            and float(history.tar) >= ROUNDING * adversary.tar
        )


def test_says_what_is_wrong():
    with pytest.raises(fmrl.FMRLError, match="three dimensions"):
        LowerBound(0.5, dim=2)
    with pytest.raises(fmrl.FMRLError, match="positive integers"):
        LowerBound(0.5, 1.0, 0)
    with pytest.raises(fmrl.FMRLError, match="disagree"):
        LowerBound(0.5, [1.0, 2.0], [4, 4, 4])
    with pytest.raises(fmrl.FMRLError, match="or more"):
        fmrl.run(fmrl.presets.paper(domain=fmrl.Ball(0.5)), LowerBound(1.2), np.zeros(3))
    with pytest.raises(fmrl.FMRLError, match="l2 geometry"):
        fmrl.run(fmrl.presets.paper(domain=fmrl.Simplex()), LowerBound(0.1), np.full(3, 1 / 3))
    with pytest.raises(fmrl.FMRLError, match="Ball or Euclidean"):
        fmrl.run(
            fmrl.presets.paper("ftrl", domain=fmrl.Box(-1, 1)), LowerBound(0.1, 1.0, 2), np.zeros(3)
        )
    with pytest.raises(fmrl.FMRLError, match="task 0, round 0: the agent"):
        force(lambda t, past: np.full(3, 9.0), LowerBound(0.1), fmrl.Ball(1.0))
    with pytest.raises(fmrl.FMRLError, match="only 0 of 16"):
        LowerBound(0.1)[0].open().hindsight(fmrl.Ball(1.0))


def test_upper_and_lower_bound_are_within_a_constant_in_the_figure():
    record = sandwich([1, 9, 25], tasks=4, dim=5)
    for name in ("omd", "ogd", "ftrl"):
        assert all(
            low * ROUNDING <= r <= up
            for low, r, up in zip(record["lower"], record[name], record["upper"], strict=True)
        )
    assert record["lower"][1] == lower(0.5, 1.0, 9).total == pytest.approx(0.375)
    picture = figure(record)
    assert len(picture.axes[0].lines) == 5
    assert (
        fmrl.run(
            fmrl.presets.paper(domain=fmrl.Box(-1, 1)), LowerBound(0.1, 1.0, 4), np.zeros(3)
        ).tar
        >= 0.05 * ROUNDING
    )


@pytest.mark.parametrize("rule", [fmrl.PerCoordinate(0.1), fmrl.KnownStep([0.1, 0.2, 0.3])])
def test_leaders_in_a_metric_are_refused_by_name(rule):
    """They raised a TypeError; descent in a metric is played, and forced."""
    adversary = LowerBound(0.5, 1.0, 4, tasks=3)
    with pytest.raises(fmrl.FMRLError, match="where eta is a number, not a metric; use OMD"):
        fmrl.run(fmrl.FMRL(within=fmrl.FTRL(), similarity=rule), adversary, np.zeros(3))
    history = fmrl.run(fmrl.FMRL(similarity=rule), adversary, np.zeros(3))
    assert history.tar >= adversary.tar * ROUNDING and (history.regret <= history.bound).all()

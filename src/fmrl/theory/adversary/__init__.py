"""The lower-bound adversary: tasks that answer every action, and force regret on any agent whatever
it does.

In round i of task t the adversary sees the action θ_i and answers with

    ℓ_i(θ) = ⟨∇_i, θ − phi*⟩ + c(θ),     c(θ) = (G/2)·max(0, ‖θ − phi*‖₂ − D*/2),
    ‖∇_i‖ = G/2,     ∇_i ⊥ θ_i − phi*,     ∇_i ⊥ ∇_1 + … + ∇_{i−1}          (such a ∇_i exists in three dimensions or more).

The agent pays c(θ_i) ≥ 0. The gradients add up at right angles, so S = Σ∇_i has norm (G/2)·√m, and
the best fixed action is phi* − (D*/2)·S/‖S‖ with value −(D*/2)·‖S‖: regret at least D*·G·√m/4,
every time (Theorem app:lower).

The cone starts at distance D*/2. The paper prints D*, but Θ* is the ball of *diameter* D*: a cone
that starts at D* leaves the losses linear up to there, the best fixed action is then at distance D*
from phi*, and lies outside Θ*. Outside the ball of radius D*/2 the sum has slope at least m·G/2 −
‖S‖ = (m − √m)·G/2 ≥ 0 along every ray from phi*, so the optimum is inside. With m = 1 that slope is
0 on one ray, whose points are all optimal; `hindsight` answers with the one in Θ*."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fmrl.core import presets
from fmrl.core.arrays import Array, as_float, dot, namespace
from fmrl.core.domains import Ball, Domain, Euclidean
from fmrl.core.run import run
from fmrl.errors import FMRLError
from fmrl.theory.adversary.duel import Duel, Opponent, fits
from fmrl.theory.bounds import lower


class LowerBound(Sequence):
    """The adversary as a sequence of reactive tasks, for `fmrl.run` or any agent that plays
    (`force`).

    diameter: D* of Θ*, the l2 ball about ``centre`` that holds every optimum. lipschitz, rounds:
    one number, or one per task.
    tasks: how many, if both are single numbers. centre: phi*, flat [d]; by default the origin of
    ``dim`` dimensions, d ≥ 3. Arrays live where ``centre`` lives. seed: the adversary's free
    choices.

    >>> import numpy as np, fmrl
    >>> adversary = LowerBound(diameter=0.5, lipschitz=1.0, rounds=16, tasks=10, dim=3)
    >>> history = fmrl.run(fmrl.presets.paper(), adversary, phi=np.zeros(3))
    >>> adversary.tar, round(float(history.tar), 4)
    (0.5, 0.5018)
    """

    def __init__(
        self, diameter, lipschitz=1.0, rounds=16, *, tasks=None, centre=None, dim=3, seed=0
    ):
        self.centre = as_float(np.zeros(dim) if centre is None else centre, "centre")
        if self.centre.ndim != 1 or self.centre.shape[0] < 3:
            raise FMRLError(
                f"the adversary needs at least three dimensions, not {tuple(self.centre.shape)}",
                fix="use dim ≥ 3",
            )
        if not (diameter > 0 and math.isfinite(diameter)):
            raise FMRLError(f"diameter must be positive and finite, not {diameter}")
        lengths = {np.size(a) for a in (lipschitz, rounds) if np.ndim(a)} | (
            {tasks} if tasks is not None else set()
        )
        if len(lengths) > 1 or any(np.ndim(a) > 1 for a in (lipschitz, rounds)):
            raise FMRLError(
                f"lipschitz, rounds and tasks disagree on how many tasks there are ({sorted(lengths)})"
            )
        count = int(lengths.pop()) if lengths else 1
        self.lipschitz = np.broadcast_to(np.asarray(lipschitz, float), (count,))
        self.rounds = np.broadcast_to(np.asarray(rounds), (count,))
        if count < 1 or self.rounds.dtype.kind not in "iu" or self.rounds.min() < 1:
            raise FMRLError("rounds must be positive integers, for at least one task")
        if not (np.isfinite(self.lipschitz).all() and self.lipschitz.min() > 0):
            raise FMRLError("lipschitz must be positive and finite")
        self.diameter, self.seed = float(diameter), seed

    def __repr__(self) -> str:
        return (
            f"LowerBound(diameter={self.diameter}, tasks={len(self)}, dim={self.centre.shape[0]})"
        )

    def __len__(self) -> int:
        return self.rounds.size

    def __getitem__(self, t: int) -> Opponent:
        if not isinstance(t, (int, np.integer)):
            raise FMRLError(f"tasks are counted by integers, not {t!r}")
        t = range(len(self))[t]  # negative t, and IndexError at the end
        return Opponent(
            self.centre,
            self.diameter / 2,
            float(self.lipschitz[t]),
            int(self.rounds[t]),
            (self.seed, t),
        )

    def __iter__(self) -> Iterator[Opponent]:
        return (self[t] for t in range(len(self)))

    @property
    def tar(self) -> float:
        """The task-averaged regret that every agent must suffer."""
        return lower(self.diameter, self.lipschitz, self.rounds).total


class Move(NamedTuple):
    """One finished round, as the agent may see it."""

    theta: Array  # [d] what was played
    loss: Array  # [] what it cost
    gradient: Array  # [d] a subgradient there
    function: Callable[[Array], Array]  # the whole loss of that round


class Forced(NamedTuple):
    """What the adversary made an agent suffer."""

    regret: np.ndarray  # [T]
    lower: np.ndarray  # [T] D*·G_t·√m_t/4
    optima: Array  # [T, d]

    @property
    def tar(self) -> float:
        """Task-averaged regret."""
        return float(self.regret.mean())

    @property
    def ratio(self) -> float:
        """TAR over the lower bound: at least 1."""
        return self.tar / float(self.lower.mean())


def force(
    agent: Callable[[int, list[Move]], Array], adversary: LowerBound, domain: Domain | None = None
) -> Forced:
    """Play ``agent`` against the adversary. ``agent(t, past)`` returns its action [d] given this
    task's finished rounds.

    >>> import numpy as np
    >>> still = force(lambda t, past: np.zeros(3), LowerBound(0.5, 1.0, 16, tasks=2))
    >>> round(still.tar, 6), round(still.ratio, 6)
    (0.5, 1.0)
    """
    domain = Euclidean() if domain is None else domain
    regret, optima = [], []
    for t, task in enumerate(adversary):
        game, past, suffered = task.open(), [], 0.0
        fits(task, domain)
        for i in range(game.length):
            theta = as_float(agent(t, past), "the action")
            if tuple(theta.shape) != (game.dim,):
                raise FMRLError(
                    f"the agent played shape {tuple(theta.shape)}, not ({game.dim},)",
                    task=t,
                    round=i,
                )
            if not bool(domain.contains(theta)):
                raise FMRLError(
                    f"the agent's action lies outside {domain!r}", task=t, round=i, fix="project it"
                )
            loss, gradient = game.reveal(i, theta)
            suffered += float(loss)
            past.append(Move(theta, loss, gradient, _function(game, game.linear)))
        best = game.hindsight(domain)
        regret.append(suffered - float(best.value))
        optima.append(best.theta)
    bounds = adversary.diameter / 4 * adversary.lipschitz * np.sqrt(adversary.rounds)
    return Forced(np.asarray(regret), bounds, namespace(*optima).stack(optima))


def _function(game: Duel, linear: Array) -> Callable[[Array], Array]:
    return lambda theta: dot(linear, theta - game.task.centre) + game.cone(theta)


def sandwich(
    rounds: Sequence[int] = (1, 4, 16, 64, 256),
    *,
    tasks: int = 20,
    dim: int = 10,
    diameter: float = 0.5,
) -> dict:
    """Measured TAR of Algorithm 2 between the two theorems, for several m: a record to draw or to
    save (G = 1, unit ball).

    ``upper`` is Theorem A.1 for an agent that starts at phi* and knows D*: sqrt(B_R) is at most
    D*/√8 there, so its regret is at most 2·(D*/√8)·G·√m = 2√2 times the lower bound. ``omd``,
    ``ogd`` and ``ftrl`` know neither and learn both.

    >>> record = sandwich([16], tasks=5, dim=3)
    >>> record["lower"], [round(record[name][0], 3) for name in ("omd", "ftrl", "upper")]
    ([0.5], [0.504, 0.5, 1.414])
    """
    record: dict = {
        "rounds": [int(m) for m in rounds],
        "tasks": tasks,
        "dim": dim,
        "diameter": diameter,
        "seed": 0,
    }
    record |= {name: [] for name in ("lower", "omd", "ogd", "ftrl", "upper")}
    for m in record["rounds"]:
        adversary = LowerBound(diameter, 1.0, m, tasks=tasks, dim=dim)
        record["lower"].append(adversary.tar)
        record["upper"].append(2 * math.sqrt(2) * adversary.tar)
        for within in ("omd", "ogd", "ftrl"):
            history = run(
                presets.paper(within, domain=Ball(1.0)), adversary, np.zeros(dim), keep="scalars"
            )
            record[within].append(float(history.tar))
    return record


def figure(record: dict) -> Any:
    """Draw what `sandwich` measured: a matplotlib Figure."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(5, 3.6), layout="constrained")
    axes = picture.add_subplot(
        xscale="log", yscale="log", xlabel="rounds a task, m", ylabel="task-averaged regret"
    )
    m = record["rounds"]
    axes.fill_between(m, record["lower"], record["upper"], color="0.92")
    axes.plot(m, record["upper"], "k--", lw=1, label="upper bound, phi* and D* known")
    for name, marker in (("omd", "o"), ("ogd", "x"), ("ftrl", "^")):
        axes.plot(
            m,
            record[name],
            marker,
            ms=6,
            fillstyle="none",
            label=f"FMRL with {name.upper()}, measured",
        )
    axes.plot(m, record["lower"], "k-", lw=1, label="lower bound, any agent")
    axes.set_title(
        f"the adversary: D* = {record['diameter']:g}, d = {record['dim']}, T = {record['tasks']}",
        fontsize=9,
    )
    axes.legend(fontsize=8)
    return picture

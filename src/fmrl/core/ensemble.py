"""Several compositions at once, playing the weighted mean of their actions: `Hedge` weighs whole
compositions by what they have cost over the tasks, `Centres` weighs several starts by what they
cost in the rounds of the task at hand.

Losses are convex, so the mean action costs at most the mean of the costs. Weights are those of
`fmrl.core.adahedge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fmrl.core.adahedge import Weights
from fmrl.core.algorithm import FMRL, Round
from fmrl.core.arrays import Array, as_float, device, dot, full, namespace, stacked
from fmrl.core.checks import listed, positive_or_none, whole
from fmrl.core.meta_level import State, check_state, looked, refuse_nan, refuse_no_state
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End, MetaUpdate
from fmrl.core.rules.private import promises
from fmrl.core.samples import identify
from fmrl.core.solve import Solution
from fmrl.core.tasks import Rounds, opened
from fmrl.core.values import Value, text_of
from fmrl.errors import FMRLError


class Ensemble(Value):
    """Members that play together. Its State holds theirs: ``meta`` is a tuple of their states,
    ``similarity`` what weighs them, phi and guess their weighted means.

    What a task teaches depends on how all of them played it, so tasks come one after another:
    `run` and Ray solve many at once and then play them in turn.
    """

    meta = similarity = None  # each member has its own
    exact = scanned = False  # where phi goes does not follow from the optima alone

    @property
    def members(self) -> tuple[FMRL, ...]:
        """The compositions, one for each weight."""
        raise NotImplementedError

    @property
    def domain(self) -> Any:
        """Where actions lie."""
        return self.members[0].domain

    def init(self, phi: Array) -> State:
        """The state before the first task, from phi [d]."""
        if (phi := as_float(phi, "phi")).ndim > 1:  # runs side by side
            return stacked([self.init(phi[run, ...]) for run in range(phi.shape[0])])
        begun = tuple(member.init(phi) for member in self.members)
        return self._joined(0, begun, self._begin(begun))

    def check(self, state: State) -> None:
        """Refuse a state that another composition made, or that is damaged.

        Args:
            state: What shall go on.
        """
        check_state(self, state)
        for member, each in zip(self.members, state.meta, strict=True):
            member.check(State(*each))

    def step(self, state: State, task: Any) -> tuple[State, Round]:
        """Play one task with all members.

        Args:
            state: What `init` or the step before left.
            task: A Task of rows, whose losses every member can look up.
        """
        game = opened(task)
        state = self.starting(state, game)
        state, round = self.step_solved(state, game, game.hindsight(self.domain))
        refuse_nan(round, state)
        return state, round

    def adapt(self, state: State, task: Any) -> Array:
        """The mean action after the rounds of a task, [d]. The state stays as it is.

        Args:
            state: Where the task starts.
            task: The rows there are of it.
        """
        game = opened(task)
        state, xp = self.starting(state, game), namespace(state.phi)
        played = [
            self._member(member, own, game, state.tasks)[-1]
            for member, own in zip(self.members, state.meta, strict=True)
        ]
        losses, last = (xp.stack([getattr(p, n) for p in played]) for n in ("losses", "last"))
        return xp.sum(self._shares(state.similarity, losses)[:, -1, None] * last, axis=0)

    def starting(self, state: State, game: Any) -> State:
        """The state as it is, for a task of rows; no other can be played."""
        refuse_no_state(state)
        if not isinstance(game, Rounds):
            what = "an ensemble plays tasks of rows, whose losses every member can look up"
            raise FMRLError(what, fix="give Task(X, y, loss=…)", task=state.tasks)
        return state

    def sigma(self, phi: Array, game: Any, task: int) -> Array:
        """That of the first member: for a record, and to see that the task fits phi."""
        return self.members[0].sigma(phi, game, task)

    def step_solved(self, state: State, game: Rounds, best: Solution) -> tuple[State, Round]:
        """Play one opened task whose optimum is known."""
        xp, owns, found, ends, etas = namespace(state.phi), [], [], [], []
        for member, own in zip(self.members, state.meta, strict=True):
            own, sigma, eta, played = self._member(member, own, game, state.tasks)
            theta = member.update.vector(played, best)
            round = member._round(own, game, played, best, theta, sigma, eta)
            owns.append(own)
            found.append((played.actions, played.losses))
            ends.append(End(theta, best.theta, sigma, round.seen, looked(member, game.X[0, :])))
            etas.append(round)
        actions, losses = (xp.stack(column) for column in zip(*found, strict=True))
        shares = self._shares(state.similarity, losses)[:, :-1]
        memory, chosen = self._learned(state.similarity, losses, ends, owns)
        # [K, m] shares of every round; the mean action of each
        mean = xp.sum(shares[..., None] * actions, axis=0)
        suffered = xp.stack([game.reveal(i, mean[i, :])[0] for i in range(game.length)])
        advanced = [
            member.advance(own, end) if k in chosen else own
            for k, (member, own, end) in enumerate(zip(self.members, owns, ends, strict=True))
        ]
        # The record: what was suffered, and the rest as the members had it, by their first weights.
        first = shares[:, 0]

        def weighed(name: str) -> Array:
            values = xp.stack([getattr(r, name) for r in etas])  # infinite ones may have no weight
            return xp.sum(first * xp.where(first > 0, values, xp.zeros_like(values)))

        names = ("guess", "eta", "divergence", "deviation", "lipschitz")
        theta = xp.sum(first[:, None] * xp.stack([end.theta for end in ends]), axis=0)
        regret = xp.sum(suffered) - best.value
        record = {name: weighed(name) for name in names} | {"theta": theta, "losses": suffered}
        whole = {"regret": regret, "gap": best.gap, "optimum": best.theta, "rounds": game.rounds}
        whole |= identify(game, regret)
        advanced = self._settled(tuple(advanced), memory)
        return self._joined(state.tasks + 1, advanced, memory), Round(**record, **whole)

    def _member(self, member: FMRL, own: Any, game: Rounds, task: int) -> tuple:
        """Where a member starts, its weight and step, and how it plays."""
        own = member.starting(State(*own), game)
        return own, *member.play_rounds(own._replace(tasks=task), game, record=True)

    def _joined(self, tasks: int, owns: tuple[State, ...], memory: Any) -> State:
        xp, share = namespace(owns[0].phi), self._first(memory)
        phi = xp.sum(share[:, None] * xp.stack([own.phi for own in owns]), axis=0)
        steps = [o.guess.mean if isinstance(o.guess, Metric) else o.guess for o in owns]
        return State(tasks, phi, xp.sum(share * xp.stack(steps)), owns, memory, text_of(self))

    def _settled(self, owns: tuple[State, ...], memory: Any) -> tuple[State, ...]:
        """The members' states after a task, once more."""
        return owns

    def _begin(self, begun: tuple[State, ...]) -> Any:
        raise NotImplementedError

    def _first(self, memory: Any) -> Array:
        """The shares with which the next task begins, [K]."""
        raise NotImplementedError

    def _shares(self, memory: Any, losses: Array) -> Array:
        """Shares in every round and after the last, [K, m + 1], given the losses [K, m]."""
        raise NotImplementedError

    def _learned(self, memory: Any, losses: Array, ends: list[End], owns: list[State]) -> Any:
        """The memory after a task, and who learns from it."""
        raise NotImplementedError


def refuse_private(*compositions: FMRL) -> None:
    """Refuse members that promise privacy: what weighs them is read from the losses themselves."""
    if any(promises(c) for c in compositions):
        what = "an ensemble weighs its members by losses, and no privacy budget covers that"
        raise FMRLError(what, fix="run the private composition by itself")


@dataclass(frozen=True)
class Hedge(Ensemble):
    """Plays the mean action of whole compositions, weighed by what each has cost over the tasks so
    far: never much worse than the best of them.

    TAR ≤ min_k TAR_k + 2Δ/T, with AdaHedge's Δ (`fmrl.bounds.hedge`). "Do not
    move" (``KnownStep(0.0)``), single-task learning and others can be among them, which no rule
    that minimises B/eta + eta·G²·m could choose.

    Args:
        compositions: Two or more `FMRL` on the same domain.
        rate: A fixed rate of the weights; by default AdaHedge's, which needs no setting.

    >>> import numpy as np, fmrl
    >>> still = fmrl.FMRL(similarity=fmrl.KnownStep(0.0))
    >>> tasks = [fmrl.Task([[1.0]], [y], loss=fmrl.Squared()) for y in (0.5, 0.4, 0.6, 0.5)]
    >>> round(float(fmrl.run(Hedge([fmrl.FMRL(), still]), tasks).tar), 4)
    0.0353
    """

    compositions: tuple[FMRL, ...]
    rate: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "compositions", listed(self.compositions))
        given = self.compositions
        if len(given) < 2 or not all(isinstance(c, FMRL) for c in given):
            raise FMRLError("Hedge takes two or more compositions", fix="give [FMRL(…), FMRL(…)]")
        refuse_private(*given)
        if any(c.domain != given[0].domain for c in given):
            raise FMRLError("the compositions of a Hedge need the same domain")
        positive_or_none(rate=self.rate)

    @property
    def members(self):
        """The compositions."""
        return self.compositions

    def _begin(self, begun):
        return tuple(Weights.begin(len(begun), begun[0].phi))

    def _first(self, memory):
        return Weights(*memory).shares(self.rate)

    def _shares(self, memory, losses):
        return self._first(memory)[:, None] + full((1, losses.shape[-1] + 1), 0.0, losses)

    def _learned(self, memory, losses, ends, owns):
        after = Weights(*memory).after(namespace(losses).sum(losses, axis=-1), self.rate)
        return tuple(after), range(len(owns))


@dataclass(frozen=True)
class Centres(Ensemble):
    """Several starts for tasks around several centres: a new task is played from each, and the
    rounds tell which fits.

    Inside a task the starts are weighed by AdaHedge on the losses of its rounds, from shares that
    are how often each was chosen before. Afterwards the task belongs to the centre nearest to its
    update vector, and only that one moves. The first tasks (eight for each centre) seed the
    centres, by k-means. For centres that stand still the cost of choosing among them is bounded;
    for moving them no guarantee is known.

    Args:
        k: How many centres.
        algo: The composition that is played from each.
    """

    k: int
    algo: FMRL

    def __post_init__(self):
        whole("k", self.k, least=2)
        if not isinstance(self.algo, FMRL):
            raise FMRLError("Centres needs a composition", fix="give Centres(k, FMRL(…))")
        if getattr(type(self.algo.meta), "look", MetaUpdate.look) is not MetaUpdate.look:
            what = f"Centres keeps no side information of its first tasks for {self.algo.meta!r}"
            raise FMRLError(what, fix="use FollowLeader(), or Conditional by itself")
        refuse_private(self.algo)

    @property
    def members(self):
        """The composition, once for each centre."""
        return (self.algo,) * self.k

    @property
    def seeds(self) -> int:
        """Tasks that are looked at before the centres part."""
        return 8 * self.k

    def _begin(self, begun):
        phi = begun[0].phi
        seeds = full((self.seeds, phi.shape[-1]), 0.0, phi), full((self.seeds,), 0.0, phi)
        # How often each was chosen, and one; the first update vectors with their weights.
        return full((self.k,), 1.0, phi), *seeds, 0

    def _first(self, memory):
        seen = memory[0]
        return seen / namespace(seen).sum(seen)

    def _shares(self, memory, losses):
        first, weights = self._first(memory), Weights.begin(self.k, losses)
        shares = [weights.shares(first=first)]
        for i in range(losses.shape[-1]):
            weights = weights.after(losses[:, i], first=first)
            shares.append(weights.shares(first=first))
        return namespace(losses).stack(shares, axis=-1)

    def _learned(self, memory, losses, ends, owns):
        (seen, thetas, sigmas, count), xp = memory, namespace(losses)
        if count < self.seeds:  # all alike: nothing to choose yet
            at = xp.arange(self.seeds, device=device(losses)) == count
            thetas = xp.where(at[:, None], ends[0].theta, thetas)
            sigmas = xp.where(at, ends[0].sigma, sigmas)
            return (seen, thetas, sigmas, count + 1), range(self.k)
        far = [self.domain.divergence(e.theta, o.phi) for e, o in zip(ends, owns, strict=True)]
        nearest = int(xp.argmin(xp.stack(far)))
        seen = seen + xp.astype(xp.arange(self.k, device=device(seen)) == nearest, seen.dtype)
        return (seen, thetas, sigmas, count + 1), (nearest,)

    def _settled(self, owns, memory):
        """After the last seed the centres part: each follows the seeds nearest to it."""
        _, thetas, sigmas, count = memory
        if count != self.seeds:
            return owns
        label, moved = kmeans(thetas, self.k)[1], []
        for k, own in enumerate(owns):
            phi, meta = self.algo.meta.init(self.domain, own.phi)
            for i in range(self.seeds):
                if int(label[i]) == k:
                    end = End(thetas[i, :], thetas[i, :], sigmas[i])
                    phi, meta = self.algo.meta.update(self.domain, phi, meta, end)
            moved.append(own._replace(phi=phi, meta=meta))
        return tuple(moved)


def kmeans(points: Array, k: int, steps: int = 50) -> tuple[Array, Array, float]:
    """Lloyd's algorithm from seeds that lie far apart: centres [k, d], labels [n], and the mean
    squared distance to the nearest centre.

    >>> import numpy as np
    >>> centres, labels, value = kmeans(np.array([[0.0], [0.2], [5.0], [5.2]]), 2)
    >>> centres.ravel(), labels, round(value, 3)
    (array([0.1, 5.1]), array([0, 0, 1, 1]), 0.01)
    """
    xp = namespace(points)
    middle = xp.mean(points, axis=0)
    chosen, inner = [], points - middle
    near = xp.sum(inner**2, axis=-1)
    for j in range(k):  # the farthest from those chosen; the mean itself does not count
        far = inner[int(xp.argmax(near)), :]
        chosen.append(far)
        distance = xp.sum((inner - far) ** 2, axis=-1)
        near = distance if j == 0 else xp.minimum(near, distance)
    centres, label = xp.stack(chosen), None
    for _ in range(steps):
        half = dot(centres, centres) / 2  # ½‖x − c‖² is this, less ⟨x, c⟩, and ½‖x‖²
        new = xp.argmin(half - xp.matmul(inner, xp.matrix_transpose(centres)), axis=-1)
        if label is not None and bool(xp.all(new == label)):
            break
        label = new
        member = xp.astype(
            label[:, None] == xp.arange(k, device=device(points)), points.dtype
        )  # [n, k]
        size = xp.sum(member, axis=0)[:, None]
        total = xp.matmul(xp.matrix_transpose(member), inner)
        mean = total / xp.maximum(size, full((), 1.0, size))
        centres = xp.where(size > 0, mean, centres)
    order = xp.argsort(centres[:, 0])
    centres = middle + xp.take(centres, order, axis=0)
    distance = xp.sum((points[:, None, :] - centres) ** 2, axis=-1)
    return centres, xp.argmin(distance, axis=-1), float(xp.mean(xp.min(distance, axis=-1)))

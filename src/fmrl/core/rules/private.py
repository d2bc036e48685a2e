"""Differential privacy: what a task gives away, hidden in noise of a counted size.

    Tree             phi is a noisy mean: no single task can be told from any other (task level)
    NoisyGradients   every gradient is clipped and noised: no single row of a task can be told from
                     any other (record level)

docs/privacy.md says in plain words what is promised and what is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from fmrl.core.arrays import Array, device, full, namespace, to_numpy
from fmrl.core.checks import positive, positive_or_none, whole
from fmrl.core.domains import Domain
from fmrl.core.privacy import (
    KEY,
    clipped,
    drawn,
    gaussian_noise,
    new_key,
    refuse_forks,
    tree_epsilon,
    tree_noise,
)  # fmt: skip
from fmrl.core.rules import meta as metas
from fmrl.core.rules import moving
from fmrl.core.rules.meta import MetaUpdate
from fmrl.core.rules.shape import KnownStep
from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known
from fmrl.core.rules.update import FLIBatch, FLIOnline
from fmrl.core.rules.within import OGD, OMD, Learner
from fmrl.core.samples import Samples
from fmrl.errors import FMRLError


def _budget(value: Any, most: float = 0.1) -> None:
    positive(epsilon=value.epsilon, delta=value.delta)
    if value.delta >= most:
        what = f"delta={value.delta} promises nothing: with that probability all may be given away"
        raise FMRLError(what, fix=f"give one far below {most:g}, e.g. 1e-6")


@dataclass(frozen=True)
class Tree(MetaUpdate):
    """A private running mean of the update vectors, by tree aggregation: all phi together are
    (epsilon, delta)-differentially private when one task is swapped for any other.

        phi_{t+1} = c + ( Σ_{s≤t} clip(θ_s − c) + Σ_{nodes of t} N(0, (noise·change)²·I) ) / t

    c is where the run starts. Nodes are the blocks of tasks in the binary form of t; a node keeps
    its noise. ``change`` is how far a swap can move a clipped vector: 2·radius, or the width of the
    domain. All tasks weigh alike: weights G·√m would be read from the data. What it costs is
    bounded by `fmrl.bounds.private`. Needs the extra ``private`` and R = ½‖·‖².

    The state of a run holds the sums and the key of the noise: publish phi, never the state.

    Args:
        epsilon: ε of the whole run.
        delta: δ of the whole run.
        tasks: How many tasks the budget is for; one more stops the run.
        radius: Update vectors are clipped to this distance from the start; by default the reach of
            the domain.
        runs: How many runs on the same tasks share the budget: orders, repetitions.
        seed: For tests alone: whoever knows it can take the noise away. By default the key comes
            from the operating system.

    >>> import numpy as np, fmrl
    >>> tree = Tree(epsilon=1.0, delta=1e-6, tasks=1000)
    >>> round(tree.noise, 2), round(tree.spent(100), 2)
    (13.36, 0.83)
    >>> fmrl.FMRL(meta=tree, similarity=fmrl.Known(0.5)).scanned
    True
    """

    epsilon: float
    delta: float
    tasks: int
    radius: float | None = None
    runs: int = 1
    seed: int | None = None
    apart: ClassVar[bool] = True  # every task of a meta-batch is a leaf of its own

    def __post_init__(self):
        for name in ("tasks", "runs"):
            whole(f"Tree: {name}", getattr(self, name))
        _budget(self, min(0.1, 1 / self.tasks))  # to publish one task in T as it is has delta 1/T
        positive_or_none(radius=self.radius)

    @property
    def noise(self) -> float:
        """The noise of a node over the change of a swap."""
        return tree_noise(self.epsilon, self.delta, self.tasks, self.runs)

    def spent(self, tasks: int) -> float:
        """ε after so many tasks, at the same delta; all ``runs`` counted.

        Args:
            tasks: Played so far.
        """
        return tree_epsilon(self.noise, self.delta, tasks, self.runs) if tasks else 0.0

    def reach(self, domain: Domain, start: Array) -> tuple[Array, Array]:
        """How long clipped vectors are at most, and how far a swap can move one, [...] each."""
        xp = namespace(start)
        most = math.sqrt(2) * domain.reach(start)  # the domain measures ½‖·‖²
        if self.radius is not None:
            most = xp.minimum(most, full(start.shape[:-1], self.radius, start))
        if not bool(xp.all(xp.isfinite(most))):
            raise FMRLError(f"{domain!r} puts no bound on update vectors", fix="give Tree(radius=)")
        width = math.sqrt(2) * domain.diameter(start.shape[-1])
        return most, xp.minimum(2 * most, full(start.shape[:-1], width, start))

    def init(self, domain, phi):
        """phi itself; memory: tasks so far, their sum [..., d], the noise of the nodes that are in
        use [..., levels, d], the start, the noise's standard deviation [...], the key.
        """
        if domain.norm != "l2":
            what = f"Tree needs the regulariser ½‖·‖², which {domain!r} does not have"
            raise FMRLError(what)
        lead, dim = phi.shape[:-1], phi.shape[-1]
        if (asked := math.prod(lead)) > self.runs:
            what = f"{asked} runs on the same tasks give away more than {self.runs}"
            raise FMRLError(what, fix=f"plan the budget for them: Tree(…, runs={asked})")
        keys = np.stack([new_key(self.seed, "tree", run) for run in range(asked)])
        keys = namespace(phi).asarray(keys.reshape((*lead, KEY)), device=device(phi))
        nothing = full(phi.shape, 0.0, phi)
        nodes = full((*lead, self.tasks.bit_length(), dim), 0.0, phi)
        return phi, (0, nothing, nodes, phi, self.noise * self.reach(domain, phi)[1], keys)

    def update(self, domain, phi, memory, end):
        """One more vector into the sum; the node that ends here replaces those that it covers."""
        count, total, nodes, start, scale, keys = memory
        if count >= self.tasks:
            what = f"the privacy budget is spent: {self!r} was planned for {self.tasks} tasks"
            raise FMRLError(what, fix="stop here; a new run needs a budget of its own")
        xp, count = namespace(phi), count + 1
        most = self.reach(domain, start)[0]
        total = total + clipped(domain.project(end.theta) - start, most)
        if self.seed is None:
            refuse_forks(to_numpy(keys), count, to_numpy(total), to_numpy(scale))
        fresh = scale[..., None] * drawn(to_numpy(keys), count, phi)
        # t ends the node of 2^level tasks, level being the number of zeros at the end of t.
        level = (count & -count).bit_length() - 1
        levels = xp.arange(nodes.shape[-2], device=device(nodes))[:, None]
        kept = xp.where(levels > level, nodes, xp.zeros_like(nodes))
        nodes = xp.where(levels == level, fresh[..., None, :], kept)
        mean = start + (total + xp.sum(nodes, axis=-2)) / count
        return domain.project(mean), (count, total, nodes, start, scale, keys)


@dataclass(frozen=True)
class NoisyGradients(Learner):
    """A learner that is shown clipped and noised gradients, so that its actions are
    (epsilon, delta)-differentially private when one row of the task is swapped for any other.

        ∇̃_i = clip(∇_i) + N(0, (noise·2·clip)²·I)

    Every row is met once, in one round; a task that is played again is another release. Needs an
    update vector made of actions (`FLIOnline`, `FLIBatch`), a G that is not read from the rows
    (``lipschitz=``), and the extra ``private``.

    Args:
        within: The learner, `OMD()` or `OGD()`.
        epsilon: ε of a task.
        delta: δ of a task.
        clip: Longer gradients are shortened to this length.
        seed: For tests alone: noise that the rows determine. By default it comes from the operating
            system.

    >>> round(NoisyGradients(OMD(), 1.0, 1e-6, clip=1.0).noise, 3)
    4.225
    """

    within: Learner
    epsilon: float
    delta: float
    clip: float
    seed: int | None = None

    def __post_init__(self):
        _budget(self)
        positive(clip=self.clip)
        if type(self.within) not in (OMD, OGD):
            what = f"{self.within!r} is not known to look at rows through gradients alone"
            raise FMRLError(what, fix="use NoisyGradients(OMD(), …) or OGD()")

    @property
    def noise(self) -> float:
        """The noise of a gradient over the change of a swap."""
        return gaussian_noise(self.epsilon, self.delta)

    def actions(self, game, domain, phi, eta):
        """The learner's own, on gradients that are clipped and noised."""
        if domain.norm != "l2":
            raise FMRLError(f"NoisyGradients needs R = ½‖·‖², which {domain!r} does not have")
        keys, inner, i = self._keys(game, phi), self.within.actions(game, domain, phi, eta), 0
        most, scale = full(phi.shape[:-1], self.clip, phi), 2 * self.clip * self.noise
        theta = next(inner)
        while True:
            gradient = yield theta
            i += 1
            theta = inner.send(clipped(gradient, most) + scale * drawn(keys, i, phi))

    def _keys(self, game: Any, phi: Array) -> np.ndarray:
        """A key for every task of a stack."""
        lead = phi.shape[:-1]
        about: list[Any] = [(i,) for i in range(math.prod(lead))]
        if self.seed is not None and isinstance(game, Samples):  # rows, wherever they are stacked
            X, y = (to_numpy(a) for a in (game.X, game.target))
            counts = np.broadcast_to(to_numpy(game.rounds), lead).ravel().astype(int)
            stacks = (np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (X, y))
            flat = [a.reshape(-1, *a.shape[-2:]) for a in stacks]
            about = [tuple(a[k, :m].tobytes() for a in flat) for k, m in enumerate(counts)]
        made = np.stack([new_key(self.seed, "gradients", *rows) for rows in about])
        return made.reshape((*lead, KEY))


FIXED = (Known, KnownStep)  # what they say does not depend on any task
SHOWN = (*FIXED, Doubling, AverageDeviation)  # they look at update vectors alone; so do:
MEANS = (
    metas.FollowLeader, metas.AdaptiveOGD, metas.LastUpdate, metas.Interpolate, metas.Fixed,
    moving.Discounted, moving.Window, moving.Restart, moving.Mixture, Tree,
)  # fmt: skip


def promises(algo: Any) -> tuple[Any, ...]:
    """The ingredients of a composition that promise privacy."""
    asked = getattr(algo, "meta", None), getattr(algo, "within", None)
    return tuple(part for part in asked if isinstance(part, (Tree, NoisyGradients)))


def refuse_repeats(algo: Any, tasks: Any, orders: Any = None) -> None:
    """Refuse tasks, or orders [S, T] of them, that play one more often than a budget counts: once
    in every run of a `Tree`, once in all for `NoisyGradients`.
    """
    runs = [tasks] if orders is None else [[tasks[i] for i in order] for order in orders]
    if any(isinstance(part, NoisyGradients) for part in promises(algo)):
        runs = [[task for run in runs for task in run]]
    for run in runs if promises(algo) else ():
        for _ in each_once(algo, run):
            pass


def each_once(algo: Any, tasks: Any) -> Iterator[Any]:
    """Tasks as they come; one that was handed out before is refused. A task is told by its object,
    as long as somebody holds it: two that were made of the same rows are two.

    Args:
        algo: A composition that promises privacy.
        tasks: Any iterable.
    """
    before: WeakValueDictionary[int, Any] = WeakValueDictionary()
    for task in tasks:
        if before.get(id(task)) is task:
            what = f"{promises(algo)[-1]!r} counts the release of a task once, and here one is"
            raise FMRLError(f"{what} played again", fix="give every task once")
        before[id(task)] = task
        yield task


def _reads_more(meta: Any) -> Any:
    """The first meta-update in ``meta``, which may be a `Mixture`, that is not known to look at
    update vectors alone; None if all are.
    """
    if type(meta) is moving.Mixture:
        return next((rule for m in meta.metas if (rule := _reads_more(m)) is not None), None)
    return None if type(meta) in MEANS else meta


def refuse_leaks(algo: Any) -> None:
    """Refuse a composition that reads past its privacy: a rule that learns from tasks or rows and
    has no budget for it.
    """
    meta, similarity, within = algo.meta, algo.similarity, algo.within
    if isinstance(meta, Tree) and type(similarity) not in FIXED:
        what = f"{similarity!r} learns from every task, and no budget covers that"
        fix = "fix the guess in advance, without looking at these tasks: similarity=Known(D) or"
        raise FMRLError(what, fix=f"{fix} KnownStep(eta), for instance from public tasks")
    if not isinstance(within, NoisyGradients):
        return
    if type(algo.update) not in (FLIOnline, FLIBatch):
        what = f"{algo.update!r} reads the rows without noise"
        raise FMRLError(what, fix="with NoisyGradients use update=FLIOnline() or FLIBatch()")
    unknown = _reads_more(meta) if type(similarity) in SHOWN else similarity
    if unknown is not None:
        raise FMRLError(f"{unknown!r} may read more of a task than its private update vector")
    if algo.lipschitz is None:  # for the step D/(G·√m), and for the weight of a task in phi
        what = "G would be read from the rows for steps and weights, and no budget covers that"
        raise FMRLError(what, fix="give FMRL(lipschitz=G), for instance the clip of the gradients")

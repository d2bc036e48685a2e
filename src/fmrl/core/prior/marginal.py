"""The mean, covariance and noise of tasks by marginal likelihood: `estimate_prior`.

The scatter of the tasks' optima is the spread of tasks plus the noise of each task, and only the
first is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from fmrl.core.arrays import Array, device, dot, full, namespace, zeros
from fmrl.core.losses import Loss, Squared
from fmrl.core.matrices import T, apply, eigh, geometric_mean
from fmrl.core.prior.gaussian import Gaussian, members_of
from fmrl.core.prior.padding import pieces
from fmrl.core.prior.posterior import BatchedPosterior, joint_rows, root_of
from fmrl.core.prior.small_inverses import SMALL, eye_like
from fmrl.core.prior.statistics import Moments, TaskStatistics, UnderGaussian, damped_solve
from fmrl.core.tasks import Task, Tasks
from fmrl.errors import FMRLError

FAMILIES = ("isotropic", "diagonal", "full")
WIDE = 64  # columns beyond which a task's rows are kept instead of its statistics
Sums = Callable[[list[Gaussian]], list[Moments]]  # what tasks say about Gaussians


def estimate_prior(
    tasks: Any, family: Any = "full", *, method: str = "ml", noise: float | None = None,
    steps: int = 100, tolerance: float = 1e-4,
    sums: Callable[[Any, Gaussian], Moments] | None = None,
) -> Gaussian:  # fmt: skip
    """Return the mean and covariance of tasks' parameters by marginal likelihood, the noise inside
    tasks accounted for.

    Of squared losses this is the mixed-effects model y = Xθ + e, θ ~ N(mean, covariance) task by
    task, at its maximum likelihood (or REML), by Fisher scoring on sufficient statistics. Of others
    (and of ranks, or more than 64 columns) it is Laplace's approximation, by
    minorisation-maximisation: H becomes the geometric mean of what the tasks' leaders say and of
    what their rows could tell. Tasks may have fewer rows than features.

    Args:
        tasks: Tasks, a list of Task, or `TaskStatistics` of squared losses.
        family: "isotropic", "diagonal", "full", a rank (so many directions and one variance for
            the rest), or a label for every parameter: those with the same label share a variance,
            and −1 says that all tasks have the same value.
        method: "ml", or "reml" (squared losses): the likelihood of what does not depend on the
            mean, whose variances are not too small where there are few tasks.
        noise: s² of squared losses, if it is known.
        steps: At most so many.
        tolerance: Stop when a step changes H by less, relatively; where steps are scoring, when
            the log-likelihood would gain less than a hundredth of it.
        sums: Computes the `Moments` of tasks where they lie elsewhere, as on a cluster; ``tasks``
            may then be Tasks of their kind without rows.

    >>> import numpy as np, fmrl
    >>> rng = np.random.default_rng(0)
    >>> def task(theta):
    ...     X = rng.normal(size=(5, 2))
    ...     return fmrl.Task(X, X @ theta + rng.normal(size=5), loss=fmrl.Squared())
    >>> tasks = [task([1.0, 0.0] + rng.normal(size=2) * [2.0, 0.5]) for _ in range(500)]
    >>> found = estimate_prior(tasks)
    >>> found.mean.round(1) + 0.0, found.std.round(1), round(found.noise, 1)
    (array([1.1, 0. ]), array([1.9, 0.5]), 1.0)
    """
    if method not in ("ml", "reml"):
        raise FMRLError(f"method must be 'ml' or 'reml', not {method!r}")
    tasks = tasks if isinstance(tasks, TaskStatistics) or sums else _as_tasks(tasks)
    loss = Squared() if isinstance(tasks, TaskStatistics) else tasks.loss
    squared = isinstance(loss, Squared)
    if loss.bend in (0, math.inf):
        raise FMRLError(f"{loss!r} is not a log-likelihood", fix="use Squared or Logistic")
    if noise is not None and not (squared and noise > 0):
        raise FMRLError(f"noise={noise} is for squared losses, and positive", fix="leave it out")
    dim = tasks.width if isinstance(tasks, TaskStatistics) else tasks.dim
    family = check_family(family, dim)
    if sums is not None:
        elsewhere = sums
        told: Sums = lambda gaussians: [elsewhere(tasks, gaussians[0])]  # noqa: E731
        statistics = None
    else:
        told = sums_of(tasks)
        statistics = None if isinstance(family, int) else told.statistics
    if method == "reml" and statistics is None:
        what = "method='reml' is for squared losses and no rank"
        raise FMRLError(what, fix="use method='ml'")
    like = tasks.products if isinstance(tasks, TaskStatistics) else tasks.X
    nothing = no_spread(dim, like, noise)
    (first,) = told([nothing])
    found = first_guess(nothing, loss, first, family, dim // loss.outputs)
    least_noise = 1e-10 * first.squares / max(first.rounds, 1.0)
    search = Search(family, squared and noise is None, least_noise)
    if statistics is not None:
        return fit_by_scoring(statistics, found, search, steps, tolerance / 100, method == "reml")
    return fit_by_mm(told, [found], steps, tolerance, search)[0]


def sums_of(tasks: Any) -> TaskSums:
    """Return what `estimate_prior` asks of some tasks: the sums of one Gaussian over the parameters
    of all outputs, at the modes.

    Args:
        tasks: Tasks or TaskStatistics.
    """
    return TaskSums(tasks, joint=True, refine=0, close=1e-6)


def check_family(family: Any, dim: int) -> Any:
    """Return a family as "full", a rank, or a tuple of labels.

    Args:
        family: As the user gives it.
        dim: How many parameters there are.
    """
    if isinstance(family, str) and family in FAMILIES:
        labels = {"isotropic": (0,) * dim, "diagonal": tuple(range(dim))}
        return labels.get(family, family)
    if isinstance(family, int) and not isinstance(family, bool) and family >= 1:
        return family
    labels: Any = getattr(family, "tolist", lambda: family)()
    if isinstance(labels, (list, tuple)) and all(isinstance(i, int) for i in labels):
        if len(labels) == dim:
            return tuple(labels)
        raise FMRLError(f"family has {len(labels)} labels, and there are {dim} parameters")
    names = ", ".join(map(repr, FAMILIES))
    raise FMRLError(f"family must be one of {names}, a rank or labels, not {family!r}")


def project_to_rank(H: Array, family: Any) -> Array:
    """Return H with one variance for all but so many directions, where the family is a rank."""
    dim = H.shape[-1]
    if not isinstance(family, int) or family >= dim:
        return H
    xp = namespace(H)
    values, vectors = eigh(H)
    rest = xp.mean(values[: dim - family])
    top = xp.where(xp.arange(dim, device=device(values)) >= dim - family, values, rest)
    return (vectors * top) @ T(vectors)


class TaskSums:
    """What some tasks say about Gaussians that share covariance and noise, as often as asked.

    Squared losses keep statistics of tasks instead of their rows, where those are fewer numbers.
    Others remember where tasks were solved, and begin there the next time.

    Args:
        tasks: Tasks or TaskStatistics.
        joint: Whether a Gaussian is over the parameters of all outputs; else every output has its
            own, and they share a covariance.
        refine: As in `BatchedPosterior`.
        close: As in `BatchedPosterior`; of a search's steps, whose errors are about its square.
    """

    def __init__(self, tasks: Any, joint: bool, refine: int | None = None, close: float = 0.03):
        self.how, self.joint, self.statistics = {"refine": refine, "close": close}, joint, None
        self.at: dict[tuple[int, int], Any] = {}  # by the piece, and by what p is
        self.parts: list[Any] = []
        if isinstance(tasks, TaskStatistics):
            self.statistics, self.loss = tasks, Squared()
            return
        self.loss, self.mass = tasks.loss, tasks.mass
        if isinstance(tasks.loss, Squared) and _fewer(tasks):
            self.statistics = TaskStatistics.of(tasks)
            return
        for part, rows in pieces(tasks, tasks.loss.outputs ** (1 + joint)):
            loss, rows = joint_rows(tasks.loss, rows) if joint else (tasks.loss, rows)
            self.parts.append((part, loss, rows))

    def __call__(self, found: list[Gaussian], common: Array | None = None) -> list[Moments]:
        """Their sums under Gaussians, block of tasks by block: what is held for one goes before the
        next.

        Args:
            found: The Gaussians; of several centres [centres · outputs].
            common: How common each centre is, [centres]: each counts for a task as much as its rows
                say. None: every Gaussian counts for all tasks.
        """
        if self.statistics is not None:
            blocks = self.statistics.blocks()
            return _added(self._of_statistics(block, found, common) for block in blocks)
        parts = self.solved(found, 1 if common is None else len(common))
        return _added(self._of_rows(part, one, common) for part, one in parts)

    def _of_statistics(
        self, block: TaskStatistics, found: list[Gaussian], common: Array | None
    ) -> list[Moments]:
        R = root_of(found[0])
        each = [UnderGaussian(block, g.mean, R) for g in found]
        if common is None:
            return [one.moments() for one in each]
        likely = namespace(common).stack([one.evidence(found[0].noise) for one in each])
        shares = posterior_shares(likely, common)
        return [one.moments(own) for one, own in zip(each, shares, strict=True)]

    def _of_rows(self, part: Any, one: BatchedPosterior, common: Array | None) -> list[Moments]:
        mass = one.xp.asarray(self.mass[part], dtype=one.X.dtype, device=device(one.X))
        shares = None if common is None else posterior_shares(one.evidence(), common)
        return one.moments(mass, shares)

    def solved(
        self, found: list[Gaussian], centres: int = 1
    ) -> Iterator[tuple[Any, BatchedPosterior]]:
        """Yield the tasks at their posteriors, piece by piece.

        Args:
            found: The Gaussians.
            centres: How many of them every output has.
        """
        members, refine = members_of(found, len(found) // centres), self.how["refine"]
        for i, (part, loss, rows) in enumerate(self.parts):
            r = members.R.shape[-1]
            key = i, r if r <= rows.X.shape[1] else 0
            one = BatchedPosterior(members, rows, loss, start=self.at.get(key), **self.how)
            if not (one.squared or one.alike) and refine != 0:
                self.at[key] = one.at
            yield part, one


def _fewer(tasks: Tasks) -> bool:
    """Whether statistics are the quicker way: few columns, or more rows than statistics."""
    w = tasks.X.shape[1]
    return w <= SMALL or (w <= WIDE and len(tasks.X) > len(tasks) * (w + 1))


def _added(parts: Iterable[list[Moments]]) -> list[Moments]:
    """Sums of several pieces, Gaussian by Gaussian."""
    return reduce(lambda told, more: [a + b for a, b in zip(told, more, strict=True)], parts)


def posterior_shares(likely: Array, common: Array) -> Array:
    """How probable each centre is for each task after its rows, [centres, T].

    Args:
        likely: Log marginal likelihoods of the rows, [centres, T].
        common: How common each centre is, [centres].
    """
    xp = namespace(likely)
    log = likely + xp.log(xp.where(common > 1e-300, common, 1e-300))[:, None]
    share = xp.exp(log - xp.max(log, axis=0))
    return share / xp.sum(share, axis=0)


@dataclass(frozen=True)
class Search:
    """What a search for covariance, noise and means goes by.

    Args:
        family: As `check_family` gives it.
        learns: Whether the noise is learned.
        least_noise: Rows can be fitted exactly.
        ridge: Draws means towards 0 like one over the variance of a prior.
        shrunk_entries: Entries [d] of the means for which that variance is learned, one for all of
            them; it is at most that of ``ridge``.
        double_steps: Whether steps are twice as long: faster, but some may lower the likelihood.
        largest_variance: At most; tasks that are fitted without error ask for any.
        longest_move: By how much a mean moves in a step, at most: classes that can be told apart
            without error say little about how far.
    """

    family: Any
    learns: bool
    least_noise: float
    ridge: Any = 0.0
    shrunk_entries: Any = None
    double_steps: bool = False
    largest_variance: float = math.inf
    longest_move: float = math.inf


def fit_by_mm(
    sums: Sums, found: list[Gaussian], steps: int, tolerance: float, search: Search,
) -> list[Gaussian]:  # fmt: skip
    """Repeat `mm_step` until no step changes much.

    Args:
        sums: What tasks say about Gaussians that share covariance and noise.
        found: Where to begin.
        steps: At most so many.
        tolerance: Of the relative change of a step.
        search: What to go by.
    """
    drawn_to = search.ridge
    for _ in range(steps):
        told = sums(found)
        after = mm_step(told, found, replace(search, ridge=drawn_to))
        if search.shrunk_entries is not None:
            drawn_to = _learned_ridge(after, drawn_to, search.shrunk_entries, search.ridge)
        change = max(map(_relative_change, found, after, told))
        if not math.isfinite(change):
            break
        found = [cap_variances(g, search.largest_variance) for g in after]
        if change < tolerance:
            break
    return found


def fit_by_scoring(
    statistics: TaskStatistics, found: Gaussian, search: Search, steps: int, tolerance: float,
    reml: bool = False,
) -> Gaussian:  # fmt: skip
    """Fisher scoring of covariance and noise of squared losses, until the log-likelihood stands
    still. Mean and noise are profiled out: for any H they have a closed form.

    Args:
        statistics: Of the tasks.
        found: Near the maximum.
        search: What to go by; without ridge.
        steps: At most so many.
        tolerance: Of the gain of a step, in nats.
        reml: Whether the likelihood is that of what does not depend on the mean.
    """

    def at(gaussian: Gaussian) -> _Profile:
        return _Profile(gaussian, statistics, search, reml)

    now = at(found)
    for _ in range(steps):
        change, expected = now.scoring()
        if not expected > tolerance:
            break
        for length in (1.0, 0.3, 0.1, 0.03, 0.01):
            after = at(now.moved(length * change))
            if after.value > now.value:
                break
        else:
            break
        now = after
    least = 0.0 * now.H
    if search.family == "full":  # not quite singular, so that it is a metric
        size = namespace(now.H).linalg.diagonal
        least = 1e-10 * eye_like(len(now.H), now.H) * (size(now.H) + now.tasks / size(now.known))
    return now.moved(least)


class _Profile:
    """Log-likelihood of a covariance over the noise, with the mean and noise that suit it best."""

    def __init__(self, gaussian: Gaussian, statistics: TaskStatistics, search: Search, reml: bool):
        xp, mean, R = namespace(gaussian.mean), gaussian.mean, root_of(gaussian)
        self.search, self.H = search, gaussian.covariance / gaussian.noise
        if reml and not statistics.tells_columns_apart:
            what = "columns are collinear, so that no part of the rows is free of the mean"
            raise FMRLError(what, fix="drop a column, or use method='ml'")
        axes = None if isinstance(search.family, tuple) else self._axes
        told, self.mean, slopes = statistics.profile(mean, R, reml, axes)
        self.tasks, self.known, self.fisher = int(told.tasks), told.information, slopes.fisher
        freedom = told.rounds - (mean.shape[-1] if reml else 0)
        left = told.squares - float(dot(told.pull, self.mean - mean))  # at the best mean
        self.noise = (
            max(left / freedom, search.least_noise, 1e-300) if search.learns else gaussian.noise
        )
        self.value = -(slopes.logdet + left / self.noise + freedom * math.log(self.noise)) / 2
        if reml:
            self.value -= float(xp.linalg.slogdet(self.known)[1]) / 2
        self.freedom = freedom if search.learns else math.inf
        self.slope = slopes.pulls / self.noise - self.known + slopes.taken

    def scoring(self) -> tuple[Array, float]:
        """The change of H that Fisher scoring asks for, and the gain it expects."""
        return self._by_label() if isinstance(self.search.family, tuple) else self._full()

    def _by_label(self) -> tuple[Array, float]:
        xp, family = namespace(self.mean), self.search.family
        one = [[1.0 if i == label else 0.0 for i in family] for label in sorted({*family} - {-1})]
        if not one:
            return 0.0 * self.H, 0.0
        group = xp.asarray(one, dtype=self.H.dtype, device=device(self.H))
        h = (group @ xp.linalg.diagonal(self.H)) / xp.sum(group, axis=1)
        a, b = (group @ xp.linalg.diagonal(m) for m in (self.slope, self.known))
        info = group @ self.fisher @ T(group) - b[:, None] * b / self.freedom
        eye = eye_like(len(one), info)
        info = info + eye * (1e-9 * xp.linalg.diagonal(info) + 1e-290)
        change, held = xp.zeros_like(a), xp.zeros_like(a) > 0
        for _ in one:  # variances that would be negative become 0, and the others are asked again
            free = xp.astype(~held, a.dtype)
            system = info * free[:, None] * free + eye * (1 - free)
            right = xp.where(held, -h, a + info @ (h * (1 - free)))
            change = xp.linalg.solve(system, right[:, None])[:, 0]
            low = (change < -h) & ~held
            if not bool(xp.any(low)):
                break
            held = held | low
        change = xp.where(held, -h, change)
        expected = float(dot(a, change)) / 2 - float(dot(change, info @ change)) / 4
        return eye_like(len(family), info) * (change @ group), expected

    def _axes(self, known: Array) -> Array:
        """Q [w, k] with Qᵀ·known·Q = I and QᵀK·H·K·Q diagonal (K = known): axes along which a
        task's information is about diagonal. Directions of which nothing is known, as between
        copies of a column, are left out: there H stays.
        """
        xp = namespace(known)
        size = xp.linalg.diagonal(known)
        unit = xp.sqrt(xp.where(size > 0, size, xp.ones_like(size)))[:, None]
        values, vectors = eigh(known / (unit * T(unit)))
        some = xp.nonzero(values > 1e-9 * xp.max(values))[0]
        half = xp.sqrt(xp.take(values, some))
        vectors = xp.take(vectors, some, axis=1)
        root, axes = unit * vectors * half, vectors / half / unit
        _, turn = eigh(T(root) @ self.H @ root)
        self.root, self.axes = root @ turn, axes @ turn
        return self.axes

    def _full(self) -> tuple[Array, float]:
        # Between two axes the tasks' information is at most the geometric mean of what it is along
        # each: with that, a step has a closed form, and so has the nearest one that leaves H
        # positive semidefinite.
        xp, scale = namespace(self.mean), self.fisher**0.25
        root, axes = self.root * scale, self.axes / scale
        eye = eye_like(len(scale), root)
        slope, taken = T(axes) @ self.slope @ axes, 1 / scale**2
        H = T(root) @ self.H @ root
        change, noise = 0.0 * H, 0.0  # the relative change of the noise depends on the step
        for _ in range(10):
            values, vectors = eigh(H + slope + noise * taken * eye)
            change = (vectors * xp.clip(values, 0.0, math.inf)) @ T(vectors) - H
            noise, last = float(dot(taken, xp.linalg.diagonal(change))) / self.freedom, noise
            if abs(noise - last) < 1e-6 * abs(noise):
                break
        size = float(xp.sum(change * change))
        size -= noise * float(dot(taken, xp.linalg.diagonal(change)))
        expected = float(xp.sum(slope * change)) / 2 - size / 4
        return axes @ change @ T(axes), expected

    def moved(self, change: Array) -> Gaussian:
        """The Gaussian with another covariance over the noise, and this mean and noise."""
        H = self.H + change
        covariance = self.noise * (H + T(H)) / 2
        return Gaussian(self.mean, covariance, self.noise, self.tasks, self.known)


def _labels(family: tuple[int, ...], R: Array) -> list[int]:
    """The label of every column of R: roots of diagonal matrices have one entry in each."""
    return [family[int(i)] for i in namespace(R).argmax(namespace(R).abs(R), axis=0)]


def _learned_ridge(found: Sequence[Gaussian], ridge: Any, drawn: Array, least: float) -> Array:
    """One over the variance of some entries of the means, [d]: how many of them are known, of which
    noise is none, over their squares (MacKay's fixed point).
    """
    xp, known, squares = namespace(drawn), 0.0, 0.0
    for g in found:
        known += float(xp.sum(_known_share(g.information, ridge * g.noise)[drawn]))
        squares += float(xp.sum(g.mean[drawn] ** 2))
    one = max(known / max(squares, 1e-290), least)
    return xp.where(drawn, full((), one, found[0].mean), full((), least, found[0].mean))


def _known_share(information: Array, drawn: Array) -> Array:
    """How much of each entry of a mean is known from rows, 0 to 1, [d]; the rest is a prior's.

    Args:
        information: Of rows and prior together, [d, d].
        drawn: The prior's, [d].
    """
    xp = namespace(information)
    chance = drawn * xp.linalg.diagonal(xp.linalg.inv(information))
    return 1 - xp.clip(chance, 0.0, 1.0)


def cap_variances(gaussian: Gaussian, most: float) -> Gaussian:
    """Return a Gaussian with no variance above ``most``."""
    if most == math.inf:
        return gaussian
    xp = namespace(gaussian.mean)
    size = xp.linalg.diagonal(gaussian.covariance)
    down = xp.sqrt(full((), most, size) / xp.maximum(size, full((), most, size)))
    return replace(gaussian, covariance=gaussian.covariance * down[:, None] * down)


def no_spread(dim: int, like: Array, noise: float | None = None) -> Gaussian:
    """The Gaussian before anything is known: no task differs from 0.

    Args:
        dim: How many parameters there are.
        like: An array of the wanted kind.
        noise: s², if it is known.
    """
    level = 1.0 if noise is None else noise
    return Gaussian(zeros((dim,), like), zeros((dim, dim), like), level)


def first_guess(
    nothing: Gaussian, loss: Loss, told: Moments, family: Any, features: int, few: bool = False
) -> Gaussian:
    """Where to begin: a row of usual length tells one unit.

    Args:
        nothing: `no_spread`.
        loss: Of the tasks.
        told: What they say about it.
        family: As `check_family` gives it.
        features: How many columns a row has.
        few: Whether there may be fewer rows than parameters.
    """
    xp, dim = namespace(nothing.mean), nothing.mean.shape[-1]
    length = xp.linalg.diagonal(told.information) / loss.bend  # Σ x_j², about
    if not few:
        if told.rounds < 2 * dim:
            what = f"{told.rounds:g} rows are too few for {dim} parameters"
            raise FMRLError(what, fix="give more tasks, or fewer features")
        if isinstance(loss, Squared) and not told.squares > 0:
            raise FMRLError("every target is 0, so there is nothing to learn")
        if not bool(xp.any(length > 0)):
            raise FMRLError("every row is 0, so there is nothing to learn")
    length = xp.where(length > 0, length, xp.max(length))
    unit = told.rounds / xp.where(length > 0, length, xp.ones_like(length))
    if isinstance(family, tuple):  # those with one label begin alike, and −1 stays as it is
        for label in set(family):
            mine = xp.asarray([i == label for i in family], device=device(unit))
            level_of = xp.mean(unit[mine]) if label >= 0 else full((), 0.0, unit)
            unit = xp.where(mine, level_of, unit)
    return replace(nothing, covariance=eye_like(dim, unit) * unit / features)


def shrink_correlations(found: Gaussian, family: Any, shrink: float) -> Gaussian:
    """Return a Gaussian with correlations drawn to 0 as ``shrink`` tasks without any would."""
    eye = eye_like(found.mean.shape[-1], found.mean)
    part = found.tasks / (found.tasks + shrink)
    return replace(
        found, covariance=project_to_rank(found.covariance * (part + (1 - part) * eye), family)
    )


def _as_tasks(tasks: Any) -> Tasks:
    if isinstance(tasks, Tasks):
        return tasks
    given = list(tasks) if isinstance(tasks, Iterable) else []
    if not given or not all(isinstance(task, Task) for task in given):
        what = "there are no tasks" if not given else "these are not all of class Task"
        raise FMRLError(what, fix="give a list of Task values of one kind")
    return Tasks.of(given)


def mm_step(sums: Sequence[Moments], old: Sequence[Gaussian], search: Search) -> list[Gaussian]:
    """One step for Gaussians that share covariance and noise: means, noise and H from the sums at
    the old ones.

    Args:
        sums: One for every Gaussian.
        old: The Gaussians.
        search: What to go by.
    """
    root, noise = root_of(old[0]), old[0].noise
    if search.learns:
        spent = sum(_numbers_of_means(s, search.ridge * noise) for s in sums)
        rounds = sum(s.rounds for s in sums)
        noise = sum(s.squares for s in sums) / max(rounds - spent, rounds / 10)
        noise = max(noise, search.least_noise, 1e-300)
    count = sum(s.tasks for s in sums)
    near, gain = (reduce(add, (getattr(s, name) for s in sums)) for name in ("scatter", "gain"))
    H = _step(root, near / noise, gain, count, search)
    found = []
    for s, g in zip(sums, old, strict=True):
        mean, known = _mean(s, g, search)
        found.append(Gaussian(mean, noise * (H + T(H)) / 2, noise, int(count), known))
    return found


def _numbers_of_means(sums: Moments, drawn: Any) -> float:
    """How many numbers of a mean are taken from the rows: all, where it is not drawn to 0."""
    xp, dim = namespace(sums.information), sums.information.shape[-1]
    drawn = drawn + full((dim,), 0.0, sums.information)
    if not bool(xp.any(drawn > 0)):
        return float(dim)
    known = sums.information + drawn * eye_like(dim, drawn)
    return float(xp.sum(_known_share(known, drawn)))


def _mean(sums: Moments, old: Gaussian, search: Search) -> tuple[Array, Array]:
    """The generalised least-squares estimate, and how well it is known."""
    known, pull = sums.information, sums.pull
    eye, ridge = eye_like(old.mean.shape[-1], old.mean), search.ridge
    known = known + ridge * old.noise * eye
    pull = pull - ridge * old.noise * old.mean
    move = damped_solve(known, pull)
    if search.longest_move < math.inf:
        move = move * min(1.0, search.longest_move / max(math.sqrt(float(dot(move, move))), 1e-290))
    return old.mean + move, known


def _step(root: Array, A: Array, B: Array, count: float, search: Search) -> Array:
    """H after one step of its family, from the scatter A and the gain B."""
    xp, family = namespace(root), search.family
    dim, r = root.shape
    if isinstance(family, tuple):
        labels = _labels(family, root)
        H = xp.sum(root**2, axis=1)
        a, b = xp.linalg.diagonal(A), xp.linalg.diagonal(B)
        for label in sorted(set(labels)):
            mine = xp.asarray([i == label for i in labels], device=device(H))
            up, down = (xp.sum(xp.where(mine, v, xp.zeros_like(v))) for v in (a, b))
            ratio = up / down if bool(down > 1e-12 * count) else full((), 1.0, a)
            ratio = ratio if search.double_steps else xp.sqrt(ratio)
            ratio = xp.minimum(xp.maximum(ratio, full((), 0.1, a)), full((), 10.0, a))
            places = xp.asarray([i == label for i in family], device=device(H))
            H = xp.where(places, H * ratio, H)
        return eye_like(dim, H) * H
    eye = eye_like(r, A)
    if count >= 4 * dim:
        # A direction of which nothing is known stays as it is: columns that sum to a constant have
        # one. Rounding speaks in it as loud as the root of its size, hence no less than this.
        still = 1e-6 * count * eye
        scale = geometric_mean(A + still, B + still)
        scale = scale @ scale if search.double_steps else scale
    else:  # few tasks leave directions unseen, which that step would give up for good
        scale = eye + (A - B) / count
    H = root @ (scale @ T(root))
    return project_to_rank(H + 1e-12 * xp.linalg.diagonal(H) * eye_like(dim, H), family)


def _relative_change(old: Gaussian, new: Gaussian, told: Moments) -> float:
    """How far a step moved what a task's rows are weighed against: variances and correlations,
    relatively and by how much of them the rows can tell, and the mean in units of its own
    uncertainty.
    """
    xp = namespace(new.mean)
    size = xp.linalg.diagonal(old.covariance) / old.noise
    some = xp.nonzero(size > 0)[0]
    step = new.covariance / new.noise - old.covariance / old.noise
    step = xp.take(xp.take(step, some, axis=0), some, axis=1)
    share = xp.sqrt(xp.linalg.diagonal(told.gain) / told.tasks / xp.take(size, some))
    change = xp.abs(step) * share[:, None] * share
    move = new.mean - old.mean
    sure = dot(move, apply(new.information, move)) / new.noise / move.shape[-1]
    most = xp.max(change) if change.shape[0] else xp.zeros_like(sure)
    return float(xp.maximum(most, xp.sqrt(xp.maximum(sure, xp.zeros_like(sure)))))

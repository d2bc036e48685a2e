"""Do tasks stay alike? Drift of the optima in the order of tasks, groups among them, and what it is
worth to know of either.

    drift    Is the order of tasks more than chance (`fmrl.theory.drift`)?
    groups   Does k-means find more than in Gaussian noise of the optima's own covariance (the gap
             statistic of Tibshirani, Walther, Hastie 2001), with fewer optima between two centres
             than at either?
    worth    √(mean B_R(θ*_t‖phi_t)), to which TAR is proportional: phi by `Discounted`, or by
             `FollowLeader` within each group, over phi by `FollowLeader` of all.

All randomness has a fixed seed, so a report of the same tasks is the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.domains import Domain, Euclidean
from fmrl.core.ensemble import kmeans
from fmrl.core.meta_level import starts_of
from fmrl.core.rules.meta import End, FollowLeader, MetaUpdate
from fmrl.core.rules.moving import Discounted
from fmrl.records import plain
from fmrl.stats import outlier_fence
from fmrl.theory.drift import FEW, Drift, drift, means_of, rank, read

GROUP_LEVEL = 0.05  # p-value from which on groups count as found
REFERENCES, MOST = 19, 8  # clouds of noise, and groups at most
SAMPLE, DIRECTIONS = 600, 10  # optima that the gap test looks at, and their directions, at most
STEPS = 1000  # of the meta-level at most; more tasks move phi in blocks
PAYS = 0.97  # a ratio below is worth a change of rule


@dataclass(frozen=True, eq=False)
class Groups:
    """Whether the optima lie around several centres."""

    p: float  # how often Gaussian noise has as large a gap
    sizes: tuple[int, ...]  # tasks of each group, the largest first
    # Mean squared distance to the nearest of k = 1, 2, … centres.
    values: tuple[float, ...] = field(repr=False)
    gaps: tuple[float, ...] = field(repr=False)  # log of the same for noise, less its own
    errors: tuple[float, ...] = field(repr=False)  # of the gaps, one standard error
    labels: np.ndarray = field(repr=False)  # [T] which group, from 0; −1 for tasks without weight

    @property
    def k(self) -> int:
        """How many groups; 1: none."""
        return len(self.sizes)


@dataclass(frozen=True, eq=False)
class Environment:
    """Drift, groups, and what they are worth."""

    tasks: int
    drift: Drift
    groups: Groups
    memory: int  # of the best `Discounted`, about so many tasks
    distance: float  # √(mean B) from the mean of all tasks before
    worth_drift: float  # the same from a mean that forgets, as a ratio
    worth_groups: float  # … and from the mean of the task's own group
    curve: dict[str, list[float]] = field(repr=False)  # the same in stretches of tasks

    @property
    def kinds(self) -> list[str]:
        """What would pay, in the words of an estimator's ``environment_.kind``."""
        drifts = self.drift.found and self.worth_drift < PAYS
        return ["recent"] * drifts + ["centres"] * (self.groups.k > 1)

    @property
    def sentence(self) -> str:
        """What was found, in plain words."""
        if self.tasks < FEW:
            return f"{self.tasks} tasks are too few to see drift or groups."
        order, group, T, m = self.drift, self.groups, self.tasks, self.memory
        times = [f"{c.after:,} ({c.low:,} to {c.high:,})" for c in order.changes]
        forgets, said, worth = "recent" in self.kinds, [], []
        if times:
            said.append(f"tasks change suddenly, after {listed(times)} tasks")
        elif forgets:
            said.append(f"tasks drift: the last {m:,} say more than the first {T - m:,}")
        elif order.found:
            said.append("tasks drift, but too slowly for forgetting old ones to pay")
        if forgets:
            worth.append(f"to {self.worth_drift:.0%} with one that forgets old tasks")
        if group.k > 1:
            sizes = listed(f"{size:,}" for size in group.sizes)
            said.append(f"tasks fall into {group.k} groups of {sizes}")
            if np.mean(group.labels[1:] == group.labels[:-1]) > 0.9:
                said[-1] += ", one after the other in time"
            if self.worth_groups < PAYS:
                worth.append(f"to {self.worth_groups:.0%} with one for each group")
        text = "; ".join(said) or "no drift and no groups found"
        text = f"{text[0].upper()}{text[1:]}."
        against = " Against one start for all the bound on regret would fall"
        return f"{text}{against} {listed(worth)}." if worth else text

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, for a record; without the label of every task."""
        found = asdict(self) | {"sentence": self.sentence, "kinds": self.kinds}
        del found["groups"]["labels"]
        found["groups"]["k"], found["drift"]["found"] = self.groups.k, self.drift.found
        found["drift"]["changes"] = [change._asdict() for change in self.drift.changes]
        return plain(found)


def environment(points: Any, sigma: Any = None, domain: Domain | None = None) -> Environment:
    """Look for drift and groups, and say what they are worth.

    Args:
        points: Optima in the order of their tasks, [T, d].
        sigma: Weights of the tasks [T], G_t·√m_t; default: all alike.
        domain: Its divergence is used for the worth; default: ½‖·‖².

    >>> rng = np.random.default_rng(1)
    >>> switched = rng.normal(size=(600, 3)) + np.repeat([[0.0], [4.0]], 300, axis=0)
    >>> found = environment(switched)
    >>> found.drift.changes, found.groups.sizes
    ((Change(after=300, low=300, high=300),), (300, 300))
    """
    x, w = read(points, sigma)
    domain, order, group = domain or Euclidean(), drift(x, w), groups(x, w)
    T, size = len(x), -(-len(x) // STEPS)
    lengths = [m for j in range(1, 12) if size < (m := round(10 ** (j / 2))) <= T // 2] or [T]
    # Nothing could be known of the first task; all that follow start where it ended, or farther on.
    first = int(np.argmax(w > 0))
    later = np.where(np.arange(T) == first, 0.0, w)

    def played(rule: MetaUpdate, own: Any = slice(None)) -> np.ndarray:
        return _divergences(rule, x[own], w[own], domain, x[first])

    stay = played(FollowLeader())
    # A block of tasks moves phi as far as its tasks would, one after the other.
    moving = {m: played(Discounted(1 - (1 - 1 / m) ** size)) for m in lengths}
    memory, apart = min(lengths, key=lambda m: _root(moving[m], later)), stay.copy()
    for own in (group.labels == g for g in range(group.k if group.k > 1 else 0)):
        apart[own] = played(FollowLeader(), own)
    edges = np.unique(np.linspace(0, T, min(60, T), endpoint=False).astype(int))
    curve = {"task": ((edges + np.array([*edges[1:], T]) + 1) / 2).tolist()}
    weight = np.add.reduceat(later, edges)
    for name, far in (("all", stay), ("recent", moving[memory])):
        mean = np.add.reduceat(later * far, edges) / np.where(weight > 0, weight, np.nan)
        curve[name] = np.sqrt(mean).tolist()
    base = _root(stay, later)
    ratios = [_root(far, later) / base if base != 0 else 1.0 for far in (moving[memory], apart)]
    return Environment(T, order, group, memory, base, *ratios, curve)


def groups(points: Any, sigma: Any = None) -> Groups:
    """Whether optima lie around several centres.

    Args:
        points: Optima, [T, d].
        sigma: Weights of the tasks, [T]; those of weight 0 are left out.

    >>> rng = np.random.default_rng(0)
    >>> around = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    >>> groups(around[rng.integers(3, size=300)] + rng.normal(size=(300, 2))).sizes
    (114, 95, 91)
    """
    x, w = read(points, sigma)
    labels, used, rng = np.where(w > 0, 0, -1), int(np.sum(w > 0)), np.random.default_rng(0)
    some = x[w > 0]
    if used > SAMPLE:
        some = some[np.sort(rng.choice(used, SAMPLE, replace=False))]
    far = np.linalg.norm(some - some.mean(axis=0), axis=1)
    some = some[far <= outlier_fence(far)[0]]  # a single task far off is no group
    # Along the main directions, few enough that noise cannot be cut in two along one of them.
    left, scale, _ = np.linalg.svd(some - some.mean(axis=0), full_matrices=False)
    scale = scale[: min(DIRECTIONS, len(some) // 10)]
    scale = scale[scale > 1e-9 * np.abs(x).max()]
    if used < FEW or not scale.size:
        return Groups(1.0, (used,), (0.0,), (0.0,), (0.0,), labels)
    left = left[:, : scale.size]
    left = left * np.where(np.sum(left**3, axis=0) < 0, -1.0, 1.0)  # signs of an SVD are chance
    clouds = [left * scale]
    for _ in range(REFERENCES):
        noise = rng.standard_normal(left.shape)
        clouds.append(np.linalg.qr(noise - noise.mean(axis=0))[0] * scale)
    ks = range(1, min(MOST, len(some) // 4) + 1)
    found = [[kmeans(cloud, k, 25) for k in ks] for cloud in clouds]
    value = np.array([[one[2] for one in row] for row in found])
    log = np.log(np.maximum(value, 1e-12 * value[:, :1]))
    gap = log[1:].mean(axis=0) - log[0]
    error = log[1:].std(axis=0) * math.sqrt(1 + 1 / REFERENCES)
    p, best, sizes = rank(-log[:, 1:]), int(np.argmax(gap)), (used,)
    k = 1 + int(np.argmax(gap >= gap[best] - error[best])) if p <= GROUP_LEVEL else 1
    while k > 1 and not _apart(clouds[0], *found[0][k - 1][:2]):
        k -= 1
    if k > 1:
        label = found[0][k - 1][1]
        centres = np.stack([some[label == g].mean(axis=0) for g in range(k)])
        nearest = np.argmin(np.sum(centres**2, axis=1) / 2 - x @ centres.T, axis=1)
        count = np.bincount(nearest[w > 0], minlength=k)
        order = np.argsort(-count, kind="stable")
        labels = np.where(w > 0, np.argsort(order)[nearest], -1)
        sizes = tuple(count[order].tolist())
    return Groups(p, sizes, *(tuple(map(float, a)) for a in (value[0], gap, error)), labels)


def _apart(x: np.ndarray, centres: np.ndarray, labels: np.ndarray) -> bool:
    """Whether every group has tasks enough, and between any two centres lie far fewer than at
    either."""
    if np.bincount(labels, minlength=len(centres)).min() < max(4, len(x) / 20):
        return False
    for a in range(len(centres)):
        for b in range(a):
            step = centres[a] - centres[b]
            along = (x[(labels == a) | (labels == b)] - centres[b]) @ step / (step @ step)
            left, middle, right = (np.sum(np.abs(along - at) < 0.15) for at in (0.0, 0.5, 1.0))
            if 2 * middle + math.sqrt(middle) >= min(left, right):
                return False
    return True


def _divergences(
    rule: MetaUpdate, x: np.ndarray, w: np.ndarray, domain: Domain, start: np.ndarray
) -> np.ndarray:
    """B_R(θ_t‖phi_t) [T], with phi moved by a rule of the core; in blocks of tasks if many."""
    edges = np.arange(0, len(x), -(-len(x) // STEPS))
    theta, weight = means_of(x, w, edges)
    phi, memory = rule.init(domain, start)
    starts = starts_of(FMRL(domain, meta=rule), phi, memory, End(theta, theta, weight))[0]
    far = domain.divergence(x, np.repeat(starts, np.diff([*edges, len(x)]), axis=0))
    return np.where(w > 0, np.maximum(far, 0.0), 0.0)


def _root(far: np.ndarray, w: np.ndarray) -> float:
    """√(mean B)."""
    return math.sqrt(w @ far / w.sum()) if w.sum() > 0 else 0.0


def listed(words: Any) -> str:
    """Words as a sentence lists them.

    >>> listed("abc")
    'a, b and c'
    """
    *some, last = map(str, words)
    return f"{', '.join(some)} and {last}" if some else last

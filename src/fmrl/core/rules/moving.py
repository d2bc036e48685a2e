"""Meta-updates for environments that move: they forget, each in its own way, or weigh several
meta-updates against each other.

    Discounted   phi ← phi + max(alpha, sigma_t/sigma_{1:t})·(θ_t − phi)
    Window       the weighted mean of the last ``size`` update vectors
    Restart      the weighted mean since the last multiple of ``every`` tasks
    Mixture      Σ_k w_k·phi_k over other meta-updates, w_k ∝ exp(−a·Σ sigma_s·B_R(θ_s‖phi_{s,k}))
    Conditional  phi = M·s, linear in what is known of a task before it begins
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fmrl.core.arrays import Array, as_array, device, full, namespace
from fmrl.core.checks import listed, number, positive, positive_or_none, whole
from fmrl.core.domains import Domain
from fmrl.core.rules.meta import MetaUpdate, _mean
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Discounted(MetaUpdate):
    """An exponential mean: tasks from about 1/alpha ago and more are forgotten. Until so many
    have come it is `FollowLeader`'s mean of all.

    Its meta-regret against a comparator that moves by a path of length P is bounded
    (`fmrl.bounds.dynamic`).

    Args:
        alpha: The weight of the newest task, above 0 and at most 1.

    >>> import numpy as np
    >>> from fmrl.core.rules.meta import End
    >>> rule, phi, one = Discounted(0.5), np.zeros(1), np.array(1.0)
    >>> phi, memory = rule.init(None, phi)
    >>> for theta in (1.0, 0.0, 0.0):
    ...     phi, memory = rule.update(None, phi, memory, End(np.array([theta]), None, one))
    >>> phi
    array([0.25])
    """

    alpha: float

    def __post_init__(self):
        if not 0 < number(self.alpha) <= 1:
            raise FMRLError(f"alpha must lie above 0 and at most at 1, not {self.alpha!r}")

    def init(self, domain, phi):
        """phi itself, and no weight seen yet."""
        return phi, full(phi.shape[:-1], 0.0, phi)

    def update(self, domain, phi, memory, end):
        """A step towards θ_t; a task of constant losses weighs nothing and moves nothing."""
        xp, total = namespace(phi), memory + end.sigma
        share = end.sigma / xp.where(total > 0, total, xp.ones_like(total))
        least = full(share.shape, self.alpha, phi)
        step = xp.where(end.sigma > 0, xp.maximum(share, least), xp.zeros_like(share))
        return phi + step[..., None] * (end.theta - phi), total


@dataclass(frozen=True)
class Window(MetaUpdate):
    """The weighted mean of the last ``size`` update vectors. No clean bound is known for it by
    itself; in a `Mixture` it need not have one.

    Args:
        size: How many tasks are remembered.
    """

    size: int

    def __post_init__(self):
        whole("Window: size", self.size)

    def init(self, domain, phi):
        """phi itself; memory: the last vectors [..., size, d] and their weights [..., size]."""
        lead, d = phi.shape[:-1], phi.shape[-1]
        return phi, (full((*lead, self.size, d), 0.0, phi), full((*lead, self.size), 0.0, phi))

    def update(self, domain, phi, memory, end):
        """The oldest goes, the newest comes, and phi is their mean."""
        xp, (last, weight) = namespace(phi), memory
        last = xp.concat([last[..., 1:, :], end.theta[..., None, :]], axis=-2)
        weight = xp.concat([weight[..., 1:], end.sigma[..., None]], axis=-1)
        moment = xp.sum(weight[..., None] * last, axis=-2)
        return _mean(moment, xp.sum(weight, axis=-1), phi)[0], (last, weight)


@dataclass(frozen=True)
class Restart(MetaUpdate):
    """`FollowLeader`, begun anew every ``every`` tasks: for environments that jump.

    Args:
        every: Tasks between two beginnings.
    """

    every: int

    def __post_init__(self):
        whole("Restart: every", self.every)

    def init(self, domain, phi):
        """phi itself; memory: tasks seen, and the weight since the last beginning."""
        nothing = full(phi.shape[:-1], 0.0, phi)
        return phi, (nothing, nothing)

    def update(self, domain, phi, memory, end):
        """The weighted mean of the tasks since the last beginning."""
        xp, (tasks, weight) = namespace(phi), memory
        again = tasks % self.every == 0
        weight = xp.where(again, xp.zeros_like(weight), weight)
        moment = weight[..., None] * phi + end.sigma[..., None] * end.theta
        phi, weight = _mean(moment, weight + end.sigma, phi)
        return phi, (tasks + 1, weight)


@dataclass(frozen=True)
class Mixture(MetaUpdate):
    """Several meta-updates at once: phi is their mean under weights that fall with what each would
    have cost.

    Σ sigma·B_R(θ_t‖phi_t) exceeds that of the best of them by at most sigma_max·Δ²·log K, whatever
    T (`fmrl.bounds.mixture`). With ``share`` > 0 it follows a best one that changes.

    Args:
        metas: Two or more meta-updates.
        share: The weight that moves from each to the others after every task (fixed share).
        reach: Δ, the largest distance between two points; needed where the domain is unbounded.

    >>> from fmrl.core.rules.meta import FollowLeader
    >>> Mixture([FollowLeader(), Discounted(0.1)])
    Mixture(metas=(FollowLeader(), Discounted(alpha=0.1)), share=0.0, reach=None)
    """

    metas: tuple[Any, ...]
    share: float = 0.0
    reach: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "metas", listed(self.metas))
        good = [m for m in self.metas if hasattr(m, "init") and not isinstance(m, type)]
        if len(self.metas) < 2 or len(good) < len(self.metas):
            fix = "give a list such as [FollowLeader(), Discounted(0.1)]"
            raise FMRLError(f"Mixture takes two or more meta-updates, not {self.metas!r}", fix=fix)
        if any(getattr(type(m), "look", MetaUpdate.look) is not MetaUpdate.look for m in good):
            raise FMRLError("a Mixture cannot hold Conditional", fix="use Conditional by itself")
        if any(m.apart for m in good if isinstance(m, MetaUpdate)):
            what = "a Mixture weighs its members by the tasks, and no privacy budget covers that"
            raise FMRLError(what, fix="use Tree by itself")
        if not 0 <= number(self.share) < 1:
            raise FMRLError(f"share must be at least 0 and below 1, not {self.share!r}")
        positive_or_none(reach=self.reach)

    def _width(self, domain: Domain, dim: int) -> float:
        """Δ², or 1 on the simplex, where the loss is mixable as it is."""
        if domain.norm != "l2":
            return 1.0
        width = domain.diameter(dim) * math.sqrt(2) if self.reach is None else self.reach
        if not math.isfinite(width):
            what = f"{domain!r} puts no bound on the distance between two starts"
            raise FMRLError(what, fix="give Mixture(metas, reach=…)")
        return width**2

    def init(self, domain, phi):
        """The mean of the first starts; memory: log weights [..., K], starts [..., K, d], the
        largest sigma so far, and each one's own memory."""
        self._width(domain, phi.shape[-1])
        begun = [meta.init(domain, phi) for meta in self.metas]
        xp, K = namespace(phi), len(begun)
        starts = xp.stack([start for start, _ in begun], axis=-2)
        weight = full((*phi.shape[:-1], K), -math.log(K), phi)
        most = full(phi.shape[:-1], 0.0, phi)
        return xp.mean(starts, axis=-2), (weight, starts, most, tuple(own for _, own in begun))

    def update(self, domain, phi, memory, end):
        """Weigh by what was lost, mix, and let each move by itself."""
        weight, starts, most, owns = memory
        xp = namespace(phi)
        most = xp.maximum(most, end.sigma)
        far = domain.divergence(end.theta[..., None, :], starts)  # [..., K]
        # Infinitely far from all of them, a task tells nothing about which is better.
        lost = xp.all(xp.isinf(far), axis=-1, keepdims=True)
        lost = lost | (end.sigma <= 0)[..., None]  # a task of constant losses weighs nothing
        far = xp.where(lost, xp.zeros_like(far), far)
        worst = xp.where(most > 0, most, xp.ones_like(most)) * self._width(domain, phi.shape[-1])
        weight = self._shared(weight - (end.sigma / worst)[..., None] * far)
        moved, kept = [], []
        for k, (meta, own) in enumerate(zip(self.metas, owns, strict=True)):
            start, own = meta.update(domain, starts[..., k, :], own, end)
            moved.append(start)
            kept.append(own)
        starts = xp.stack(moved, axis=-2)
        phi = xp.sum(xp.exp(weight)[..., None] * starts, axis=-2)
        return phi, (weight, starts, most, tuple(kept))

    def _shared(self, weight: Array) -> Array:
        """Log weights that sum to one, after each has given its share to the others."""
        xp, K = namespace(weight), len(self.metas)
        weight = weight - xp.max(weight, axis=-1, keepdims=True)
        plain = xp.exp(weight)
        plain = plain / xp.sum(plain, axis=-1, keepdims=True)
        if self.share:
            plain = (1 - self.share) * plain + self.share * (1 - plain) / (K - 1)
        tiny = full((), float(xp.finfo(weight.dtype).smallest_normal), weight)
        return xp.log(xp.maximum(plain, tiny))


@dataclass(frozen=True)
class Conditional(MetaUpdate):
    """phi depends on what is known of a task before it begins: phi = M·s, with s the task's side
    information and M fitted to the tasks before by ridge regression.

        A_t = ridge·I + Σ_{r≤t} s_r·s_rᵀ,    M_t = (Σ_{r<t} (θ_r − phi_1)·s_rᵀ)·A_t⁻¹,
        phi_t = phi_1 + M_t·s_t

    phi_1 is where the run starts, and the first task too. s is 1 and the columns ``side``, which
    are constant within a task (a region, an age, a size); it is read from the task's first row.
    Σ B_R(θ_t‖phi_t) exceeds that of the best fixed M by a term that grows like log T
    (`fmrl.bounds.conditional`).

    Args:
        side: Positions of the columns, counted from 0.
        ridge: How strongly M is held at 0, and phi at phi_1.

    >>> import numpy as np, fmrl
    >>> sizes = np.linspace(-1, 1, 30)
    >>> tasks = [fmrl.Task([[1.0, s]], [s], loss=fmrl.Squared()) for s in sizes]
    >>> metas = fmrl.FollowLeader(), Conditional([1], 0.1)
    >>> [round(float(fmrl.run(fmrl.FMRL(meta=m), tasks).tar), 3) for m in metas]
    [0.129, 0.038]
    """

    side: tuple[int, ...]
    ridge: float = 1.0

    def __post_init__(self):
        side = tuple(self.side) if hasattr(self.side, "__iter__") else (self.side,)
        if not side or not all(isinstance(c, int) and c >= 0 for c in side):
            what = f"side must be positions of columns, counted from 0, not {self.side!r}"
            raise FMRLError(what)
        object.__setattr__(self, "side", side)
        positive(ridge=self.ridge)

    def look(self, first):
        """1, and the columns."""
        if max(self.side) >= first.shape[-1]:
            what = f"{self!r}: tasks have {first.shape[-1]} columns, counted from 0"
            raise FMRLError(what)
        xp = namespace(first)
        return xp.stack([xp.ones_like(first[..., 0]), *(first[..., c] for c in self.side)], axis=-1)

    def init(self, domain, phi):
        """phi itself; memory: A [..., s, s], Σ (θ − phi_1)·sᵀ [..., d, s], and phi_1 [..., d].
        Refuses other geometries: M·s may lie anywhere, and only ½‖·‖² can put it back."""
        if domain.norm != "l2":
            what = f"Conditional needs the regulariser ½‖·‖², which {domain!r} does not have"
            raise FMRLError(what, fix="use FollowLeader()")
        xp, k = namespace(phi), len(self.side) + 1
        eye = xp.eye(k, dtype=phi.dtype, device=device(phi))
        A = self.ridge * eye + full((*phi.shape[:-1], 1, 1), 0.0, phi)
        return phi, (A, full((*phi.shape, k), 0.0, phi), phi)

    def begin(self, domain, phi, memory, side):
        """M·s, the task itself counted in A."""
        xp, (A, moment, first) = namespace(phi), memory
        A = A + side[..., :, None] * side[..., None, :]
        weight = xp.linalg.solve(A, side[..., None])
        return domain.project(first + xp.matmul(moment, weight)[..., 0])

    def update(self, domain, phi, memory, end):
        """One more pair (s, θ); phi is where a task with the mean side information would start."""
        A, moment, first = memory
        xp, side = namespace(phi), as_array(end.side)
        A = A + side[..., :, None] * side[..., None, :]
        moment = moment + (end.theta - first)[..., :, None] * side[..., None, :]
        sums = A[..., 0, :]  # of s, which begins with 1, and the ridge
        count = sums[..., :1] - self.ridge
        mean = xp.concat([count, sums[..., 1:]], axis=-1) / count
        weight = xp.linalg.solve(A, mean[..., None])
        return domain.project(first + xp.matmul(moment, weight)[..., 0]), (A, moment, first)

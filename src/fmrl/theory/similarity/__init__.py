"""Are these tasks similar enough to learn across? What to run first on new data.

Regret of a learner that starts at phi with guess D is at most (B_R(θ*_t‖phi)/D + D)·sigma_t on task
t, sigma_t = G_t·√m_t (Theorem A.1 with eta = D/sigma_t). The report averages this over the tasks,
in units of the mean sigma, for

    single      phi = where the run starts, D = the reach of the domain           what a learner without other tasks can do
    tuned       the same phi, the best single D for these tasks: 2·sqrt(mean B_R)     … if somebody had told it the scale
    learned     phi_t and D_t as Algorithm 2 (FAL) sets them on these tasks in this order
    eventually  phi = the mean of the optima, D = D̄: 2·D̄                          what it approaches with more tasks like these
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fmrl.core.arrays import as_array, as_float, constant, norm, to_numpy, zeros
from fmrl.core.domains import Ball, Domain
from fmrl.core.history import History
from fmrl.core.rules.meta import End, FollowLeader
from fmrl.core.rules.similarity import Doubling
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.theory.bounds.geometry import spread
from fmrl.theory.similarity.enclosing import enclosing_ball


@dataclass(frozen=True, eq=False)
class SimilarityReport:
    """How similar tasks are, and what that is worth. Distances are the paper's sqrt(B_R); in l2
    geometry that is ‖·‖₂/√2.
    """

    optima: np.ndarray  # [T, d]
    mean: np.ndarray  # [d] weighted by sigma
    distances: np.ndarray  # [T] sqrt(B_R(θ*_t‖mean))
    diameter: float  # D*: the largest distance between two optima …
    tight: bool  # … or, of very many tasks, an upper bound on it
    deviation: float  # D̄: root mean square of the distances
    centre: np.ndarray  # [d] of the smallest enclosing l2 ball
    radius: float  # its l2 radius …
    radius_gap: float  # … which no ball undercuts by more than this
    outliers: tuple[int, ...]  # tasks beyond `fmrl.stats.outlier_fence`
    diameter_without: float  # D* of the others
    edge: int  # optima on the surface of the ball, which may want to go farther
    single: np.ndarray  # [T] bound on each task without other tasks
    tuned: float
    learned: np.ndarray  # [T] bound on each task while learning across
    eventually: float
    domain: Domain

    @property
    def ratio(self) -> float:
        """Bound with meta-learning over bound without, on these tasks in this order; below 1 it
        pays already.
        """
        return float(np.mean(self.learned) / np.mean(self.single))

    @property
    def ratio_eventually(self) -> float:
        """The same ratio once phi and D are learned."""
        return self.eventually / float(np.mean(self.single))

    @property
    def ratio_tuned(self) -> float:
        """Eventually, against a single-task learner that was told the best D: what a better start
        alone is worth.
        """
        return self.eventually / self.tuned if self.tuned > 0 else 1.0

    @property
    def pays_after(self) -> int | None:
        """Tasks after which the summed bound with meta-learning stays below the one without; None
        if never here.
        """
        ahead = np.cumsum(self.learned) < np.cumsum(self.single)
        if not ahead[-1]:
            return None
        behind = np.flatnonzero(~ahead)
        return int(behind[-1]) + 2 if behind.size else 1

    @property
    def verdict(self) -> str:
        """One plain sentence or three."""
        share = f"{self.ratio_eventually:.0%} of single-task learning"
        saved = f"the guaranteed regret falls to {share}"
        if self.ratio_eventually <= 0.7 and self.ratio_tuned <= 0.9:
            said = f"Learn across these tasks: once the start and the scale are learned, {saved}."
        elif self.ratio_eventually <= 0.7:
            said = (
                f"Learn the scale across these tasks: {saved}, nearly all of it by a step of the right size. The common start "
                f"itself brings little ({self.ratio_tuned:.0%} of a single-task learner with its best step)."
            )
        elif self.ratio_eventually <= 0.95:
            said = f"Learning across these tasks helps a little: {saved}."
        else:
            said = f"Do not expect help from the other tasks: their optima are so far apart that the bound stays at {share}."
        if self.ratio_eventually <= 0.95:
            when, count = self.pays_after, len(self.optima)
            too_few = f" {count} tasks are too few: what learning it cost is not yet earned back (ratio {self.ratio:.2f})."
            said += f" It pays from task {when} on." if when else too_few
        if self.outliers:
            shown = ", ".join(map(str, self.outliers[:5])) + (
                " …" if len(self.outliers) > 5 else ""
            )
            said += (
                f" Look at task{'s' if len(self.outliers) > 1 else ''} {shown}: far from the rest; "
                f"without {'them' if len(self.outliers) > 1 else 'it'} D* is {self.diameter_without:.3g}."
            )
        if 2 * self.edge > len(self.optima):
            said += f" {self.edge} of {len(self.optima)} optima lie on the edge of {self.domain!r}, which makes tasks look alike."
        return said

    def __str__(self) -> str:
        rows = [
            ("tasks, dimensions", f"{self.optima.shape[0]}, {self.optima.shape[1]}"),
            ("D* (largest distance)", f"{'' if self.tight else 'at most '}{self.diameter:.4g}"),
            ("D̄ (typical distance to the mean)", f"{self.deviation:.4g}"),
            (
                "smallest enclosing ball, l2 radius",
                f"{self.radius:.4g} (proved to {self.radius_gap:.1g})",
            ),
            ("outliers", str(len(self.outliers))),
            ("bound: single-task", f"{np.mean(self.single):.4g}"),
            ("bound: single-task, best D", f"{self.tuned:.4g}"),
            (
                "bound: learning across, these tasks",
                f"{np.mean(self.learned):.4g} (ratio {self.ratio:.2f})",
            ),
            (
                "bound: learning across, eventually",
                f"{self.eventually:.4g} (ratio {self.ratio_eventually:.2f})",
            ),
        ]
        width = max(len(name) for name, _ in rows)
        table = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
        return f"{self.verdict}\n\n{table}\n\n  Bounds are per task, in units of G·√m."

    def to_dict(self) -> dict:
        """Plain numbers, lists and strings, for a record."""
        plain = {
            k: v.tolist() if isinstance(v, np.ndarray) else v
            for k, v in asdict(self).items()
            if k != "optima"
        }
        extra = ("ratio", "ratio_eventually", "ratio_tuned", "pays_after", "verdict")
        return (
            plain
            | {"domain": repr(self.domain), "outliers": list(self.outliers)}
            | {k: getattr(self, k) for k in extra}
        )

    def figure(self) -> Any:
        """Optima in their two main directions, their distances to the mean, and the bounds task by
        task.
        """
        from fmrl.theory.similarity.figure import draw

        return draw(self)


def similarity_report(
    data: Any, domain: Domain | None = None, *, start: Any = None
) -> SimilarityReport:
    """Report on tasks given as their optima [T, d], as a History, or as a list of Task (their
    optima are then computed).

    domain: where the optima live; a History knows it. For bare optima the default is the smallest
    ball about the origin that holds them, the most favourable one to single-task learning. start:
    phi_1, by default the middle of the domain.

    >>> import numpy as np
    >>> report = similarity_report([[0.8, 0.1], [0.8, -0.1], [0.9, 0.0], [0.7, 0.0]] * 5)
    >>> round(report.diameter, 4), round(report.deviation, 4), round(report.radius, 4)
    (0.1414, 0.0707, 0.1)
    >>> print(report.verdict)
    Learn across these tasks: once the start and the scale are learned, the guaranteed regret falls
    to 12% of single-task learning. It pays from task 2 on.
    """  # noqa: E501
    optima, weight, domain, start = _gather(data, domain, start)
    if optima.ndim != 2 or optima.shape[0] < 2 or optima.shape[1] < 1:
        raise FMRLError(
            f"optima must have shape [tasks ≥ 2, d], not {optima.shape}",
            fix="give one row per task",
        )
    bad = np.flatnonzero(~np.isfinite(optima).all(axis=1))
    if bad.size:
        raise FMRLError(
            "the optimum has a NaN or an infinity", task=int(bad[0]), fix="drop the task"
        )
    outside = np.flatnonzero(~np.asarray(domain.contains(optima)))
    if outside.size:
        raise FMRLError(
            f"the optimum lies outside {domain!r}",
            task=int(outside[0]),
            fix="give the domain it was found on",
        )
    reach = float(domain.reach(start))
    if not math.isfinite(reach):
        raise FMRLError(
            f"{domain!r} has no size to compare with",
            fix="give a bounded domain, such as Ball(radius)",
        )
    whole, scale = spread(domain, optima, weight), weight / weight.mean()
    square = np.maximum(domain.divergence(optima, whole.mean), 0.0)
    ball = enclosing_ball(optima)
    outliers = _outliers(np.sqrt(square))
    from_start = domain.divergence(optima, start)
    return SimilarityReport(
        optima=optima,
        mean=whole.mean,
        distances=np.sqrt(square),
        diameter=whole.diameter,
        tight=whole.tight,
        deviation=whole.deviation,
        centre=ball.centre,
        radius=ball.radius,
        radius_gap=ball.gap,
        outliers=outliers,
        diameter_without=spread(domain, np.delete(optima, outliers, axis=0)).diameter,
        edge=int(
            np.sum(norm(optima - constant(domain.centre, optima)) >= domain.radius * (1 - 1e-6))
        )
        if isinstance(domain, Ball)
        else 0,
        single=scale * (from_start / reach + reach),
        tuned=2 * math.sqrt(weight @ from_start / weight.sum()),
        learned=scale * _learned(domain, optima, weight, start),
        eventually=2 * whole.deviation,
        domain=domain,
    )


def _gather(
    data: Any, domain: Domain | None, start: Any
) -> tuple[np.ndarray, np.ndarray, Domain, np.ndarray]:
    """Optima [T, d], weights sigma [T], the domain and phi_1 [d], as NumPy arrays."""
    weight = None
    if isinstance(data, History):
        if data.keep not in ("all", "vectors") or data.regret.ndim != 1:
            raise FMRLError(
                "the report needs one run with its optima",
                fix="run one order, with keep='vectors' or 'all'",
            )
        domain = data.algo.domain if domain is None else domain
        start = data.start.phi if start is None else start
        optima, weight = (
            to_numpy(data.optimum),
            to_numpy(data.lipschitz) * np.sqrt(to_numpy(data.rounds)),
        )
    elif isinstance(data, (list, tuple)) and data and all(isinstance(task, Task) for task in data):
        if domain is None:
            raise FMRLError(
                "the optima of tasks depend on the domain", fix="give one, such as Ball(1.0)"
            )
        games = [task.open() for task in data]
        if len({game.dim for game in games}) > 1:
            raise FMRLError("tasks of different dimensions cannot be compared")
        optima = np.stack([to_numpy(game.hindsight(domain).theta) for game in games])
        weight = np.array(
            [float(game.lipschitz(domain)) * math.sqrt(game.length) for game in games]
        )
    else:
        optima = to_numpy(as_float(as_array(data), "optima"))
    optima = optima.astype(float)
    if domain is None:
        largest = (
            float(np.max(norm(optima), initial=0.0))
            if optima.ndim == 2 and np.isfinite(optima).all()
            else 1.0
        )
        domain = Ball(largest if largest > 0 else 1.0)
    start = (
        domain.middle(zeros(optima.shape[-1:], optima))
        if start is None
        else to_numpy(as_float(start)).astype(float)
    )
    weight = (
        np.ones(len(optima)) if weight is None or not weight.sum() > 0 else weight.astype(float)
    )
    return optima, weight, domain, start


def _learned(
    domain: Domain, optima: np.ndarray, weight: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """B_R(θ*_t‖phi_t)/D_t + D_t of Algorithm 2 with the theory's epsilon and gamma, [T]."""
    growth = 1 + math.log(len(optima))
    rule = Doubling(float(domain.reach(start)) * growth / len(optima), growth / (growth - 1))
    (phi, memory), (guess, count), bounds = (
        FollowLeader().init(domain, start),
        rule.init(domain, start),
        [],
    )
    for theta, sigma in zip(optima, weight, strict=True):
        end = End(theta, theta, np.asarray(sigma))
        bounds.append(float(domain.divergence(theta, phi) / guess + guess))
        guess, count = rule.update(domain, phi, guess, count, end)
        phi, memory = FollowLeader().update(domain, phi, memory, end)
    return np.array(bounds)


def _outliers(distances: np.ndarray) -> tuple[int, ...]:
    from fmrl.stats import outlier_fence

    return tuple(np.flatnonzero(distances > outlier_fence(distances)[0]).tolist())

"""Are these tasks similar enough to learn across? What to run first on new data.

Regret of a learner that starts at phi with guess D is at most (B_R(θ*_t‖phi)/D + D)·sigma_t on task
t, sigma_t = G_t·√m_t (Theorem A.1 with eta = D/sigma_t). The report averages this over the tasks,
in units of the mean sigma, for

    single      phi = where the run starts, D = the reach of the domain: learning alone
    tuned       the same phi, the best single D for these tasks: 2·sqrt(mean B_R)
    learned     phi_t and D_t as Algorithm 2 (FAL) sets them on these tasks in this order
    eventually  phi = the mean of the optima, D = D̄: 2·D̄, approached with more tasks like these
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.arrays import as_array, as_float, constant, norm, to_numpy, zeros
from fmrl.core.domains import Ball, Domain
from fmrl.core.history import History
from fmrl.core.meta_level import scan
from fmrl.core.rules.meta import End
from fmrl.core.rules.similarity import Doubling
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.stats import outlier_fence
from fmrl.theory.bounds import spread, weights
from fmrl.theory.bounds.geometry import enclosing_ball
from fmrl.theory.environment import Environment, environment


@dataclass(frozen=True, eq=False)
class SimilarityReport:
    """How similar tasks are, and what that is worth.

    Distances are the paper's sqrt(B_R); in l2 geometry that is ‖·‖₂/√2.
    """

    optima: np.ndarray  # [T, d]
    weight: np.ndarray  # [T] sigma_t
    mean: np.ndarray  # [d] weighted by sigma
    distances: np.ndarray  # [T] sqrt(B_R(θ*_t‖mean))
    diameter: float  # D*: the largest distance between two optima …
    tight: bool  # … or, of very many tasks, an upper bound on it
    deviation: float  # D̄: root mean square of the distances
    centre: np.ndarray  # [d] of the smallest enclosing l2 ball
    radius: float  # its l2 radius …
    radius_gap: float  # … the smallest possible one is at least radius − radius_gap
    outliers: tuple[int, ...]  # tasks beyond `fmrl.stats.outlier_fence`
    diameter_without: float  # D* of the others
    edge: int  # optima on the surface of the ball, which may want to go farther
    single: np.ndarray  # [T] bound on each task without other tasks
    tuned: float
    learned: np.ndarray  # [T] bound on each task while learning across
    eventually: float
    domain: Domain
    names: tuple | None = None  # of the tasks; None: their positions, from 0

    @property
    def ratio(self) -> float:
        """Bound with meta-learning over bound without, on these tasks in this order."""
        return float(np.mean(self.learned) / np.mean(self.single))

    @property
    def ratio_eventually(self) -> float:
        """The same ratio once phi and D are learned."""
        return self.eventually / float(np.mean(self.single))

    @property
    def ratio_tuned(self) -> float:
        """Eventually, over a single-task learner with the best D: what the start alone is worth."""
        return self.eventually / self.tuned if self.tuned > 0 else 1.0

    @property
    def pays_after(self) -> int | None:
        """Tasks after which the summed bound stays below the one without meta-learning, if ever."""
        ahead = np.cumsum(self.learned) < np.cumsum(self.single)
        if not ahead[-1]:
            return None
        behind = np.flatnonzero(~ahead)
        return int(behind[-1]) + 2 if behind.size else 1

    @cached_property
    def environment(self) -> Environment:
        """Whether the tasks drift or fall into groups, and what that is worth."""
        return environment(self.optima, self.weight, self.domain)

    @property
    def verdict(self) -> str:
        """One to five plain sentences."""
        share, count = f"{self.ratio_eventually:.0%} of single-task learning", len(self.optima)
        saved, when = f"the guaranteed regret falls to {share}", self.pays_after
        if self.ratio_eventually > 0.95:
            said = "Do not expect help from the other tasks: their optima are so far apart that "
            said += f"the bound stays at {share}."
        elif not when:
            said = f"Learning across tasks like these pays in the long run: {saved}. On these "
            said += f"{count:,}, learning included, it is still at {self.ratio:.0%}."
        elif self.ratio_eventually > 0.7:
            said = f"Learning across these tasks helps a little: {saved}."
        elif self.ratio_tuned <= 0.9:
            said = f"Learn across these tasks: once the start and the scale are learned, {saved}."
        else:
            said = (
                f"Learn the scale across these tasks: {saved}, nearly all of it by a step of the "
                f"right size. The common start itself brings little ({self.ratio_tuned:.0%} of a "
                "single-task learner with its best step)."
            )
        if self.ratio_eventually <= 0.95 and when:
            said += f" It pays from task {when} on."
        if self.outliers:
            named = range(count) if self.names is None else self.names
            shown = ", ".join(str(named[t]) for t in self.outliers[:5])
            shown += " …" * (len(self.outliers) > 5)
            task, it = ("task", "it") if len(self.outliers) == 1 else ("tasks", "them")
            said += f" Look at {task} {shown}: far from the rest; without {it} "
            said += f"D* is {self.diameter_without:.3g}."
        if 2 * self.edge > count:
            said += f" {self.edge} of {count} optima lie on the edge of {self.domain!r}, "
            said += "which makes tasks look alike."
        return said

    def __str__(self) -> str:
        ball = f"{self.radius:.4g} (proved to {self.radius_gap:.1g})"
        rows = {
            "tasks, dimensions": f"{self.optima.shape[0]}, {self.optima.shape[1]}",
            "D* (largest distance)": f"{'' if self.tight else 'at most '}{self.diameter:.4g}",
            "D̄ (typical distance to the mean)": f"{self.deviation:.4g}",
            "smallest enclosing ball, l2 radius": ball,
            "outliers": str(len(self.outliers)),
            "bound: single-task": f"{np.mean(self.single):.4g}",
            "bound: single-task, best D": f"{self.tuned:.4g}",
        }
        across = {"these tasks": (np.mean(self.learned), self.ratio)}
        across |= {"eventually": (self.eventually, self.ratio_eventually)}
        for when, (bound, ratio) in across.items():
            rows[f"bound: learning across, {when}"] = f"{bound:.4g} (ratio {ratio:.2f})"
        found = self.environment
        order, group = found.drift, found.groups
        path = f"{order.path:.4g} ({order.chance:.4g} if shuffled, p = {order.p:.3g})"
        rows["drift: path of a moving mean, l2"] = path
        rows["groups"] = f"{group.k if group.k > 1 else 'none'} (gap test p = {group.p:.3g})"
        worth = {"a start that forgets": found.worth_drift}
        if group.k > 1:
            worth["a start for each group"] = found.worth_groups
        for start, share in worth.items():
            known = f"{share:.0%} of one start for all"
            unknown = "not known: optima lie infinitely far from one start for all"
            rows[f"bound: {start}"] = known if math.isfinite(share) else unknown
        width = max(map(len, rows))
        table = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
        said = f"{self.verdict}\n{found.sentence}"
        return f"{said}\n\n{table}\n\n  Bounds are per task, in units of G·√m."

    def to_dict(self) -> dict:
        """Plain numbers, lists and strings, for a record."""
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(self).items()}
        del plain["optima"], plain["weight"]
        del plain["names"]
        plain |= {"domain": repr(self.domain), "outliers": list(self.outliers)}
        extra = ("ratio", "ratio_eventually", "ratio_tuned", "pays_after", "verdict")
        plain |= {name: getattr(self, name) for name in extra}
        return plain | {"environment": self.environment.to_dict()}

    def figure(self) -> Any:
        """Optima in their two main directions, their distances, and the bounds: a Figure."""
        from matplotlib.figure import Figure

        picture = Figure(figsize=(11, 3.4), layout="constrained")
        where, far, worth = picture.subplots(1, 3)
        odd = np.isin(np.arange(len(self.optima)), self.outliers)
        flat = self.optima - self.mean
        directions = np.linalg.svd(flat, full_matrices=False)[2][:2]
        xy = np.zeros((len(flat), 2))
        xy[:, : len(directions)] = flat @ directions.T
        where.scatter(*xy[~odd].T, s=12, alpha=0.6, label="optima")
        where.scatter(*xy[odd].T, s=20, marker="x", color="C3", label="outliers")
        where.plot(0, 0, "k+", ms=10, label="their mean")
        where.set(title="optima, two main directions", aspect="equal")
        far.hist(self.distances, bins="auto", color="0.7")
        far.axvline(self.deviation, color="k", label=f"D̄ = {self.deviation:.3g}")
        if np.isfinite(self.diameter):
            far.axvline(self.diameter, color="k", ls="--", label=f"D* = {self.diameter:.3g}")
        far.set(title="distance to the mean, sqrt(B_R)", xlabel="distance", ylabel="tasks")
        tasks = np.arange(1, len(self.optima) + 1)
        worth.plot(tasks, np.cumsum(self.single) / tasks, "k--", label="single-task")
        worth.plot(tasks, np.cumsum(self.learned) / tasks, "C0", label="learning across")
        worth.axhline(self.eventually, color="C0", ls=":", label="eventually")
        worth.set(xlabel="tasks", ylabel="in units of G·√m", xscale="log", ylim=(0, None))
        worth.set_title("average bound on regret")
        for axes in (where, far, worth):
            axes.legend(fontsize=8)
        return picture


def similarity_report(
    data: Any, domain: Domain | None = None, *, start: Any = None, names: Any = None
) -> SimilarityReport:
    """Report how similar tasks are and whether learning across them pays.

    Args:
        data: The optima [T, d], a History that kept them, or a list of Task (solved here).
        domain: Where the optima live; a History knows it. Default for bare optima: the smallest
            ball about the origin that holds them, which favours single-task learning most.
        start: phi_1, flat [d]; default: the middle of the domain.
        names: Of the tasks, T of them, for the verdict; default: those of the tasks, or positions.

    >>> import numpy as np
    >>> report = similarity_report([[0.8, 0.1], [0.8, -0.1], [0.9, 0.0], [0.7, 0.0]] * 5)
    >>> round(report.diameter, 4), round(report.deviation, 4), round(report.radius, 4)
    (0.1414, 0.0707, 0.1)
    >>> report.verdict.partition(": ")[0], report.pays_after
    ('Learn across these tasks', 2)
    """
    if names is None and isinstance(data, (list, tuple)):
        own = [getattr(task, "name", None) for task in data]
        names = None if any(name is None for name in own) else own
    optima, weight, domain, start = _read(data, domain, start)
    if optima.ndim != 2 or optima.shape[0] < 2 or optima.shape[1] < 1:
        what = f"optima must have shape [tasks ≥ 2, d], not {optima.shape}"
        raise FMRLError(what, fix="give one row per task")
    for bad, what, fix in (
        (~np.isfinite(optima).all(axis=1), "has a NaN or an infinity", "drop the task"),
        (~domain.contains(optima), f"lies outside {domain!r}", "give the domain it was found on"),
    ):
        if bad.any():
            raise FMRLError(f"the optimum {what}", task=int(np.argmax(bad)), fix=fix)
    reach = float(domain.reach(start))
    if not math.isfinite(reach):
        what = f"{domain!r} has no size to compare with"
        raise FMRLError(what, fix="give a bounded domain, such as Ball(radius)")
    found, ball, scale = spread(domain, optima, weight), enclosing_ball(optima), weight.mean()
    distances = np.sqrt(np.maximum(domain.divergence(optima, found.mean), 0.0))
    outliers = tuple(np.flatnonzero(distances > outlier_fence(distances)[0]).tolist())
    edge = 0
    if isinstance(domain, Ball):
        length = norm(optima - constant(domain.centre, optima))
        edge = int(np.sum(length >= domain.radius * (1 - 1e-6)))
    from_start = domain.divergence(optima, start)
    same = {name: getattr(found, name) for name in ("mean", "diameter", "tight", "deviation")}
    return SimilarityReport(
        **same,
        optima=optima,
        weight=weight,
        distances=distances,
        centre=ball.centre,
        radius=ball.radius,
        radius_gap=ball.gap,
        outliers=outliers,
        diameter_without=spread(domain, np.delete(optima, outliers, axis=0)).diameter,
        edge=edge,
        single=weight / scale * (from_start / reach + reach),
        tuned=2 * math.sqrt(weight @ from_start / weight.sum()),
        learned=weight / scale * _learned(domain, optima, weight, start),
        eventually=2 * found.deviation,
        domain=domain,
        names=None if names is None else tuple(names),
    )


def _read(
    data: Any, domain: Domain | None, start: Any
) -> tuple[np.ndarray, np.ndarray, Domain, Any]:
    """Optima [T, d], weights sigma [T], the domain and phi_1 [d], as NumPy arrays."""
    weight = np.zeros(0)
    if isinstance(data, History):
        if data.keep not in ("all", "vectors") or data.regret.ndim != 1:
            fix = "leave out an estimator's store=, give fmrl.run one order and keep='vectors'"
            raise FMRLError("the report needs one run with its optima", fix=fix)
        domain = data.algo.domain if domain is None else domain
        start = data.start.phi if start is None else start
        optima, weight = to_numpy(data.optimum), weights(data.lipschitz, data.rounds)
    elif isinstance(data, (list, tuple)) and data and all(isinstance(task, Task) for task in data):
        if domain is None:
            fix = "give one, such as Ball(1.0)"
            raise FMRLError("the optima of tasks depend on the domain", fix=fix)
        games = [task.open() for task in data]
        if len({game.dim for game in games}) > 1:
            raise FMRLError("tasks of different dimensions cannot be compared")
        optima = np.stack([to_numpy(game.hindsight(domain).theta) for game in games])
        steep = [float(game.lipschitz(domain)) for game in games]
        weight = weights(steep, [game.length for game in games])
    else:
        optima = to_numpy(as_float(as_array(data), "optima"))
    optima = optima.astype(float)
    if domain is None:
        finite = optima.ndim == 2 and np.isfinite(optima).all()
        domain = Ball((float(np.max(norm(optima), initial=0.0)) if finite else 0.0) or 1.0)
    if start is None:
        start = domain.middle(zeros(optima.shape[-1:], optima))
    weight = weight if weight.sum() > 0 else np.ones(len(optima))
    return optima, weight, domain, to_numpy(as_float(start)).astype(float)


def _learned(domain: Domain, optima: np.ndarray, weight: np.ndarray, start: Any) -> np.ndarray:
    """B_R(θ*_t‖phi_t)/D_t + D_t of Algorithm 2 with the theory's epsilon and gamma, [T]."""
    growth = 1 + math.log(len(optima))
    rule = Doubling(float(domain.reach(start)) * growth / len(optima), growth / (growth - 1))
    algo = FMRL(domain, similarity=rule)
    before, _ = scan(algo, algo.init(start), End(optima, optima, weight))
    return domain.divergence(optima, before.phi) / before.guess + before.guess

"""Certificates: how good a run was, what was promised for it, and on what grounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fmrl.core.checks import positive_or_none
from fmrl.core.ensemble import Ensemble, Hedge
from fmrl.core.history import History
from fmrl.errors import FMRLError
from fmrl.files import from_json
from fmrl.records import plain
from fmrl.theory.bounds import Assumption, Bound, hedge
from fmrl.theory.certificate import render
from fmrl.theory.certificate.facts import Facts, read
from fmrl.theory.certificate.privacy import privacy
from fmrl.theory.certificate.which_bound import applicable_bounds, contradiction, limit

__all__ = ["Certificate", "certify"]
POINTS = 400  # of a curve in the record: enough for a figure


@dataclass(frozen=True)
class Certificate:
    """Measured TAR, the bounds that apply with their slack, and every assumption with its status.

    Prints as rich text; `markdown`, `json` and `figure` are the other renderings.

    Args:
        composition: The algorithm, as its repr.
        tasks: T.
        interval: Holds the true TAR, whatever the solver left undone.
        similarity: D*, D̄ and D.
        violations: Tasks whose guess was violated, from 0; None where the rule learns a step and
            guesses no distance.
        bounds: Guarantees, tightest first.
        refused: (bound, why it does not apply).
        limit: What an adversary could force with tasks as dissimilar as these.
        assumptions: Each with its status.
        curves: Running means by "task": "tar" and "bound" (Theorem A.1).
        reason: Why no certificate can be given.
        privacy: What is promised to tasks and rows, and what is not, as sentences.
    """

    composition: str
    tasks: int = 0
    interval: tuple[float, float] = (math.nan, math.nan)
    similarity: Mapping[str, float] = field(default_factory=dict)
    violations: tuple[int, ...] | None = ()
    bounds: tuple[Bound, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    limit: Bound | None = None
    assumptions: tuple[Assumption, ...] = ()
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    reason: str = ""
    privacy: tuple[str, ...] = ()

    @property
    def applicable(self) -> bool:
        """Whether at least one bound holds."""
        return bool(self.bounds)

    @property
    def tightest(self) -> Bound | None:
        """The smallest guarantee."""
        return self.bounds[0] if self.bounds else None

    @property
    def theorem(self) -> Bound | None:
        """The smallest guarantee that speaks of similarity, not of each task as it was played."""
        return next((b for b in self.bounds if not b.name.startswith("per-task")), None)

    def slack(self, bound: Bound) -> tuple[float, float]:
        """Bound minus measured TAR (its upper end), and their ratio (inf where TAR ≤ 0).

        Args:
            bound: One of `bounds`.
        """
        measured = self.interval[1]
        return bound.total - measured, bound.total / measured if measured > 0 else math.inf

    @property
    def reading(self) -> str:
        """The certificate in a paragraph of plain English."""
        return render.reading(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        slack = [dict(zip(("slack", "ratio"), self.slack(b), strict=True)) for b in self.bounds]
        return {
            "kind": "fmrl certificate",
            "composition": self.composition,
            "applicable": self.applicable,
            "reason": self.reason,
            "tasks": self.tasks,
            "tar": list(self.interval),
            "similarity": dict(self.similarity),
            "violations": None if self.violations is None else list(self.violations),
            "bounds": [b.to_dict() | found for b, found in zip(self.bounds, slack, strict=True)],
            "refused": [{"name": name, "why": why} for name, why in self.refused],
            "limit": None if self.limit is None else self.limit.to_dict(),
            "assumptions": [vars(a) for a in self.assumptions],
            "curves": {name: list(values) for name, values in self.curves.items()},
            "privacy": list(self.privacy),
            "reading": self.reading,
        }

    def json(self, indent: int | None = 2) -> str:
        """The record as JSON; numbers that JSON lacks (nan, inf) become null.

        Args:
            indent: As in `json.dumps`.
        """
        return json.dumps(plain(self.to_dict()), indent=indent, ensure_ascii=False)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Certificate:
        """The certificate back from its record, so that figures can be drawn from records alone.

        Args:
            record: Of `to_dict`, or of `json` with null for nan and inf.
        """
        number = lambda x, empty=math.inf: empty if x is None else float(x)  # noqa: E731
        low, high = (number(x, math.nan) for x in record["tar"])
        curves = {name: tuple(map(number, values)) for name, values in record["curves"].items()}
        return cls(
            composition=record["composition"],
            tasks=record["tasks"],
            interval=(low, high),
            similarity={name: number(x) for name, x in record["similarity"].items()},
            violations=None if record["violations"] is None else tuple(record["violations"]),
            bounds=tuple(Bound.from_dict(b) for b in record["bounds"]),
            refused=tuple((r["name"], r["why"]) for r in record["refused"]),
            limit=None if record["limit"] is None else Bound.from_dict(record["limit"]),
            assumptions=tuple(Assumption(**a) for a in record["assumptions"]),
            curves=curves,
            reason=record["reason"],
            privacy=tuple(record.get("privacy", ())),
        )

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The inverse of `json`.

        Args:
            text: What `json` returned.
        """
        try:
            return cls.from_dict(from_json(text))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"this is not a stored certificate ({type(error).__name__}: {error})"
            raise FMRLError(what, fix="give what json() wrote") from None

    def markdown(self) -> str:
        """A report in Markdown."""
        return render.markdown(self)

    def figure(self, path: Any = None) -> Any:
        """Measured TAR against the bounds as tasks arrive, and the terms of each bound: a Figure.

        Args:
            path: Where to save it, if anywhere.
        """
        return render.figure(self, path)

    def __rich__(self):
        return render.rich_table(self)

    def __str__(self):
        return render.text(self)

    def __repr__(self):
        if not self.applicable:
            return f"Certificate(not applicable: {self.reason})"
        (low, high), best = self.interval, self.bounds[0]
        tar = f"{high:.6g}" if math.isclose(low, high, rel_tol=1e-6) else f"[{low:.6g}, {high:.6g}]"
        return f"Certificate(tasks={self.tasks}, tar={tar}, {best.name}={best.total:.6g})"

    _repr_markdown_ = markdown


def certify(
    history: Any, tasks: Any = None, y: Any = None, task: Any = None, *,
    growth: float | None = None, order: int | None = None,
) -> Any:  # fmt: skip
    """Measure a run against every bound that applies to the composition which produced it; or the
    predictions of an estimator, ``certify(estimator, X, y, task)``, as its method does.

    A run that no theorem speaks of (foreign, non-convex, an unknown learner) yields a certificate
    that says so and why. What is the user's own, a loss, a domain or a rule that this library does
    not define, is assumed by its name.

    Args:
        history: What `fmrl.run` returned, or an estimator. A history knows of its tasks whether
            they were rows of the library's own losses, which are convex, and a checksum of each.
        tasks: As they were played, in that order: their G_t are used where the run was given one
            (``FMRL(lipschitz=…)``). Tasks with another checksum are refused. Of an estimator: rows
            of tasks that it has not seen.
        y: Labels or numbers of an estimator's rows.
        task: The tasks of an estimator's rows.
        growth: α, if the tasks' mean losses are known to grow quadratically (for FLI-Online), or
            their risks (for FAL and FLI-Batch with i.i.d. rows).
        order: Which of several orders, from 0.

    >>> import numpy as np, fmrl
    >>> y = np.array([0.1, 0.2, 0.0])
    >>> tasks = [fmrl.Task(np.eye(3), t * y, loss=fmrl.Squared()) for t in (0.5, 1.0, 1.5, 2.0)]
    >>> c = certify(fmrl.run(fmrl.presets.paper(), tasks), tasks)
    >>> [b.name for b in c.bounds]
    ['per-task sum, sharp', 'per-task sum', 'FAL theorem']
    >>> c.violations, round(c.similarity["D*"], 4)
    ((2, 3), 0.2372)
    """
    if own := getattr(type(history), "certify", None):
        return own(history, tasks, y, task)
    if not isinstance(history, History):
        what, none = type(history).__name__, "only a History of convex tasks can be certified"
        why = getattr(history, "nonconvex", None) or f"no theorem here speaks of it: {none}"
        return Certificate(what, reason=f"{what}: {why}")
    if not len(history):
        return Certificate(repr(history.algo), reason="no task was played")
    positive_or_none(growth=growth)
    found = _measured(history, tasks, growth, order)
    return replace(found, privacy=privacy(history, order, found.bounds))


def _measured(
    history: History, tasks: Iterable[Any] | None, growth: float | None, order: int | None
) -> Certificate:
    if history.keep == "totals":
        reason = "only totals were kept; leave out an estimator's store=, give fmrl.run keep='all'"
        return Certificate(repr(history.algo), reason=reason)
    facts = read(history, tasks, order)
    if isinstance(history.algo, Ensemble):
        return _of_ensemble(history, facts)
    bounds, refused, optima = applicable_bounds(facts, growth)
    similarity = {}
    if optima is not None:
        D = facts.algo.domain.diameter(optima.mean.size)
        similarity = {"D*": optima.diameter, "D̄": optima.deviation, "D": D}
        if not optima.tight:
            why = "there are many tasks; D* is an upper bound, at most twice too large"
            refused.append(("exact D*", why))
    low = float(facts.regret.mean())
    return Certificate(
        composition=repr(facts.algo),
        tasks=facts.count,
        interval=(low, low + float(facts.gap.mean())),
        similarity=similarity,
        violations=None if facts.absolute else facts.violations,
        bounds=tuple(sorted(bounds, key=lambda b: b.total)),
        refused=tuple(refused),
        limit=limit(facts, optima),
        assumptions=_all_assumptions(facts, bounds),
        curves=_curves(facts),
        reason="" if bounds else "; ".join(f"{name}: {why}" for name, why in refused),
    )


def _of_ensemble(history: History, facts: Facts) -> Certificate:
    """Hedge: its regret against the best member, from what its weights remember."""
    low, gap, reason = float(facts.regret.mean()), float(facts.gap.mean()), ""
    if type(history.algo) is not Hedge:
        reason = "for centres that move no guarantee is known; fmrl.bounds.centres bounds what"
        reason += " choosing costs inside a task"
    elif facts.earlier:
        reason = f"the history begins after {facts.earlier} tasks; the bound is on whole runs"
    elif history.keep != "all":
        reason = "the losses were not kept; run with keep='all'"
    shown: dict[str, Any] = {"tasks": facts.count, "interval": (low, low + gap)}
    shown["violations"] = None
    if not reason:
        own = () if facts.order is None else (facts.order,)
        optimal = sum(float(row[own].sum()) for row in history.losses) - facts.count * low
        cost, apart = facts.of_this_order(facts.memory)
        tars = (cost - optimal) / facts.count
        found = hedge(tars, float(apart), facts.count, rate=history.algo.rate)
        found = found.given(facts.convexity, *facts.domain_assumptions[:1])
        if found.broken:
            reason = f"{found.broken[0]}"
        elif why := contradiction(facts, found):
            reason = f"{found.name}: {why}"
        shown["bounds"] = () if reason else (found.plus("solver gap", gap) if gap > 0 else found,)
        shown["assumptions"] = found.assumptions
    return Certificate(repr(history.algo), reason=reason, **shown)


def _all_assumptions(facts: Facts, bounds: list[Bound]) -> tuple[Assumption, ...]:
    """Every assumption of the run and of its bounds, once."""
    bounds = sorted(bounds, key=lambda b: b.total)
    found = {a.name: a for bound in bounds for a in bound.assumptions}
    found = facts.assumptions | found | facts.assumptions  # those of the run stand first
    return tuple(found.values())


def _curves(facts: Facts) -> dict[str, tuple[float, ...]]:
    """Running means, at as many tasks as a figure needs."""
    count = np.arange(1, facts.count + 1)
    some = np.geomspace(1, facts.count, min(facts.count, POINTS)).round().astype(int)
    curves = {"task": count, "tar": np.cumsum(facts.regret) / count}
    curves["bound"] = np.cumsum(facts.task_bounds) / count
    keep = np.unique(some) - 1
    return {name: tuple(map(float, curve[keep])) for name, curve in curves.items()}

"""Certificate: how good a run was, what was promised for it, and on what grounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fmrl.theory.bounds.bound import Assumption, Bound

POINTS = 400  # of a curve in the record: enough for a figure


@dataclass(frozen=True)
class Certificate:
    """Measured TAR, the bounds that apply with their slack, and every assumption with its status.

    ``bounds`` are guarantees, tightest first; ``refused`` lists what does not apply and why;
    ``limit`` is what an adversary could force with tasks as dissimilar as these. Prints as rich
    text; `markdown`, `json` and `figure` are the other renderings."""

    composition: str
    tasks: int = 0
    interval: tuple[float, float] = (
        math.nan,
        math.nan,
    )  # holds the true TAR, whatever the solver left undone
    similarity: Mapping[str, float] = field(default_factory=dict)  # D*, D̄, D, k
    violations: tuple[int, ...] = ()  # tasks, from 0
    bounds: tuple[Bound, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    limit: Bound | None = None
    assumptions: tuple[Assumption, ...] = ()
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # task, tar, bound
    reason: str = ""  # why no certificate can be given

    @property
    def applicable(self) -> bool:
        """Whether there is anything to certify: at least one bound holds."""
        return bool(self.bounds)

    @property
    def tightest(self) -> Bound | None:
        """The smallest guarantee."""
        return self.bounds[0] if self.bounds else None

    @property
    def theorem(self) -> Bound | None:
        """The smallest guarantee that speaks of similarity, rather than the sum over the tasks as
        they were played.
        """
        return next((b for b in self.bounds if not b.name.startswith("per-task")), None)

    def slack(self, bound: Bound) -> tuple[float, float]:
        """Bound minus measured TAR, and their ratio (inf where the TAR is not positive); measured
        at its upper end.
        """
        measured = self.interval[1]
        return bound.total - measured, bound.total / measured if measured > 0 else math.inf

    @property
    def reading(self) -> str:
        """The certificate in a paragraph of plain English."""
        from fmrl.theory.certificate.sentences import reading

        return reading(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "kind": "fmrl certificate",
            "composition": self.composition,
            "applicable": self.applicable,
            "reason": self.reason,
            "tasks": self.tasks,
            "tar": list(self.interval),
            "similarity": dict(self.similarity),
            "violations": list(self.violations),
            "bounds": [
                {**b.to_dict(), "slack": self.slack(b)[0], "ratio": self.slack(b)[1]}
                for b in self.bounds
            ],
            "refused": [{"name": name, "why": why} for name, why in self.refused],
            "limit": None if self.limit is None else self.limit.to_dict(),
            "assumptions": [vars(a) for a in self.assumptions],
            "curves": {name: list(values) for name, values in self.curves.items()},
            "reading": self.reading,
        }

    def json(self, indent: int | None = 2) -> str:
        """The record as JSON; numbers that JSON lacks (nan, inf) become null."""
        return json.dumps(_plain(self.to_dict()), indent=indent, ensure_ascii=False)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Certificate:
        """The certificate back from its record, so that figures can be drawn from records alone."""
        number = lambda x, empty: empty if x is None else float(x)  # noqa: E731
        low, high = (number(x, math.nan) for x in record["tar"])
        return cls(
            composition=record["composition"],
            tasks=record["tasks"],
            interval=(low, high),
            similarity={name: number(x, math.inf) for name, x in record["similarity"].items()},
            violations=tuple(record["violations"]),
            bounds=tuple(Bound.from_dict(b) for b in record["bounds"]),
            refused=tuple((r["name"], r["why"]) for r in record["refused"]),
            limit=None if record["limit"] is None else Bound.from_dict(record["limit"]),
            assumptions=tuple(Assumption(**a) for a in record["assumptions"]),
            curves={
                name: tuple(number(x, math.inf) for x in values)
                for name, values in record["curves"].items()
            },
            reason=record["reason"],
        )

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The inverse of `json`."""
        return cls.from_dict(json.loads(text))

    def markdown(self) -> str:
        """A report in Markdown."""
        from fmrl.theory.certificate.render import markdown

        return markdown(self)

    def figure(self, path: Any = None) -> Any:
        """Measured TAR against the bounds as tasks arrive, and the terms of each bound; saved to
        ``path`` if given.
        """
        from fmrl.theory.certificate.render import figure

        return figure(self, path)

    def __rich__(self):
        from fmrl.theory.certificate.render import rich_table

        return rich_table(self)

    def __str__(self):
        from fmrl.theory.certificate.render import text

        return text(self)

    def __repr__(self):
        if not self.applicable:
            return f"Certificate(not applicable: {self.reason})"
        low, high = self.interval
        best = self.bounds[0]
        tar = f"{high:.6g}" if math.isclose(low, high, rel_tol=1e-6) else f"[{low:.6g}, {high:.6g}]"
        return f"Certificate(tasks={self.tasks}, tar={tar}, {best.name}={best.total:.6g})"

    _repr_markdown_ = markdown


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

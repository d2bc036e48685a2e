"""What each chart shows, as data for the page's script: series with their own x and y, and axes.
Facts come `slim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.report.facts import Curves, Facts, HeldOut, SimilarityMap
from fmrl.report.fewer_points import CLOUD, MOST, thin, thin_cloud
from fmrl.report.text import as_number, clean, count, number

Spec = dict[str, Any]
# Inks, dashes and marks are numbers: page.css and page.js say what they look like. Mark 4 is a
# cross.


def column(values: Sequence[Any], rows: int, what: str) -> list[float | None]:
    """Numbers to six digits, None where there is none; refuses a column of another length."""
    if len(values) != rows:
        raise FMRLError(
            f"the report's {what} has {len(values)} values where {rows} are needed",
            fix="give one per row",
        )
    found = map(as_number, values)
    return [None if x is None else float(f"{x:.6g}") for x in found]


def slim(facts: Facts) -> Facts:
    """The facts with curves and map thinned, if somebody gave them whole."""
    found: dict[str, Any] = dict(facts)
    curves = facts.get("curves")
    if curves is not None:
        rows = len(curves["task"])
        columns = {k: v for k, v in curves.items() if isinstance(v, (list, tuple)) and k != "name"}
        whole = {k: column(v, rows, f"curves.{k}") for k, v in columns.items()}
        names = {"name": list(curves["name"])} if curves.get("name") is not None else {}
        if names and len(names["name"]) != rows:
            raise FMRLError(
                f"the report's curves name {len(names['name'])} of {rows} tasks",
                fix="name each task",
            )
        kept = (
            thin([np.array(v, dtype=float) for k, v in whole.items() if k != "task"], MOST)
            if rows
            else ()
        )
        short = {k: [v[i] for i in kept] for k, v in {**whole, **names}.items()}
        found["curves"] = {
            "of": rows,
            **curves,
            **short,
            "task": [int(curves["task"][i]) for i in kept],
        }
    cloud = facts.get("similarity")
    if cloud is not None and len(cloud["points"]) > CLOUD:
        points = cloud["points"]
        xy = np.array([[as_number(p["x"]), as_number(p["y"])] for p in points], dtype=float)
        odd = np.array([i for i, p in enumerate(points) if p.get("outlier")], dtype=int)
        found["similarity"] = {
            "of": len(points),
            "outliers": odd.size,
            **cloud,
            "points": [points[i] for i in thin_cloud(xy, odd)],
        }
    return found  # type: ignore[return-value]


def holding(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    """The bounds of a certificate that may be shown as guarantees: no assumption of theirs is known
    to be false.
    """
    return [
        b
        for b in certificate.get("bounds", ())
        if all(a["status"] != "false" for a in b.get("assumptions", ()))
    ]


def tar(facts: Facts) -> Spec:
    """TAR against tasks seen. A bound is drawn only where no assumption of it is known to be false."""
    curves = facts["curves"]
    task, names = curves["task"], _names(curves)
    first = {
        "name": "measured TAR",
        "ink": 0,
        "x": task,
        "y": curves["tar"],
        "style": "line",
        "names": names,
    }
    series, certificate = [first], facts.get("certificate")
    if certificate is None:
        if "bound" in curves:
            series.append(
                {
                    "name": "bound, assumptions unchecked",
                    "ink": 5,
                    "x": task,
                    "y": curves["bound"],
                    "style": "line",
                    "dash": 1,
                }
            )
    elif summed := next((b for b in holding(certificate) if b["name"] == "per-task sum"), None):
        trusted = any(a["status"] == "assumed" for a in summed.get("assumptions", ()))
        drawn = certificate.get("curves") or {}
        x = [int(t) for t in drawn.get("task", ())]
        y = column(drawn.get("bound", ()), len(x), "certificate.curves.bound")
        series.append(
            {
                "name": "bound, partly on trust" if trusted else "proved bound",
                "ink": 1,
                "x": x,
                "y": y,
                "style": "line",
                "dash": 1,
            }
        )
        last = [curves.get("of") or (task[-1] if task else 1)]
        named = [b for b in holding(certificate) if not b["name"].startswith("per-task")]
        for i, b in enumerate(named[:2]):
            name = f"{clean(b['name'])}, whole run"
            series.append(
                {
                    "name": name,
                    "ink": 2 + i,
                    "x": last,
                    "y": [as_number(b["total"])],
                    "style": "dots",
                    "mark": 3 - i,
                }
            )
    if any(
        _apart(*ends) for ends in zip(curves["tar"], curves.get("tar_at_most", ()), strict=False)
    ):
        series.append(
            {
                "name": "TAR at most",
                "ink": 5,
                "x": task,
                "y": curves["tar_at_most"],
                "style": "line",
                "dash": 2,
            }
        )
    positive = [y for s in series for y in s["y"] if y is not None and y > 0]
    wide = len(positive) == sum(y is not None for s in series for y in s["y"]) and max(
        positive, default=1
    ) > 30 * min(positive, default=1)
    return {
        "id": "tar",
        "x": {
            "label": "tasks seen",
            "unit": "task",
            "log": len(task) > 20,
            "toggle": "log tasks",
            "whole": True,
        },
        "y": {"label": "regret per task", "log": wide, "toggle": "log regret", "zero": True},
        "series": [s for s in series if s["x"]],
    }


def _names(curves: Curves) -> list[str] | None:
    return None if curves.get("name") is None else [clean(name) for name in curves["name"]]


def _apart(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and high - low > 1e-3 * abs(high)


def guess(curves: Curves) -> Spec:
    """The guess D_t and, task by task, the distance it guessed."""
    task, series = curves["task"], []
    if "distance" in curves:
        look = {"ink": 5, "style": "dots", "mark": 0, "faint": True}
        series.append({"name": "distance of the task", "x": task, "y": curves["distance"], **look})
    series.append(
        {
            "name": "guess Dₜ",
            "ink": 0,
            "x": task,
            "y": curves["guess"],
            "style": "line",
            "names": _names(curves),
        }
    )
    return {
        "id": "guess",
        "x": {
            "label": "tasks seen",
            "unit": "task",
            "log": len(task) > 20,
            "toggle": "log tasks",
            "whole": True,
        },
        "y": {"label": "distance, √B", "log": False, "toggle": "log distance", "zero": True},
        "series": series,
    }


def similarity(found: SimilarityMap) -> Spec:
    """The map: a dot per task, outliers as crosses, phi and the enclosing ball."""
    points = found["points"]
    series = []
    for label, odd, look in (
        ("tasks", False, {"ink": 0, "mark": 0, "faint": True}),
        ("outliers", True, {"ink": 2, "mark": 4}),
    ):
        chosen = [
            p for p in points if bool(p.get("outlier")) == odd and as_number(p["x"]) is not None
        ]
        columns = {
            k: column([p[k] for p in chosen], len(chosen), f"similarity.{k}")
            for k in ("x", "y", "distance")
        }
        names = [clean(p["name"]) for p in chosen]
        notes = [f"distance {number(d)}" for d in columns["distance"]]
        if chosen:
            series.append(
                {
                    "name": label,
                    "style": "dots",
                    "x": columns["x"],
                    "y": columns["y"],
                    "names": names,
                    "notes": notes,
                    **look,
                }
            )
    phi = found.get("phi")
    if phi is not None and None not in map(as_number, phi):
        at = column(phi, 2, "similarity.phi")
        series.append(
            {
                "name": "phi",
                "ink": 1,
                "style": "dots",
                "mark": 3,
                "x": at[:1],
                "y": at[1:],
                "names": ["phi, the learned start"],
            }
        )
    ball = found.get("ball")
    return {
        "id": "similarity",
        "equal": True,
        "x": {"label": _axis("first direction", found, 0)},
        "y": {"label": _axis("second direction", found, 1)},
        "circle": None
        if ball is None or None in map(as_number, ball)
        else column(ball, 3, "similarity.ball"),
        "series": series,
    }


def _axis(label: str, found: SimilarityMap, i: int) -> str:
    share = as_number((found.get("explained") or (None, None))[i])
    return label if share is None else f"{label}, {100 * share:.0f} % of variance"


def heldout(found: HeldOut) -> Spec:
    """Score against shots with intervals, a line per method."""
    shots, series = [int(s) for s in found["shots"]], []
    for i, method in enumerate(found["methods"]):
        what = f"heldout {method['name']}"
        entry = {
            "name": clean(method["name"]),
            "ink": i % 5,
            "dash": i % 4,
            "mark": i % 4,
            "style": "both",
            "x": shots,
        }
        entry["y"] = column(method["mean"], len(shots), what)
        for end in ("low", "high"):
            if end in method:
                entry[end] = column(method[end], len(shots), what)
        series.append(entry)
    accuracy = found["metric"] == "accuracy"
    return {
        "id": "heldout",
        "x": {
            "label": f"shots (rows of the new task learned from{', per class' if accuracy else ''})",
            "unit": "shots",
            "log": True,
            "ticks": shots,
            "whole": True,
        },
        "y": {
            "label": "accuracy" if accuracy else "R²",
            "percent": accuracy,
            "digits": 4,
            "floor": None if accuracy else -1,
        },
        "series": series,
    }


def thinned(drawn: int, of: Any) -> str:
    """One sentence where not every task is drawn, else nothing."""
    whole = as_number(of)
    if whole is None or whole <= drawn:
        return ""
    return f"{count(drawn)} of {count(whole)} tasks are drawn"

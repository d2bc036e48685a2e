"""What each chart shows, as data for the page's script, with no more points than a page can hold.

A chart is a dictionary of axes and series. Inks, dashes and marks are numbers: page.css and page.js
say what they look like. Mark 4 is a cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.report.facts import METRICS, Curves, Facts, HeldOut, SimilarityMap
from fmrl.report.html import as_number, clean, count, number

Spec = dict[str, Any]
MOST = 2400  # points of a curve
CLOUD = 1500  # points of a map
SUMMED = ("per-task sum", "per-task sum, observed")  # of which the certificate has the curve


def thin(columns: list[np.ndarray], most: int = MOST) -> np.ndarray:
    """Indices to keep of columns [T]: both ends, and of each stretch its first row and where each
    column is least and largest.

    Stretches are even on a logarithmic and on a linear axis, so the picture is true on both. NaN
    counts neither as least nor as largest.

    >>> y = np.zeros(100_000)
    >>> y[777] = 5.0
    >>> kept = thin([y])
    >>> len(kept) <= MOST, 777 in kept, kept[0], kept[-1]
    (True, True, np.int64(0), np.int64(99999))
    """
    length = len(columns[0])
    if length <= most:
        return np.arange(length)
    stretches = max(2, (most - 2) // (1 + 2 * len(columns)))
    half = stretches // 2
    even = np.geomspace(1, length, half + 1), np.linspace(0, length, stretches - half)
    edges = np.unique(np.concatenate([[0], *even]).astype(int))
    edges = edges[edges < length]
    kept = [edges, [length - 1]]
    for column in columns:
        column = np.asarray(column, dtype=float)
        good = np.isfinite(column)
        for fill, pick in ((np.inf, np.minimum), (-np.inf, np.maximum)):
            filled = np.where(good, column, fill)
            best = pick.reduceat(filled, edges)
            where = np.flatnonzero(filled == np.repeat(best, np.diff([*edges, length])))
            where = where[good[where]]
            stretch = np.searchsorted(edges, where, side="right") - 1
            kept.append(where[np.unique(stretch, return_index=True)[1]])
    return np.unique(np.concatenate(kept)).astype(np.int64)


def thin_cloud(xy: np.ndarray, always: np.ndarray, most: int = CLOUD) -> np.ndarray:
    """Indices to keep of points [T, 2]: those of ``always`` (the first of them), the extremes in 16
    directions, and a fixed random share.

    >>> kept = thin_cloud(np.random.default_rng(0).normal(size=(100_000, 2)), np.array([5]))
    >>> len(kept), bool(5 in kept)
    (1500, True)
    """
    if len(xy) <= most:
        return np.arange(len(xy))
    angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    filled = np.nan_to_num(xy, nan=0.0, posinf=0.0, neginf=0.0)
    far = np.argmax(filled @ np.stack([np.cos(angle), np.sin(angle)]), axis=0)
    shuffled = np.random.default_rng(0).permutation(len(xy))
    order = np.concatenate([np.asarray(always, dtype=int)[: most // 2], far, shuffled])
    first = np.sort(np.unique(order, return_index=True)[1])[:most]
    return np.sort(order[first])


def column(values: Sequence[Any], rows: int, what: str) -> list[float | None]:
    """Numbers to six digits, None where there is none; refuses a column of another length."""
    if len(values) != rows:
        given = f"the report's {what} has {len(values)} values where {rows} are needed"
        raise FMRLError(given, fix="give one per row")
    return [None if (x := as_number(v)) is None else float(f"{x:.6g}") for v in values]


def thinned_facts(facts: Facts) -> Facts:
    """The facts with curves and map thinned, if the caller has not done so."""
    found: dict[str, Any] = dict(facts)
    if (curves := facts.get("curves")) is not None:
        rows = len(curves["task"])
        lists = {k: v for k, v in curves.items() if isinstance(v, (list, tuple)) and k != "name"}
        whole: dict[str, Any] = {k: column(v, rows, f"curves.{k}") for k, v in lists.items()}
        numbers = [np.array(v, dtype=float) for k, v in whole.items() if k != "task"]
        kept = thin(numbers) if rows else ()
        whole["task"] = [int(t) for t in curves["task"]]
        if curves.get("name") is not None:
            whole["name"] = list(curves["name"])
            if len(whole["name"]) != rows:
                what = f"the report's curves name {len(whole['name'])} of {rows} tasks"
                raise FMRLError(what, fix="name each task")
        short = {k: [v[i] for i in kept] for k, v in whole.items()}
        found["curves"] = {"of": rows, **curves, **short}
    if (cloud := facts.get("similarity")) is not None and len(cloud["points"]) > CLOUD:
        points = cloud["points"]
        xy = np.array([[as_number(p["x"]), as_number(p["y"])] for p in points], dtype=float)
        odd = np.array([i for i, p in enumerate(points) if p.get("outlier")], dtype=int)
        short = {"points": [points[i] for i in thin_cloud(xy, odd)]}
        found["similarity"] = {"of": len(points), "outliers": odd.size, **cloud, **short}
    return found  # type: ignore[return-value]


def specs(facts: Facts) -> list[Spec]:
    """The charts for which there are facts."""
    curves = facts.get("curves", {})
    drawn = [heldout(facts["heldout"])] if "heldout" in facts else []
    drawn += [tar(facts)] if "curves" in facts else []
    drawn += [guess(curves)] if {"guess", "step"} & {*curves} else []
    alike = facts.get("similarity", {})
    drawn += [similarity(facts["similarity"])] if "similarity" in facts else []
    return drawn + ([environment(alike["environment"])] if "environment" in alike else [])


def holding(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    """The bounds of a certificate that may be shown as guarantees: no assumption of theirs is known
    to be false.
    """
    known = lambda b: [a["status"] for a in b.get("assumptions", ())]  # noqa: E731
    return [b for b in certificate.get("bounds", ()) if "false" not in known(b)]


def _series(name: str, style: str, ink: int, x: Any, y: Any, **more: Any) -> Spec:
    return {"name": name, "style": style, "ink": ink, "x": x, "y": y, **more}


def _over_tasks(task: list[int], about: str, label: str, log: bool, **more: Any) -> Spec:
    """Axes of a chart against tasks seen."""
    x = {"label": "tasks seen", "unit": "task", "log": len(task) > 20, "toggle": "log tasks"}
    y = {"label": label, "log": log, "toggle": f"log {about}", "zero": True}
    return {"x": x | {"whole": True}, "y": y, **more}


def tar(facts: Facts) -> Spec:
    """TAR against tasks seen, and the bounds on it of which no assumption is known to be false."""
    curves, certificate = facts["curves"], facts.get("certificate")
    task = curves["task"]
    series = [_series("measured TAR", "line", 0, task, curves["tar"], names=_names(curves))]
    if certificate is None and "bound" in curves:
        name = "bound, assumptions unchecked"
        series.append(_series(name, "line", 5, task, curves["bound"], dash=1))
    proved = holding(certificate or {})
    if summed := next((b for b in proved if b["name"] in SUMMED), None):
        trusted = any(a["status"] == "assumed" for a in summed.get("assumptions", ()))
        drawn = certificate.get("curves") or {}  # type: ignore[union-attr]
        x = [int(t) for t in drawn.get("task", ())]
        y = column(drawn.get("bound", ()), len(x), "certificate.curves.bound")
        name = "bound, partly on trust" if trusted else "proved bound"
        series.append(_series(name, "line", 1, x, y, dash=1))
        last = [curves.get("of") or (task[-1] if task else 1)]
        for i, b in enumerate([b for b in proved if not b["name"].startswith("per-task")][:2]):
            name, value = f"{clean(b['name'])}, whole run", [as_number(b["total"])]
            series.append(_series(name, "dots", 2 + i, last, value, mark=3 - i))
    ends = zip(curves["tar"], curves.get("tar_at_most", ()), strict=False)
    if any(None not in (low, high) and high - low > 1e-3 * abs(high) for low, high in ends):
        series.append(_series("TAR at most", "line", 5, task, curves["tar_at_most"], dash=2))
    shown = [y for s in series for y in s["y"] if y is not None]
    log = all(y > 0 for y in shown) and max(shown, default=1) > 30 * min(shown, default=1)
    axes = _over_tasks(task, "regret", "regret per task", log)
    return {"id": "tar", **axes, "series": [s for s in series if s["x"]]}


def _names(curves: Curves) -> list[str] | None:
    return None if curves.get("name") is None else [clean(name) for name in curves["name"]]


def guess(curves: Curves) -> Spec:
    """The guess D_t and, task by task, the distance it guessed; or the learned step."""
    task, series = curves["task"], []
    if "step" in curves:
        step = _series("step", "line", 0, task, curves["step"], names=_names(curves))
        return {"id": "guess", **_over_tasks(task, "step", "step", False), "series": [step]}
    if "distance" in curves:
        name, distance = "distance of the task", curves["distance"]
        series.append(_series(name, "dots", 5, task, distance, mark=0, faint=True))
    series.append(_series("guess Dₜ", "line", 0, task, curves["guess"], names=_names(curves)))
    return {"id": "guess", **_over_tasks(task, "distance", "distance, √B", False), "series": series}


def similarity(found: SimilarityMap) -> Spec:
    """The map: a dot per task, outliers as crosses, phi and the enclosing ball."""
    series = []
    known = [p for p in found["points"] if as_number(p["x"]) is not None]
    looks = {"tasks": (0, {"mark": 0, "faint": True}), "outliers": (2, {"mark": 4})}
    for label, (ink, look) in looks.items():
        chosen = [p for p in known if bool(p.get("outlier")) == (label == "outliers")]
        x, y, distance = (
            column([p[k] for p in chosen], len(chosen), f"similarity.{k}")
            for k in ("x", "y", "distance")
        )
        look |= {"names": [clean(p["name"]) for p in chosen]}
        look |= {"notes": [f"distance {number(d)}" for d in distance]}
        series += [_series(label, "dots", ink, x, y, **look)] if chosen else []
    phi, ball = found.get("phi"), found.get("ball")
    if phi is not None and None not in map(as_number, phi):
        (x, y), names = column(phi, 2, "similarity.phi"), ["phi, the learned start"]
        series.append(_series("phi", "dots", 1, [x], [y], mark=3, names=names))
    if ball is not None:
        known_ball = None not in map(as_number, ball)
        ball = column(ball, 3, "similarity.ball") if known_ball else None
    axes = {axis: {"label": _direction(found, i)} for i, axis in enumerate("xy")}
    return {"id": "similarity", "equal": True, **axes, "circle": ball, "series": series}


def environment(found: dict[str, Any]) -> Spec:
    """How far tasks lie from where they would start, in stretches, and where they change."""
    curve, series = found["curve"], []
    task = column(curve["task"], len(curve["task"]), "environment.task")
    for i, (key, name) in enumerate({"all": "all tasks before", "recent": "recent tasks"}.items()):
        far = column(curve[key], len(task), f"environment.{key}")
        series.append(_series(f"from the mean of {name}", "line", i, task, far, dash=i))
    top = max((y for s in series for y in s["y"] if y is not None), default=0.0)
    if changes := found["drift"]["changes"]:
        x = column([change["after"] for change in changes], len(changes), "environment.changes")
        names = [f"after {count(c['low'])} to {count(c['high'])} tasks" for c in changes]
        look = {"mark": 3, "names": names}
        series.append(_series("sudden change", "dots", 2, x, [top] * len(x), **look))
    axes = _over_tasks([], "distance", "distance, √B", False)
    return {"id": "environment", **axes, "series": series}


def _direction(found: SimilarityMap, i: int) -> str:
    label = ("first direction", "second direction")[i]
    share = as_number((found.get("explained") or (None, None))[i])
    return label if share is None else f"{label}, {100 * share:.0f} % of variance"


def heldout(found: HeldOut) -> Spec:
    """Score against shots with intervals, a line per method; 0 has no place on a logarithmic axis
    and stands in the table alone.
    """
    every, series = [int(s) for s in found["shots"]], []
    shots = [s for s in every if s > 0]
    for i, method in enumerate(found["methods"]):
        ends = {
            end: _after(every, column(method[end], len(every), f"heldout {method['name']}"))
            for end in ("mean", "low", "high")
            if end == "mean" or end in method
        }
        look = {"dash": i % 4, "mark": i % 4}
        label = clean(method["name"])
        series.append(_series(label, "both", i % 5, shots, ends.pop("mean"), **look, **ends))
    metric = found["metric"]
    counted = next((m["tasks"] for m in found["methods"] if "tasks" in m), None)
    label = "shots (rows of the new task learned from)" + ("; n: tasks" if counted else "")
    x = {"label": label, "unit": "shots", "log": True, "ticks": shots, "whole": True}
    if counted:
        x["under"] = [f"n {count(n)}" for n in _after(every, counted)]
    what = METRICS[metric] + (" (lower is better)" if metric == "log_loss" else "")
    y = {"label": what, "percent": metric == "accuracy", "digits": 4}
    return {"id": "heldout", "x": x, "y": y | {"floor": -1 if metric == "r2" else None},
            "series": series}  # fmt: skip


def _after(shots: list[int], values: list[Any]) -> list[Any]:
    """The values at shots above 0."""
    return [v for s, v in zip(shots, values, strict=True) if s > 0]


def share_drawn(drawn: int, of: Any) -> str:
    """How many of the tasks are drawn, if not all are."""
    whole = as_number(of)
    fewer = whole is not None and whole > drawn
    return f"{count(drawn)} of {count(whole)} tasks are drawn" if fewer else ""

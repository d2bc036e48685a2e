"""From values of the library to facts: what a history, the optima, phi and held-out scores say on a
report page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from fmrl.core.history import History
from fmrl.errors import FMRLError
from fmrl.records import plain
from fmrl.report.facts import Curves, HeldOut, Learned, SimilarityMap
from fmrl.report.fewer_points import CLOUD, MOST, thin, thin_cloud
from fmrl.report.text import clean
from fmrl.theory.bounds.bound import numbers
from fmrl.theory.certificate import Certificate
from fmrl.theory.similarity import enclosing_ball


def curves(history: History, names: Sequence[Any] | None = None, most: int = MOST) -> Curves:
    """TAR with its bound, and the guess with what it guessed, after 1, 2, … tasks; thinned to about
    ``most`` tasks.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task(np.eye(3), t * np.array([0.1, 0.2, 0.0]), loss=fmrl.Squared(), name=f"t{t}") for t in (0.5, 1.0, 1.5)]
    >>> found = curves(fmrl.run(fmrl.presets.paper(), tasks), [task.name for task in tasks])
    >>> found["task"], found["name"], found["of"], round(found["guess"][0], 3)
    ([1, 2, 3], ['t0.5', 't1.0', 't1.5'], 3, 0.807)
    """
    if history.keep == "totals":
        raise FMRLError("the history holds totals only", fix="run with keep='scalars' or 'all'")
    regret, gap = numbers(history.regret), numbers(history.gap)
    if regret.ndim != 1:
        raise FMRLError(f"the history holds {regret.shape[0]} orders", fix="report one")
    if names is not None and len(names) != regret.size:
        raise FMRLError(f"{len(names)} names were given for {regret.size} tasks")
    seen = np.arange(1, regret.size + 1)
    mean = lambda column: np.cumsum(column) / seen  # noqa: E731
    columns = {
        "tar": mean(regret),
        "tar_at_most": mean(regret + gap),
        "bound": mean(numbers(history.bound)),
        "guess": numbers(history.guess),
        "distance": np.sqrt(np.maximum(numbers(history.deviation), 0.0)),
    }
    kept = (
        thin([columns[key] for key in ("tar", "guess", "distance")], most) if regret.size else seen
    )
    found: dict[str, Any] = {key: column[kept] for key, column in columns.items()}
    if names is not None:
        found["name"] = [clean(names[i]) for i in kept]
    violations = int(np.sum(columns["guess"] < columns["distance"]))
    return plain({"task": seen[kept], **found, "of": regret.size, "violations": violations})


def similarity_map(
    optima: Any,
    names: Sequence[Any] | None = None,
    *,
    phi: Any = None,
    most: int = CLOUD,
    ball: bool = True,
) -> SimilarityMap:
    """Where the optima [T, d] lie, seen along their two main directions (PCA), and which of them
    lie far off.

    Distances are ‖θ*_t − med‖₂ from the coordinate-wise median, which outliers cannot move far. A
    task is an outlier beyond

        median distance + z·s,      s = (upper quartile − median) / 0.674,      z = max(3.5, Φ⁻¹(1 − 0.05/T))

    so that of T tasks without outliers rarely one is called so, however large T. phi is drawn where
    it falls in the plane.

    >>> rng = np.random.default_rng(0)
    >>> optima = np.vstack([rng.normal(size=(50, 5)), [[30.0, 0, 0, 0, 0]]])
    >>> found = similarity_map(optima, [f"task {t}" for t in range(51)])
    >>> found["outliers"], found["points"][0]["name"], round(found["points"][0]["distance"])
    (1, 'task 50', 30)
    """
    optima = np.atleast_2d(numbers(optima))
    total = len(optima)
    if names is not None and len(names) != total:
        raise FMRLError(f"{len(names)} names were given for {total} tasks")
    good = np.isfinite(optima).all(axis=1)
    if not good.any():
        raise FMRLError(
            "no task has a finite optimum", fix="look at the data: they may hold infinities"
        )
    centre = np.median(optima[good], axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.linalg.norm(optima - centre, axis=1)
    fence, rule = _fence(distance[good])
    outlier = np.flatnonzero(good & (distance > fence))
    outlier = outlier[np.argsort(-distance[outlier], kind="stable")]
    middle, plane, explained = _plane(optima[good])
    xy = (optima - middle) @ plane.T
    kept = thin_cloud(xy, outlier, most)
    rest = kept[~np.isin(kept, outlier)]
    order = np.concatenate([outlier[np.isin(outlier, kept)], rest]).astype(int)
    flagged = set(outlier.tolist())
    points = [
        {
            "name": clean(f"task {i}" if names is None else names[i]),
            "x": xy[i, 0],
            "y": xy[i, 1],
            "distance": distance[i],
            "outlier": i in flagged,
        }
        for i in order.tolist()
    ]
    found = {
        "points": points,
        "of": total,
        "outliers": len(outlier),
        "explained": explained,
        "fence": fence,
        "rule": rule,
    }
    if phi is not None:
        if numbers(phi).size != middle.size:
            raise FMRLError(f"phi has {numbers(phi).size} entries, the optima {middle.size}")
        found["phi"] = (numbers(phi).reshape(-1) - middle) @ plane.T
    if ball and good.sum() > 1:
        steps = int(
            np.clip(2e9 / optima.size, 20, 2000)
        )  # a ball found early is larger than need be, but encloses all the same
        least = enclosing_ball(optima[good], tolerance=1e-4, steps=steps)
        found["ball"] = [*((least.centre - middle) @ plane.T), least.radius]
    return plain(found)


def _fence(distance: np.ndarray) -> tuple[float, str]:
    middle, upper = np.quantile(distance, [0.5, 0.75])
    z = max(3.5, NormalDist().inv_cdf(1 - 0.05 / len(distance)))
    scale = (upper - middle) / NormalDist().inv_cdf(0.75)
    if scale <= 1e-12 * upper:  # most optima are one and the same
        scale = float(distance.std())
    rule = f"farther from the median of the optima than the median distance + {z:.1f} robust deviations (upper quartile)"
    return float(middle + z * scale + 1e-9 * (1 + upper)), rule


def _plane(optima: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Mean [d], two orthonormal directions [2, d] (zero where there are fewer) and their shares of
    the variance.
    """
    from sklearn.decomposition import PCA

    tasks, dim = optima.shape
    directions, explained = np.zeros((2, dim)), [0.0, 0.0]
    if tasks > 1 and float(np.ptp(optima, axis=0).max()) > 0:
        fitted = PCA(min(2, tasks, dim), random_state=0).fit(optima)
        found = fitted.components_
        directions[: len(found)] = found
        explained[: len(found)] = np.nan_to_num(fitted.explained_variance_ratio_).tolist()
    return optima.mean(axis=0), directions, explained


def coefficients(
    phi: Any,
    features: Sequence[Any],
    outputs: Sequence[Any] | None = None,
    *,
    most: int = 12,
    note: str = "",
) -> Learned:
    """The ``most`` largest entries of phi, by name; phi is flat, [output, feature] row-major.

    >>> coefficients([0.1, -2.0, 0.3, 0.0], ["size", "age"], ["cat", "dog"], most=1)["coefficients"]
    [{'feature': 'age', 'value': -2.0, 'output': 'cat'}]
    """
    flat = numbers(phi).reshape(-1)
    rows = 1 if outputs is None else len(outputs)
    if flat.size != rows * len(features):
        raise FMRLError(
            f"phi has {flat.size} entries, not {rows} × {len(features)}",
            fix="name every feature and output",
        )
    order = np.argsort(-np.nan_to_num(np.abs(flat), nan=-1.0), kind="stable")[:most]
    listed = []
    for i in order.tolist():
        row, column = divmod(i, len(features))
        entry = {"feature": clean(features[column]), "value": flat[i]}
        listed.append(entry if outputs is None else {**entry, "output": clean(outputs[row])})
    return plain({"coefficients": listed, "total": flat.size, "note": note})


def held_out(
    scores: Mapping[str, Any],
    shots: Sequence[int],
    metric: Literal["accuracy", "r2"],
    level: float = 0.95,
) -> HeldOut:
    """Means over held-out tasks with Student intervals, and paired differences of the first method
    (FMRL) from each other one.

    scores: by method, [tasks, shots]; NaN where a task has too few rows. A difference with shots
    None is that of the tasks' own means over all shots they have, one number for the whole
    comparison.

    >>> found = held_out({"FMRL": [[0.8], [0.9], [0.7]], "pooled": [[0.6], [0.8], [0.5]]}, [4], "accuracy")
    >>> d = found["differences"][0]
    >>> d["against"], round(d["mean"], 3), round(d["low"], 3), round(d["high"], 3)
    ('pooled', 0.167, 0.023, 0.31)
    """
    table = {key: numbers(value).reshape(-1, len(shots)) for key, value in scores.items()}
    ours, *others = table
    if len({value.shape for value in table.values()}) > 1:
        raise FMRLError(
            "the methods were scored on different tasks",
            fix="score every method on the same held-out tasks",
        )
    methods = []
    for key, value in table.items():
        mean, low, high, tasks = _student(value, level)
        if metric == "accuracy":  # a mean of accuracies is one; Student's interval may reach beyond
            low, high = (np.clip(end, 0.0, 1.0).tolist() for end in (low, high))
        methods.append({"name": key, "mean": mean, "low": low, "high": high, "tasks": tasks})
    differences = []
    for other in others:
        gain = table[ours] - table[other]
        there = ~np.isnan(gain)
        whole = (
            np.where(there, gain, 0.0).sum(axis=1)[there.any(axis=1)]
            / there.sum(axis=1)[there.any(axis=1)]
        )
        for when, column in [(None, whole), *zip(shots, gain.T, strict=True)]:
            mean, low, high, _ = (values[0] for values in _student(column[:, None], level))
            differences.append(
                {"against": other, "shots": when, "mean": mean, "low": low, "high": high}
            )
    found = {"metric": metric, "shots": list(shots), "methods": methods, "differences": differences}
    return plain({**found, "tasks": len(table[ours])})


def _student(values: np.ndarray, level: float) -> tuple[list[float], ...]:
    """Mean, low, high and count of each column of [tasks, n], NaN left out; fewer than two values
    have no interval.
    """
    from scipy import stats

    rows = []
    for column in values.T:
        column = column[~np.isnan(column)]
        mean = float(column.mean()) if column.size else np.nan
        half = np.nan
        if column.size > 1:
            half = float(
                stats.t.ppf((1 + level) / 2, column.size - 1)
                * column.std(ddof=1)
                / np.sqrt(column.size)
            )
        rows.append((mean, mean - half, mean + half, column.size))
    return tuple(map(list, zip(*rows, strict=True)))


def certificate_facts(certificate: Certificate) -> dict[str, Any]:
    """A certificate as the page reads it; a record read back from JSON needs no conversion.

    >>> certificate_facts(Certificate("x", reason="nothing was played"))["applicable"]
    False
    """
    return plain(certificate.to_dict())


def checksums(files: Iterable[Any]) -> list[dict[str, Any]]:
    """sha256 of each file, with its name alone: where it lay is nobody's business.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("x")
    >>> checksums([path])[0]["name"], checksums([path])[0]["sha256"][:6]
    ('a.csv', '2d7116')
    """
    import hashlib
    from pathlib import Path

    found = []
    for path in map(Path, files):
        with path.open("rb") as stream:
            found.append(
                {"name": path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
            )
    return found

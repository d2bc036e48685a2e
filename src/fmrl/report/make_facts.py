"""From values of the library to facts: what a history, the optima, phi and held-out scores say on a
report page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.domains import Domain
from fmrl.core.history import History
from fmrl.core.metric import Metric
from fmrl.errors import FMRLError
from fmrl.files import sha256
from fmrl.records import plain, versions
from fmrl.report.charts import CLOUD, MOST, thin, thin_cloud
from fmrl.report.facts import Curves, Facts, Learned, SimilarityMap
from fmrl.report.html import clean
from fmrl.stats import outlier_fence
from fmrl.theory.bounds import weights
from fmrl.theory.bounds.bound import numbers
from fmrl.theory.bounds.geometry import enclosing_ball
from fmrl.theory.certificate import Certificate, certify
from fmrl.theory.environment import environment
from fmrl.theory.similarity import similarity_report

COMPARED = 50_000  # tasks; with more, comparing bounds takes too long for a page
KEEP = "fmrl.run(algo, tasks, keep='vectors')"


def facts_of(
    history: History,
    tasks: Sequence[Any] | None = None,
    *,
    title: str = "FMRL run",
    names: Sequence[Any] | None = None,
    features: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
) -> Facts:
    """Everything a history alone can say. What it did not keep is listed as missing, with the
    reason; held-out scores, checksums and the command are the caller's to add.

    Args:
        history: Of one run.
        tasks: Those played; the certificate then checks what it would otherwise assume.
        title: Of the page.
        names: Of the tasks, T of them (default: the tasks' own).
        features: Names of the columns of phi; without them phi is not shown.
        outputs: Names of the rows of phi, the classes, where there are several.

    >>> import fmrl
    >>> tasks = [fmrl.Task(np.eye(2), [0.1 * t, 0.2], loss=fmrl.Squared()) for t in range(4)]
    >>> found = facts_of(fmrl.run(fmrl.presets.paper(), tasks), tasks, features=["size", "age"])
    >>> found["data"], found["learned"]["coefficients"][0]["feature"], sorted(found["missing"])
    ({'tasks': 4, 'rows': 8}, 'age', ['heldout'])
    """
    why = "A history knows only the tasks it was made of, so nothing can be said of new ones."
    missing: dict[str, Any] = {"heldout": {"why": why}}
    found: dict[str, Any] = {"title": title, "data": {"tasks": len(history)}, "missing": missing}
    if names is None and tasks is not None:
        own = [getattr(t, "name", None) for t in tasks]
        names = [i if name is None else name for i, name in enumerate(own)]
    if features is None:
        command = "fmrl.report.facts_of(history, features=[…])"
        missing["learned"] = {"why": "The features were not named.", "command": command}
    else:
        steps = guess.diagonal if isinstance(guess := history.state.guess, Metric) else None
        found["learned"] = coefficients(history.state.phi, features, outputs, steps=steps)
    if history.keep == "totals":
        why = "The history kept totals only."
        missing["curves"] = missing["guess"] = {"why": why, "command": KEEP}
    else:
        found["data"]["rows"] = int(numbers(history.rounds).sum())
        found["curves"] = curves(history, names)
    if history.keep in ("all", "vectors") and len(history):
        found["similarity"] = similarity_of(history, names)
    else:
        why = "The history did not keep the optima of its tasks."
        missing["similarity"] = {"why": why, "command": KEEP}
    found["certificate"] = certificate_facts(certify(history, tasks), names)
    found["run"] = {"composition": repr(history.algo), "versions": versions()}
    return found  # type: ignore[return-value]


def _named(names: Sequence[Any] | None, tasks: int) -> None:
    if names is not None and len(names) != tasks:
        raise FMRLError(f"{len(names)} names were given for {tasks} tasks", fix="name each task")


def curves(history: History, names: Sequence[Any] | None = None, most: int = MOST) -> Curves:
    """TAR with its bound, and the guess with what it guessed or the step, after 1, 2, … tasks.

    Args:
        history: Of one run, with at least scalars kept.
        names: Of the tasks, T of them.
        most: About as many tasks are kept; extremes are always among them.

    >>> import fmrl
    >>> y = np.array([0.1, 0.2, 0.0])
    >>> tasks = [fmrl.Task(np.eye(3), t * y, loss=fmrl.Squared()) for t in (0.5, 1.0, 1.5)]
    >>> found = curves(fmrl.run(fmrl.presets.paper(), tasks), ["a", "b", "c"])
    >>> found["task"], found["name"], found["of"], round(found["guess"][0], 3)
    ([1, 2, 3], ['a', 'b', 'c'], 3, 0.807)
    """
    if history.keep == "totals":
        raise FMRLError("the history holds totals only", fix="run with keep='scalars' or 'all'")
    regret, gap = numbers(history.regret), numbers(history.gap)
    if regret.ndim != 1:
        raise FMRLError(f"the history holds {regret.shape[0]} orders", fix="report one")
    _named(names, regret.size)
    seen = np.arange(1, regret.size + 1)
    sums = {"tar": regret, "tar_at_most": regret + gap, "bound": numbers(history.bound)}
    columns = {name: np.cumsum(column) / seen for name, column in sums.items()}
    found: dict[str, Any] = {"of": regret.size}
    if getattr(getattr(history.algo, "similarity", None), "absolute", False):
        learned = {"step": numbers(history.eta)}
    else:
        far = np.sqrt(np.maximum(numbers(history.deviation), 0.0))
        learned = {"guess": numbers(history.guess), "distance": far}
        found["violations"] = int(numbers(history.violations).sum())
    kept = thin([columns["tar"], *learned.values()], most) if regret.size else seen
    if names is not None:
        found["name"] = [clean(names[i]) for i in kept]
    columns = {"task": seen} | columns | learned
    return plain({key: column[kept] for key, column in columns.items()} | found)


def similarity_map(
    optima: Any,
    names: Sequence[Any] | None = None,
    *,
    phi: Any = None,
    most: int = CLOUD,
    ball: bool = True,
    sigma: Any = None,
    domain: Domain | None = None,
) -> SimilarityMap:
    """Where the optima lie, seen along their two main directions (PCA), which lie far off, and
    whether they drift or fall into groups.

    Distances are ‖θ*_t − med‖₂ from the coordinate-wise median, which outliers cannot move far;
    `fmrl.stats.outlier_fence` says from which distance a task is an outlier.

    Args:
        optima: Of the tasks, [T, d].
        names: Of the tasks, T of them.
        phi: Initialisation [d], drawn where it falls in the plane.
        most: So many points are kept; outliers come first.
        ball: Whether to find the smallest enclosing ball.
        sigma: Weights of the tasks, G_t·√m_t [T]; default: all alike.
        domain: Its divergence tells what drift and groups are worth; default: ½‖·‖².

    >>> rng = np.random.default_rng(0)
    >>> optima = np.vstack([rng.normal(size=(50, 5)), [[30.0, 0, 0, 0, 0]]])
    >>> found = similarity_map(optima, [f"task {t}" for t in range(51)])
    >>> found["outliers"], found["points"][0]["name"], round(found["points"][0]["distance"])
    (1, 'task 50', 30)
    """
    optima = np.atleast_2d(numbers(optima))
    _named(names, len(optima))
    good = np.isfinite(optima).all(axis=1)
    if not good.any():
        fix = "look at the data: they may hold infinities"
        raise FMRLError("no task has a finite optimum", fix=fix)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.linalg.norm(optima - np.median(optima[good], axis=0), axis=1)
    fence, z = outlier_fence(distance[good])
    rule = "farther from the median of the optima than the median distance + "
    outlier = np.flatnonzero(good & (distance > fence))
    outlier = outlier[np.argsort(-distance[outlier], kind="stable")]
    middle, plane, explained = two_directions(optima[good])
    xy = (optima - middle) @ plane.T
    kept = thin_cloud(xy, outlier, most)
    order = [outlier[np.isin(outlier, kept)], kept[~np.isin(kept, outlier)]]
    flagged = set(outlier.tolist())
    points = [
        {
            "name": clean(f"task {i}" if names is None else names[i]),
            "x": xy[i, 0],
            "y": xy[i, 1],
            "distance": distance[i],
            "outlier": i in flagged,
        }
        for i in np.concatenate(order).tolist()
    ]
    found = {"points": points, "of": len(optima), "outliers": len(outlier)}
    found |= {"explained": explained, "fence": fence}
    found |= {"rule": f"{rule}{z:.1f} robust deviations (upper quartile)"}
    if phi is not None:
        if numbers(phi).size != middle.size:
            raise FMRLError(f"phi has {numbers(phi).size} entries, the optima {middle.size}")
        found["phi"] = (numbers(phi).reshape(-1) - middle) @ plane.T
    if ball and good.sum() > 1:
        # A search that ends early finds a larger ball than need be, but it still encloses all.
        steps = int(np.clip(2e9 / optima.size, 20, 2000))
        least = enclosing_ball(optima[good], tolerance=1e-4, steps=steps)
        found["ball"] = [*((least.centre - middle) @ plane.T), least.radius]
    # Tasks without an optimum keep their place in the order, and count for nothing.
    weight = good * (1.0 if sigma is None else numbers(sigma))
    whole = np.where(good[:, None], optima, middle)
    found["environment"] = environment(whole, weight, domain).to_dict()
    for change in found["environment"]["drift"]["changes"] if names is not None else ():
        change["name"] = clean(names[min(int(change["after"]), len(names) - 1)])
    return plain(found)


def similarity_of(history: History, names: Sequence[Any] | None = None) -> SimilarityMap:
    """The map of a history that kept the optima, with what learning across the tasks is `worth`."""
    sigma, phi = weights(history.lipschitz, history.rounds), history.state.phi
    domain = history.algo.domain
    found = similarity_map(history.optimum, names, phi=phi, sigma=sigma, domain=domain)
    return found | worth(history)  # type: ignore[return-value]


def worth(history: History) -> dict[str, Any]:
    """What the theory says learning across these tasks is worth, for `SimilarityMap`: ratios of
    proved bounds to those of learning each task alone.

    Args:
        history: With the optima of its tasks.
    """
    if not 2 <= len(history) <= COMPARED or not np.isfinite(numbers(history.optimum)).all():
        return {}
    try:
        found = similarity_report(history)
    except FMRLError:  # of a domain without bounds, where a task alone has none
        return {}
    known = {"eventually": found.ratio_eventually, "so_far": found.ratio}
    return {"worth": plain(known | {"pays_after": found.pays_after, "tasks": len(history)})}


def two_directions(optima: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[float]]:
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
    steps: Any = None,
    most: int = 12,
    note: str = "",
) -> Learned:
    """The largest entries of phi, by name.

    Args:
        phi: Flat, [output, feature] row-major.
        features: Names of its columns.
        outputs: Names of its rows, where there are several.
        steps: The learned step of every entry, where there is one.
        most: So many are listed.
        note: The units, for the page.

    >>> found = coefficients([0.1, -2.0, 0.3, 0.0], ["size", "age"], ["cat", "dog"], most=1)
    >>> found["coefficients"]
    [{'feature': 'age', 'value': -2.0, 'output': 'cat'}]
    """
    flat = numbers(phi).reshape(-1)
    rows = 1 if outputs is None else len(outputs)
    if flat.size != rows * len(features):
        what = f"phi has {flat.size} entries, not {rows} × {len(features)}"
        raise FMRLError(what, fix="name every feature and output")
    order = np.argsort(-np.nan_to_num(np.abs(flat), nan=-1.0), kind="stable")[:most]
    listed = []
    for i in order.tolist():
        row, column = divmod(i, len(features))
        listed.append({"feature": clean(features[column]), "value": flat[i]})
        listed[-1] |= {} if outputs is None else {"output": clean(outputs[row])}
        listed[-1] |= {} if steps is None else {"step": numbers(steps).reshape(-1)[i]}
    return plain({"coefficients": listed, "total": flat.size, "note": note})


def certificate_facts(
    certificate: Certificate, names: Sequence[Any] | None = None
) -> dict[str, Any]:
    """A certificate as the page reads it.

    Args:
        certificate: Of `fmrl.certify`; one read back from JSON needs no conversion.
        names: Of the tasks, T of them: the reading then names a task beside its position.

    >>> certificate_facts(Certificate("x", reason="nothing was played"))["applicable"]
    False
    """
    found = certificate.to_dict()
    if names is not None and certificate.violations:
        last = certificate.violations[-1]
        said, shown = f"last in task {last}.", clean(names[last])
        found["reading"] = found["reading"].replace(said, f"{said[:-1]} ({shown}).")
    return plain(found)


def checksums(files: Iterable[Any]) -> list[dict[str, Any]]:
    """The sha256 of each file, with its name but not the folder it lies in.

    Args:
        files: Their paths.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("x")
    >>> checksums([path])[0]["name"], checksums([path])[0]["sha256"][:6]
    ('a.csv', '2d7116')
    """
    return [{"name": path.name, "sha256": sha256(path)} for path in map(Path, files)]

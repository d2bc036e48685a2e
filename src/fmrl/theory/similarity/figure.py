"""The picture of a similarity report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fmrl.theory.similarity import SimilarityReport


def draw(report: SimilarityReport) -> Any:
    """Three panels in a matplotlib Figure: where the optima lie, how far from their mean, and what
    learning across is worth.
    """
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11, 3.4), layout="constrained")
    where, far, worth = picture.subplots(1, 3)
    odd = np.isin(np.arange(len(report.optima)), report.outliers)
    flat = report.optima - report.mean
    _, _, directions = np.linalg.svd(flat, full_matrices=False)
    plane = np.zeros((2, flat.shape[1]))
    plane[: min(2, len(directions))] = directions[:2]
    xy = flat @ plane.T
    where.scatter(*xy[~odd].T, s=12, alpha=0.6, label="optima")
    where.scatter(*xy[odd].T, s=20, marker="x", color="C3", label="outliers")
    where.plot(0, 0, "k+", ms=10, label="their mean")
    where.set(title="optima, two main directions", aspect="equal")
    where.legend(fontsize=8)
    far.hist(report.distances, bins="auto", color="0.7")
    far.axvline(report.deviation, color="k", label=f"D̄ = {report.deviation:.3g}")
    if np.isfinite(report.diameter):
        far.axvline(report.diameter, color="k", ls="--", label=f"D* = {report.diameter:.3g}")
    far.set(title="distance to the mean, sqrt(B_R)", xlabel="distance", ylabel="tasks")
    far.legend(fontsize=8)
    tasks = np.arange(1, len(report.optima) + 1)
    worth.plot(tasks, np.cumsum(report.single) / tasks, "k--", label="single-task")
    worth.plot(tasks, np.cumsum(report.learned) / tasks, "C0", label="learning across")
    worth.axhline(report.eventually, color="C0", ls=":", label="eventually")
    worth.set(
        title="average bound on regret",
        xlabel="tasks",
        ylabel="in units of G·√m",
        xscale="log",
        ylim=(0, None),
    )
    worth.legend(fontsize=8)
    return picture

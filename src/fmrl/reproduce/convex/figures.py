"""The figures, drawn from rows alone, in the paper's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fmrl.reproduce.convex import batch, growth, similarity
from fmrl.reproduce.convex.table import BLOCKED, EXACT, KNOWN, SUMMED
from fmrl.reproduce.verdict import Row, Rows

COLOURS = {
    "FAL": "navy",
    "strawman": "maroon",
    "single-task": "darkgreen",
    "omniscient": "darkorange",
    "FLI-Batch": "purple",
    "FLI-Online": "teal",
    batch.AVERAGE: "navy",
    batch.LAST: "royalblue",
    batch.START: "lightsteelblue",
    batch.FIRST: "maroon",
    batch.FULL: "indianred",
    batch.ALONE: "darkgreen",
    batch.POOLED: "grey",
}
MARKERS = dict(zip(COLOURS, "vs^oPXvd.s<^*", strict=True))


def _curve(axes: Axes, rows: Rows, within: str, method: str, k: int = 0) -> None:
    here = [rows.at(within, method, m) for m in rows.shots]
    colour = COLOURS.get(method, f"C{k}")
    axes.plot(
        rows.shots,
        [r["mean"] for r in here],
        label=method,
        color=colour,
        marker=MARKERS.get(method, "o"),
        ms=5,
    )
    axes.fill_between(
        rows.shots,
        [r["low"] for r in here],
        [r["high"] for r in here],
        color=colour,
        alpha=0.2,
        lw=0,
    )


def _shots_axis(axes: Axes, shots: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(shots, [str(m) for m in shots])
    axes.set_xlabel("shots m (a task has 4m samples)")


def _panel(axes: Axes, rows: Rows, within: str, bound: bool) -> None:
    for k, method in enumerate(rows.methods(within)):
        _curve(axes, rows, within, method, k)
    if bound:
        limit = [rows.at(within, "FAL", m)["bound"] for m in rows.shots]
        axes.plot(rows.shots, limit, "k:", lw=1, label="bound on FAL")
    _shots_axis(axes, rows.shots)
    low = min(r["mean"] for r in rows.all if r["within"] == within)
    if low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(ylabel="TAR", title=within)
    axes.legend(fontsize=7)


def samples(rows: list[Row], data: str) -> dict[str, Figure]:
    """Two panels a preset as in the paper, and one sheet of experiments a preset."""
    made = {}
    for preset in dict.fromkeys(r["preset"] for r in rows):
        chosen = Rows(rows, preset)
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        for axes, within in zip(figure.subplots(1, 2), ("FTRL", "OGD"), strict=True):
            _panel(axes, chosen, within, bound=True)
        figure.suptitle(f"{data}, {preset} preset", fontsize=9)
        made[f"samples-{preset}"] = figure
        figure = Figure(figsize=(9, 7), layout="constrained")
        experiments = [
            w
            for w in (SUMMED, f"OGD, {BLOCKED}", f"OGD, {KNOWN}", f"OGD, {EXACT}")
            if chosen.methods(w)
        ]
        for k, within in enumerate(experiments):
            _panel(figure.add_subplot(2, 2, k + 1), chosen, within, bound=False)
        figure.suptitle(f"Experiments beside the paper's: {data}, {preset} preset", fontsize=9)
        made[f"samples-{preset}-experiments"] = figure
    return made


def accuracy(rows: list[Row], data: str) -> dict[str, Figure]:
    """Meta-test accuracy, one figure a preset."""
    made = {}
    for preset in dict.fromkeys(r["preset"] for r in rows):
        chosen = Rows([r | {"within": ""} for r in rows if not r["extra"]], preset)
        figure = Figure(figsize=(5.4, 4), layout="constrained")
        axes = figure.add_subplot(ylabel="accuracy on new tasks")
        for method in chosen.methods(""):
            _curve(axes, chosen, "", method)
        _shots_axis(axes, chosen.shots)
        axes.legend(fontsize=7)
        axes.set_title(f"{data}, {preset} preset", fontsize=9)
        made[f"batch-{preset}"] = figure
    return made


def projections(rows: list[Row], data: str) -> dict[str, Figure]:
    """Random projections of the optima: few and many shots side by side, controls below."""
    chosen = Rows(rows, "any")
    ends = (chosen.shots[0], chosen.shots[-1])
    figure = Figure(figsize=(5.2, 7.6), layout="constrained")
    grid = figure.subplots(len(similarity.VARIANTS), 2, sharex=True, sharey=True)
    for line, variant in zip(grid, similarity.VARIANTS, strict=True):
        for axes, m in zip(line, ends, strict=True):
            row = chosen.at(variant, "radius", m)
            points = row["points"]
            axes.scatter(
                [p[0] for p in points], [p[1] for p in points], s=3, color="navy", alpha=0.6
            )
            axes.set_title(f"{m}-shot, {variant}: radius {row['mean']:.2f}", fontsize=8)
            axes.set_aspect("equal", adjustable="box")
            axes.tick_params(labelsize=6)
    figure.suptitle(f"Optima, one random projection\n{data}", fontsize=9)
    return {"similarity": figure}


def growths(rows: list[Row], data: str) -> dict[str, Figure]:
    """The least rise of the loss against the distance, and α against the number of samples."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right, last = figure.subplots(1, 3)
    for axes, within, colour in ((left, growth.LEFT, "maroon"), (right, growth.RIGHT, "navy")):
        here = sorted((r for r in rows if r["within"] == within), key=lambda r: r["samples"])
        for k, r in enumerate(here):
            axes.plot(
                r["distances"],
                r["curve"],
                color=colour,
                alpha=(k + 1) / len(here),
                label=f"{r['samples']} samples",
            )
        axes.set(
            xlabel="distance from the optimum",
            ylabel="least L(θ) − L(θ*)",
            yscale="log",
            xscale="log",
        )
        axes.set_title(within if within == growth.LEFT else data, fontsize=9)
        axes.legend(fontsize=6)
        x, low, high = ([r[k] for r in here] for k in ("samples", "low", "high"))
        last.plot(
            x,
            [r["mean"] for r in here],
            color=colour,
            marker="o",
            ms=4,
            label=within if within == growth.LEFT else data,
        )
        last.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    last.set(xlabel="samples", ylabel="α", xscale="log", yscale="log")
    last.legend(fontsize=7)
    return {"growth": figure}


DRAW: dict[str, Callable[[list[Row], str], dict[str, Figure]]] = {
    "similarity": projections,
    "growth": growths,
    "samples": samples,
    "batch": accuracy,
}


def draw(figure: str, rows: list[Row], data: str, out: Path) -> list[Path]:
    """Draw and save a study's figures as PNG and SVG."""
    paths: list[Path] = []
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in DRAW[figure](rows, data).items():
        for suffix in ("png", "svg"):
            metadata: dict[str, Any] = {"Date": None} if suffix == "svg" else {"Software": None}
            paths.append(out / f"{name}.{suffix}")
            with rc_context({"svg.hashsalt": name}):  # the same rows, the same bytes
                picture.savefig(paths[-1], dpi=110, metadata=metadata)
            picture.set_layout_engine("none")  # laid out once is enough
    return paths

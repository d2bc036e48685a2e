"""The pictures of the studies, drawn from rows and records alone, in the paper's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from fmrl.reproduce.convex import batch, panels
from fmrl.reproduce.convex.compositions import BLOCKED, EXACT, KNOWN, SUMMED
from fmrl.reproduce.environments import claims as moving_claims
from fmrl.reproduce.environments import runs as moving_runs
from fmrl.reproduce.federated import claims as clients_claims
from fmrl.reproduce.geometry import claims as shape_claims
from fmrl.reproduce.geometry import runs as shape_runs
from fmrl.reproduce.privacy import claims as private_claims
from fmrl.reproduce.privacy import runs as private_runs
from fmrl.reproduce.verdict import Row, Rows

STYLES = {  # of a curve: colour and marker
    "FAL": ("navy", "v"),
    "strawman": ("maroon", "s"),
    "single-task": ("darkgreen", "^"),
    "omniscient": ("darkorange", "o"),
    "FLI-Batch": ("purple", "P"),
    "FLI-Online": ("teal", "X"),
    batch.AVERAGE: ("navy", "v"),
    batch.LAST: ("royalblue", "d"),
    batch.START: ("lightsteelblue", "."),
    batch.FIRST: ("maroon", "s"),
    batch.FULL: ("indianred", "<"),
    batch.ALONE: ("darkgreen", "^"),
    batch.POOLED: ("grey", "*"),
}
SHAPES = {  # of a rule: colour and marker
    shape_runs.DIAGONAL: ("darkorange", "s"),
    shape_runs.LOW: ("teal", "^"),
    shape_runs.FULL: ("navy", "o"),
    shape_runs.COVARIANCE: ("firebrick", "D"),
    shape_runs.TRUTH: ("grey", "|"),
}
MOVING = {  # of a rule: colour and marker
    moving_runs.LEADER: ("black", "|"),
    moving_runs.DISCOUNTED: ("darkorange", "s"),
    moving_runs.WINDOW: ("goldenrod", "^"),
    moving_runs.RESTART: ("grey", "v"),
    moving_runs.MIXTURE: ("royalblue", "o"),
    moving_runs.SHARED: ("navy", "o"),
    moving_runs.CONDITIONAL: ("purple", "P"),
    moving_runs.HEDGE: ("firebrick", "D"),
    moving_runs.TWO_CENTRES: ("teal", "X"),
    moving_runs.FIVE_CENTRES: ("darkgreen", "X"),
}
COLOURS = ("firebrick", "navy", "darkgreen", "darkorange", "purple")


def save(pictures: dict[str, Figure], out: Path, suffixes: tuple[str, ...], dpi: int) -> list[Path]:
    """Save pictures under their names; the same rows give the same bytes."""
    paths: list[Path] = []
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        for suffix in suffixes:
            metadata: dict[str, Any] = {"Date": None} if suffix == "svg" else {"Software": None}
            paths.append(out / f"{name}.{suffix}")
            with rc_context({"svg.hashsalt": name}):
                picture.savefig(paths[-1], dpi=dpi, metadata=metadata)
            picture.set_layout_engine(None)  # laid out once is enough
    return paths


def draw(figure: str, rows: list[Row], data: str, out: Path) -> list[Path]:
    """Draw and save a convex figure as PNG and SVG."""
    return save(DRAW[figure](rows, data), out, ("png", "svg"), 110)


def _decades(axis: Axis) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _key_below(figure: Figure, keys: list, labels: list[str]) -> None:
    """One key for all panels, outside of them."""
    figure.legend(keys, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)


def _line(axes: Axes, x: list, rows: list[Row], label: str, colour: str, **style: Any) -> None:
    """A curve of means with its intervals."""
    mean, low, high = ([r[k] for r in rows] for k in ("mean", "low", "high"))
    axes.plot(x, mean, label=label, color=colour, **style)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)


def _by_shots(axes: Axes, rows: Rows, within: str) -> None:
    """All curves of a panel against the number of shots."""
    for k, method in enumerate(rows.methods(within)):
        colour, marker = STYLES.get(method, (f"C{k}", "o"))
        here = [rows.at(within, method, m) for m in rows.shots]
        _line(axes, rows.shots, here, method, colour, marker=marker, ms=5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows.shots, [str(m) for m in rows.shots])
    axes.set_xlabel("shots m (a task has 4m samples)")


def _tar(axes: Axes, rows: Rows, within: str, bound: bool) -> None:
    _by_shots(axes, rows, within)
    if bound:
        limit = [rows.at(within, "FAL", m)["bound"] for m in rows.shots]
        axes.plot(rows.shots, limit, "k:", lw=1, label="bound on FAL")
    if min(r["mean"] for r in rows.all if r["within"] == within) > 0:
        axes.set_yscale("log")
        _decades(axes.yaxis)
    axes.set(ylabel="TAR", title=within)
    axes.legend(fontsize=7)


def samples(rows: list[Row], data: str) -> dict[str, Figure]:
    """Two panels a preset as in the paper, and one sheet of experiments a preset."""
    made = {}
    experiments = (SUMMED, f"OGD, {BLOCKED}", f"OGD, {KNOWN}", f"OGD, {EXACT}")
    for preset in dict.fromkeys(r["preset"] for r in rows):
        chosen = Rows(rows, preset)
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        for axes, within in zip(figure.subplots(1, 2), ("FTRL", "OGD"), strict=True):
            _tar(axes, chosen, within, bound=True)
        figure.suptitle(f"{data}, {preset} preset", fontsize=9)
        made[f"samples-{preset}"] = figure
        figure = Figure(figsize=(9, 7), layout="constrained")
        for k, within in enumerate(w for w in experiments if chosen.methods(w)):
            _tar(figure.add_subplot(2, 2, k + 1), chosen, within, bound=False)
        figure.suptitle(f"Experiments beside the paper's: {data}, {preset} preset", fontsize=9)
        made[f"samples-{preset}-experiments"] = figure
    return made


def accuracy(rows: list[Row], data: str) -> dict[str, Figure]:
    """Meta-test accuracy, one figure a preset."""
    made = {}
    for preset in dict.fromkeys(r["preset"] for r in rows):
        chosen = Rows([r for r in rows if not r["extra"]], preset, one_panel=True)
        figure = Figure(figsize=(5.4, 4), layout="constrained")
        axes = figure.add_subplot(ylabel="accuracy on new tasks")
        _by_shots(axes, chosen, "")
        axes.legend(fontsize=7)
        axes.set_title(f"{data}, {preset} preset", fontsize=9)
        made[f"batch-{preset}"] = figure
    return made


def projections(rows: list[Row], data: str) -> dict[str, Figure]:
    """Random projections of the optima: few and many shots side by side, controls below."""
    chosen = Rows(rows, "any")
    figure = Figure(figsize=(5.2, 7.6), layout="constrained")
    grid = figure.subplots(len(panels.VARIANTS), 2, sharex=True, sharey=True)
    for line, variant in zip(grid, panels.VARIANTS, strict=True):
        for axes, m in zip(line, (chosen.shots[0], chosen.shots[-1]), strict=True):
            row = chosen.at(variant, "radius", m)
            axes.scatter(*zip(*row["points"], strict=True), s=3, color="navy", alpha=0.6)
            axes.set_title(f"{m}-shot, {variant}: radius {row['mean']:.2f}", fontsize=8)
            axes.set_aspect("equal", adjustable="box")
            axes.tick_params(labelsize=6)
    figure.suptitle(f"Optima, one random projection\n{data}", fontsize=9)
    return {"similarity": figure}


def growths(rows: list[Row], data: str) -> dict[str, Figure]:
    """The least rise of the loss against the distance, and α against the number of samples."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right, last = figure.subplots(1, 3)
    log = {"xscale": "log", "yscale": "log"}
    for axes, within, colour in ((left, panels.LEFT, "maroon"), (right, panels.RIGHT, "navy")):
        here = sorted((r for r in rows if r["within"] == within), key=lambda r: r["samples"])
        for k, r in enumerate(here):
            style = {"color": colour, "alpha": (k + 1) / len(here)}
            axes.plot(r["distances"], r["curve"], label=f"{r['samples']} samples", **style)
        axes.set(xlabel="distance from the optimum", ylabel="least L(θ) − L(θ*)", **log)
        name = within if within == panels.LEFT else data
        axes.set_title(name, fontsize=9)
        axes.legend(fontsize=6)
        _line(last, [r["samples"] for r in here], here, name, colour, marker="o", ms=4)
    last.set(xlabel="samples", ylabel="α", **log)
    last.legend(fontsize=7)
    return {"growth": figure}


def shapes(rows: list[Row], data: str) -> dict[str, Figure]:
    """Ratios to the rule without a shape, environment by environment: TAR, and held-out loss."""
    chosen = [r for r in rows if r["method"] in SHAPES and r["kind"] != shape_claims.COST]
    middle = max((r["shots"] for r in chosen if r["shots"] and r["shots"] <= 4), default=None)
    panels = {
        "TAR": (shape_claims.TAR, None),
        "TAR of late tasks": (shape_claims.LATE, None),
        f"held-out loss at {middle} shots": (shape_claims.HELD, middle),
    }
    return {"geometry": _ratios(chosen, SHAPES, panels, "ratio; left of 1 the shape pays")}


def environments(rows: list[Row], data: str) -> dict[str, Figure]:
    """Ratios to the best rule in hindsight, environment by environment: TAR, held-out loss, and TAR
    of shuffled streams.
    """
    few = min((r["shots"] for r in rows if r["shots"]), default=None)
    panels = {
        "TAR": (moving_claims.TAR, None),
        f"loss after {few} rows of a task": (moving_claims.HELD, few),
        "TAR, tasks shuffled": (moving_claims.SHUFFLED, None),
    }
    chosen = [r for r in rows if r["method"] in MOVING]
    note = "ratio to the best rule in hindsight"
    return {"environments": _ratios(chosen, MOVING, panels, note)}


def privacy(rows: list[Row], data: str) -> dict[str, Figure]:
    """TAR against epsilon, a panel a size, a curve a number of tasks; without privacy dashed, and
    without meta-learning dotted.
    """
    chosen = Rows(rows, private_claims.TAR)
    sizes = list(dict.fromkeys(r["within"] for r in chosen.all))
    figure = Figure(figsize=(3.1 * max(len(sizes), 2), 3.6), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        others = private_runs.FAL, private_runs.SINGLE
        epsilons = [m for m in chosen.methods(size) if m not in others]
        x = [float(m) for m in epsilons]
        for colour, tasks in zip(COLOURS, chosen.shots, strict=False):
            here = [chosen.at(size, m, tasks) for m in epsilons]
            _line(axes, x, here, f"{tasks:,} tasks", colour, marker="o", ms=4)
            plain = chosen.mean(size, private_runs.FAL, tasks)
            axes.axhline(plain, color=colour, ls="--", lw=0.8)
        single = chosen.mean(size, private_runs.SINGLE, chosen.shots[-1])
        axes.axhline(single, color="black", ls=":", lw=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _decades(axes.yaxis)
        axes.set_xticks(x, epsilons)
        axes.set_title(size, fontsize=9)
        axes.set_xlabel("epsilon")
    figure.axes[0].set_ylabel("TAR")
    keys, labels = figure.axes[0].get_legend_handles_labels()
    keys += [Line2D([], [], color="black", ls=style) for style in ("--", ":")]
    _key_below(figure, keys, [*labels, private_runs.FAL, private_runs.SINGLE])
    return {"privacy": figure}


def _ratios(rows: list[Row], styles: dict, panels: dict, note: str) -> Figure:
    """A panel a measure, a line an environment, a point with its interval a rule."""
    names = list(dict.fromkeys(r["within"] for r in rows))
    figure = Figure(figsize=(11, 1.8 + 0.32 * len(names)), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True)
    width = 0.65 / len(styles)
    for axes, (title, (measure, shots)) in zip(grid, panels.items(), strict=True):
        for k, (rule, (colour, marker)) in enumerate(styles.items()):
            key = measure, rule, shots
            here = [r for r in rows if (r["preset"], r["method"], r["shots"]) == key]
            x, low, high = ([r[n] for r in here] for n in ("ratio", "ratio_low", "ratio_high"))
            y = [names.index(r["within"]) + width * (k - len(styles) // 2) for r in here]
            low = [max(v, 1e-3) for v in low]
            axes.hlines(y, low, high, color=colour, lw=1)
            axes.plot(x, y, marker, color=colour, ms=4, label=rule, ls="none")
        axes.axvline(1.0, color="black", lw=0.8)
        axes.set_xscale("log")
        _decades(axes.xaxis)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(note, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
    grid[0].invert_yaxis()
    _key_below(figure, *grid[0].get_legend_handles_labels())
    return figure


def federated(rows: list[Row], data: str) -> dict[str, Figure]:
    """Accuracy against rounds, unadapted and personalised, and of the last look by method."""
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    grid = figure.subplots(1, 3)
    measures = clients_claims.UNADAPTED, clients_claims.ACCURACY
    for axes, measure in zip(grid, measures, strict=False):
        for colour, name in zip(COLOURS, clients_claims.TRAINED, strict=False):
            key = measure, "on the way", name
            here = [r for r in rows if (r["preset"], r["within"], r["method"]) == key]
            _line(axes, [r["shots"] for r in here], here, name, colour, marker=".")
        title = "before adapting" if measure == clients_claims.UNADAPTED else "personalised"
        axes.set(xlabel="rounds", title=title)
    grid[0].set_ylabel("accuracy on test clients")
    grid[0].legend(fontsize=7)
    last = [r for r in rows if r["preset"] == measures[1] and r["within"] == "test clients"]
    places = range(len(last))
    grid[2].hlines(places, [r["low"] for r in last], [r["high"] for r in last], color="navy")
    grid[2].plot([r["mean"] for r in last], places, "o", color="navy", ms=4)
    grid[2].set_yticks(places, [r["method"] for r in last], fontsize=7)
    grid[2].invert_yaxis()
    grid[2].set(xlabel="accuracy, personalised", title="after the last round")
    figure.suptitle(data, fontsize=9)
    return {"federated": figure}


DRAW: dict[str, Callable[[list[Row], str], dict[str, Figure]]] = {
    "similarity": projections,
    "growth": growths,
    "samples": samples,
    "batch": accuracy,
    "geometry": shapes,
    "environments": environments,
    "privacy": privacy,
    "federated": federated,
}

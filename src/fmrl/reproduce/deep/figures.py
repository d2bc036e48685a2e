"""The pictures of the study on networks, in the layout of the paper's appendix."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fmrl.reproduce.deep.settings import FAMILIES, SWEEPS, TINY, family, reference
from fmrl.reproduce.figures import COLOURS, save

NETWORKS = {  # pictures of a data set's networks, two families each
    "Omniglot": {"deep-omniglot-5-way": ("o15", "o55"), "deep-omniglot-20-way": ("o120", "o520")},
    "Mini-ImageNet": {"deep-mini-imagenet": ("m15", "m55")},
    TINY: {"deep-tiny-imagenet-100": ("m15", "m55")},
}
OURS, LOGGED = {"linewidth": 1.6, "marker": "."}, {"linewidth": 0.8, "linestyle": "--"}
VARIED = {"shots": "training samples a class", "iterations": "inner steps"}


def draw_networks(
    results: dict[str, dict], out: Path, data: str = "Omniglot", sweep: str | None = None
) -> list[Path]:
    """The appendix's deep figures: accuracy against meta-iterations, one curve a setting, ours
    beside the authors' log.

    One picture for every two families of ``data``, a panel for each sweep (or the one named); runs
    that were never evaluated are left out.
    """
    labels = ["ours", "the authors' log"]
    if data == TINY:
        labels = [f"ours, {TINY}", "the authors' log, Mini-ImageNet: another data set"]
    pictures = {}
    for name, families in NETWORKS[data].items():
        shown = [(f, s) for f in families for s in ([sweep] if sweep else SWEEPS)]
        figure = Figure(figsize=(3.75 * len(shown), 4.3), layout="constrained")
        panels = figure.subplots(1, len(shown))
        for axes, (f, s) in zip(panels, shown, strict=True):
            _networks(axes, results, f, s)
            axes.set_title(f"{data} {FAMILIES[f]}", fontsize=10)
        panels[0].set_ylabel("test accuracy, transductive")
        styles = zip(labels, (OURS, LOGGED), strict=True)
        keys = [Line2D([], [], color="black", label=label, **style) for label, style in styles]
        figure.legend(handles=keys, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
        pictures[name] = figure
    return save(pictures, Path(out), ("png",), 100)


def _networks(axes: Axes, results: dict[str, dict], name: str, sweep: str) -> None:
    keys = []
    for colour, (value, run) in zip(COLOURS, family(name, sweep).items(), strict=False):
        if curve := results.get(run.name, {}).get("curve"):
            axes.plot(*zip(*curve, strict=True), color=colour, **OURS)
        logged = reference()[run.name]["test_curve"][1:]
        axes.plot(*zip(*logged, strict=True), color=colour, **LOGGED)
        keys.append(Line2D([], [], color=colour, label=str(value)))
    axes.set_xlabel("meta-iterations")
    # Under the axes, where it hides no curve.
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": len(keys)}
    small = {"fontsize": 8, "title_fontsize": 8, "frameon": False, "handlelength": 1.2}
    axes.legend(handles=keys, title=VARIED[sweep], **place, **small)

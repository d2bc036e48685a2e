"""The appendix's deep figures: accuracy against meta-iterations, one curve a setting, ours beside
the authors' log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fmrl.reproduce.deep.settings import FAMILIES, SWEEPS, family, reference

TINY = "Tiny ImageNet-100"
PICTURES = {
    "Omniglot": {"deep-omniglot-5-way": ("o15", "o55"), "deep-omniglot-20-way": ("o120", "o520")},
    "Mini-ImageNet": {"deep-mini-imagenet": ("m15", "m55")},
    TINY: {"deep-tiny-imagenet-100": ("m15", "m55")},
}
COLOURS = ("firebrick", "navy", "darkgreen", "darkorange", "purple")
VARIED = {"shots": "training samples a class", "iterations": "inner steps"}


def draw(
    results: dict[str, dict], out: Path, data: str = "Omniglot", sweep: str | None = None
) -> list[Path]:
    """One picture for every two families of ``data``, a panel for each sweep (or the one named);
    runs without a look are left out.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ours, theirs = {"linewidth": 1.6, "marker": "."}, {"linewidth": 0.8, "linestyle": "--"}
    labels = (
        ["ours", "the authors' log"]
        if data != TINY
        else [f"ours, {TINY}", "the authors' log, Mini-ImageNet: another data set"]
    )
    sweeps = [sweep] if sweep else list(SWEEPS)
    paths = []
    for name, families in PICTURES[data].items():
        shown = [(f, s) for f in families for s in sweeps]
        figure = Figure(figsize=(3.75 * len(shown), 4.3), layout="constrained")
        panels = figure.subplots(1, len(shown))
        for axes, (f, s) in zip(panels, shown, strict=True):
            _panel(axes, results, f, s, ours, theirs)
            axes.set_title(f"{data} {FAMILIES[f]}", fontsize=10)
        panels[0].set_ylabel("test accuracy, transductive")
        keys = [
            Line2D([], [], color="black", label=label, **style)
            for label, style in zip(labels, (ours, theirs), strict=True)
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
        paths.append(Path(out) / f"{name}.png")
        figure.savefig(paths[-1], dpi=100, metadata={"Software": None})
    return paths


def _panel(
    axes: Any, results: dict[str, dict], name: str, sweep: str, ours: dict, theirs: dict
) -> None:
    from matplotlib.lines import Line2D

    logged, keys = reference(), []
    for colour, (value, run) in zip(COLOURS, family(name, sweep).items(), strict=False):
        if curve := results.get(run.name, {}).get("curve"):
            axes.plot(*zip(*curve, strict=True), color=colour, **ours)
        axes.plot(*zip(*logged[run.name]["test_curve"][1:], strict=True), color=colour, **theirs)
        keys.append(Line2D([], [], color=colour, label=str(value)))
    axes.set_xlabel("meta-iterations")
    under = {
        "loc": "upper center",
        "bbox_to_anchor": (0.5, -0.16),
        "ncols": len(keys),
    }  # where no curve can be hidden
    axes.legend(
        handles=keys,
        title=VARIED[sweep],
        fontsize=8,
        title_fontsize=8,
        frameon=False,
        handlelength=1.2,
        **under,
    )

"""docs/reproduction.md, written from the records of a full run so that no number in it can drift."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fmrl.reproduce.convex import prose
from fmrl.reproduce.verdict import Rows

FIGURES = ("similarity", "growth", "samples", "batch")
PICTURES = {
    "similarity": ("similarity",),
    "growth": ("growth",),
    "samples": (
        "samples-paper",
        "samples-released",
        "samples-paper-experiments",
        "samples-released-experiments",
    ),
    "batch": ("batch-paper", "batch-released"),
}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """results.json, verdicts.json and record.json of every figure under ``folder``."""
    return {
        figure: {
            name: json.loads((folder / figure / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("results", "verdicts", "record")
        }
        for figure in FIGURES
    }


def document(folder: Path) -> str:
    """The whole page in Markdown."""
    found = read(Path(folder))
    record = found["samples"]["record"]
    data, verdicts = record["data"], [v for figure in FIGURES for v in found[figure]["verdicts"]]
    parts = [
        prose.opening(data, record, verdicts),
        "## Verdicts at a glance\n\n" + glance(verdicts),
    ]
    for figure in FIGURES:
        rows = found[figure]["results"]["rows"]
        section = [f"## {figure.capitalize()}: `fmrl reproduce {figure}`", prose.PAPER[figure]]
        section += [f"![{name}](img/convex-{name}.png)" for name in PICTURES[figure][:2]]
        section += ["\n\n".join(_tables(figure, rows)), _verdicts(found[figure]["verdicts"])]
        section += [
            "### Where we agree, where not, and why",
            prose.WHY[figure](rows, found[figure]["verdicts"]),
        ]
        section += [f"![{name}](img/convex-{name}.png)" for name in PICTURES[figure][2:]]
        parts.append("\n\n".join(s for s in section if s))
    return "\n\n".join(parts).rstrip() + "\n"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table.

    >>> print(table(["m", "TAR"], [["1", "0.3"]]))
    | m | TAR |
    |---|---|
    | 1 | 0.3 |
    """
    head = list(head)
    made = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|"
        for line in made
    )


def glance(verdicts: list[dict[str, Any]]) -> str:
    """Claims by preset, yes or no."""
    order = list(dict.fromkeys((v["source"], v["claim"]) for v in verdicts))
    order.sort(key=lambda k: ("paper", "theory", "ours").index(k[0]))
    at = {
        (v["source"], v["claim"], v["preset"]): "yes" if v["passed"] else "**no**" for v in verdicts
    }
    lines = []
    for source, claim in order:
        either = at.get((source, claim, "any"))
        cells = [either or at.get((source, claim, p), "") for p in ("paper", "released")]
        lines.append(
            [{"paper": "paper", "theory": "theory", "ours": "control"}[source], claim, *cells]
        )
    return table(["whose", "claim", "paper preset", "released preset"], lines)


def _verdicts(verdicts: list[dict[str, Any]]) -> str:
    lines = [
        [
            "" if v["preset"] == "any" else v["preset"],
            v["claim"],
            "yes" if v["passed"] else "**no**",
            v["by"],
            v["numbers"],
        ]
        for v in verdicts
    ]
    return (
        "<details><summary>The numbers behind the verdicts</summary>\n\n"
        + table(["preset", "claim", "holds", "decided by", "numbers"], lines)
        + "\n\n</details>"
    )


def _tables(figure: str, rows: list[dict[str, Any]]) -> list[str]:
    if figure in ("samples", "batch"):
        made = []
        for preset in dict.fromkeys(r["preset"] for r in rows):
            chosen = Rows(
                [
                    r | {"within": "accuracy"} if figure == "batch" else r
                    for r in rows
                    if not r.get("extra")
                ],
                preset,
            )
            for within in ("accuracy",) if figure == "batch" else ("FTRL", "OGD"):
                made.append(
                    f"**{within}, {preset} preset** (mean and half-width of the interval)\n\n"
                    + _by_shots(chosen, within, figure)
                )
        return made
    if figure == "similarity":
        chosen = Rows(rows, "any")
        lines = []
        for within in dict.fromkeys(r["within"] for r in rows):
            for method in ("radius", "deviation"):
                cells = [f"{chosen.mean(within, method, m):.3f}" for m in chosen.shots]
                lines.append(
                    [
                        within,
                        {"radius": "radius", "deviation": "rms distance from the mean"}[method],
                        *cells,
                    ]
                )
        return [table(["tasks", "", *(f"m = {m}" for m in chosen.shots)], lines)]
    made = []
    for within in dict.fromkeys(r["within"] for r in rows):
        here = sorted((r for r in rows if r["within"] == within), key=lambda r: r["samples"])
        lines = [["α", *(f"{r['mean']:.3g} ± {(r['high'] - r['low']) / 2:.2g}" for r in here)]]
        lines.append(["multiplier of the ball", *(f"{r['multiplier']:.3g}" for r in here)])
        made.append(table([f"{within}: samples", *(str(r["samples"]) for r in here)], lines))
    return made


def _by_shots(rows: Rows, within: str, figure: str) -> str:
    digits = 3
    lines = []
    for method in rows.methods(within):
        here = [rows.at(within, method, m) for m in rows.shots]
        cells = [
            f"{r['mean']:.{digits}f}"
            + (f" ± {(r['high'] - r['low']) / 2:.{digits}f}" if r["n"] > 1 else "")
            for r in here
        ]
        lines.append([method, *cells])
    if figure == "samples":
        lines.append(
            ["bound on FAL", *(f"{rows.at(within, 'FAL', m)['bound']:.2f}" for m in rows.shots)]
        )
    return table(["", *(f"m = {m}" for m in rows.shots)], lines)

"""The convex half of docs/reproduction.md, written from the records of a full run so that no number
in it can drift.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fmrl.reproduce.verdict import Row, Rows
from reproduction import convex_prose as prose
from reproduction.markdown import YES, table

FIGURES = ("similarity", "growth", "samples", "batch")
PICTURES = {
    "similarity": ("similarity",),
    "growth": ("growth",),
    "samples": tuple(
        f"samples-{preset}{kind}" for kind in ("", "-experiments") for preset in ("paper", "released")
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
    """The convex half of the page in Markdown."""
    found = read(Path(folder))
    record = found["samples"]["record"]
    verdicts = [v for figure in FIGURES for v in found[figure]["verdicts"]]
    parts = [
        prose.opening(record["data"], record, verdicts),
        "## Verdicts at a glance\n\n" + glance(verdicts),
    ]
    for figure in FIGURES:
        rows, judged = found[figure]["results"]["rows"], found[figure]["verdicts"]
        pictures = [f"![{name}](img/convex-{name}.png)" for name in PICTURES[figure]]
        section = [f"## {figure.capitalize()}: `fmrl reproduce {figure}`", prose.PAPER[figure]]
        section += [*pictures[:2], *TABLES[figure](rows), _verdicts(judged)]
        section += ["### Where we agree, where not, and why", prose.WHY[figure](rows, judged)]
        parts.append("\n\n".join([*section, *pictures[2:]]))
    return "\n\n".join(parts).rstrip() + "\n"


def glance(verdicts: list[dict[str, Any]]) -> str:
    """Claims by preset, yes or no."""
    whose = {"paper": "paper", "theory": "theory", "ours": "control"}
    at = {(v["source"], v["claim"], v["preset"]): YES[v["passed"]] for v in verdicts}
    lines = []
    claims = dict.fromkeys((v["source"], v["claim"]) for v in verdicts)
    for claim in sorted(claims, key=lambda claim: list(whose).index(claim[0])):
        either = at.get((*claim, "any"))
        cells = [either or at.get((*claim, preset), "") for preset in ("paper", "released")]
        lines.append([whose[claim[0]], claim[1], *cells])
    return table(["whose", "claim", "paper preset", "released preset"], lines)


def _verdicts(verdicts: list[dict[str, Any]]) -> str:
    lines = []
    for v in verdicts:
        preset = "" if v["preset"] == "any" else v["preset"]
        lines.append([preset, v["claim"], YES[v["passed"]], v["by"], v["numbers"]])
    found = table(["preset", "claim", "holds", "decided by", "numbers"], lines)
    summary = "<summary>The numbers behind the verdicts</summary>"
    return f"<details>{summary}\n\n{found}\n\n</details>"


def _similarity(rows: list[Row]) -> list[str]:
    chosen, lines = Rows(rows, "any"), []
    words = {"radius": "radius", "deviation": "rms distance from the mean"}
    for within in dict.fromkeys(r["within"] for r in rows):
        for method, name in words.items():
            means = (f"{mean:.3f}" for mean in chosen.means(within, method))
            lines.append([within, name, *means])
    return [table(["tasks", "", *(f"m = {m}" for m in chosen.shots)], lines)]


def _growth(rows: list[Row]) -> list[str]:
    made = []
    for within in dict.fromkeys(r["within"] for r in rows):
        here = sorted((r for r in rows if r["within"] == within), key=lambda r: r["samples"])
        alpha = (f"{r['mean']:.3g} ± {(r['high'] - r['low']) / 2:.2g}" for r in here)
        multiplier = (f"{r['multiplier']:.3g}" for r in here)
        head = [f"{within}: samples", *(str(r["samples"]) for r in here)]
        made.append(table(head, [["α", *alpha], ["multiplier of the ball", *multiplier]]))
    return made


def _samples(rows: list[Row]) -> list[str]:
    made = []
    for preset in dict.fromkeys(r["preset"] for r in rows):
        chosen = Rows(rows, preset)
        for within in ("FTRL", "OGD"):
            limit = (f"{chosen.at(within, 'FAL', m)['bound']:.2f}" for m in chosen.shots)
            made.append(_by_shots(chosen, within, within, ["bound on FAL", *limit]))
    return made


def _batch(rows: list[Row]) -> list[str]:
    shown = [r for r in rows if not r["extra"]]
    presets = dict.fromkeys(r["preset"] for r in rows)
    return [_by_shots(Rows(shown, p, one_panel=True), "", "accuracy") for p in presets]


def _by_shots(rows: Rows, within: str, title: str, *more: list[str]) -> str:
    lines = []
    for method in rows.methods(within):
        cells = []
        for r in (rows.at(within, method, m) for m in rows.shots):
            half = f" ± {(r['high'] - r['low']) / 2:.3f}" if r["n"] > 1 else ""
            cells.append(f"{r['mean']:.3f}{half}")
        lines.append([method, *cells])
    found = table(["", *(f"m = {m}" for m in rows.shots)], [*lines, *more])
    about = f"**{title}, {rows.preset} preset** (mean and half-width of the interval)"
    return f"{about}\n\n{found}"


TABLES = {"similarity": _similarity, "growth": _growth, "samples": _samples, "batch": _batch}

"""The authors' own records of January 2019 beside ours, for docs/reproduction.md."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fmrl.reproduce.convex.compositions import SUMMED
from fmrl.reproduce.verdict import Row, Rows
from reproduction.markdown import flow, table

FILE = "authors-2019.json"
CURVES = {"strawman": "strawman", "baseline": "single-task", "omniscient": "omniscient"}
OURS = {  # the panels that may have been theirs
    "ftrl": {"with the released objective": SUMMED, "with FTRL as the paper has it": "FTRL"},
    "ogd": {"OGD": "OGD"},
}


def read(folder: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """TAR and its standard error by curve and m, as the authors' six files have them."""
    held = json.loads((folder / FILE).read_text(encoding="utf-8"))["records"]
    return {
        name: {int(m): tuple(pair) for m, pair in curve.items()} for name, curve in held.items()
    }


def apart(ours: list[float], theirs: list[float]) -> float:
    """By what factor two curves differ, the root mean square over m of its logarithm.

    >>> round(apart([2.0, 1.0], [1.0, 2.0]), 6)
    2.0
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return math.exp(math.sqrt(sum(x * x for x in logs) / len(logs)))


def factors(rows: list[Row], records: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """`apart` by learner, curve and panel, under the released preset."""
    chosen, found = Rows(rows, "released"), {}
    for learner, panels in OURS.items():
        for curve, method in CURVES.items():
            theirs = [tar for tar, _ in records[f"{learner}-{curve}"].values()]
            for panel in panels.values():
                found[learner, method, panel] = apart(chosen.means(panel, method), theirs)
    return found


def section(rows: list[Row], folder: Path) -> str:
    """The section of the page; empty where the records or our released preset are not there."""
    if not (folder / FILE).exists() or not any(r["preset"] == "released" for r in rows):
        return ""
    records, chosen = read(folder), Rows(rows, "released")
    lines = []
    for learner, panels in OURS.items():
        for curve, method in CURVES.items():
            theirs = records[f"{learner}-{curve}"].values()
            cells = [f"{tar:.3f} ± {1.96 * error:.3f}" for tar, error in theirs]
            lines.append([f"{learner.upper()}, {method}", "authors", *cells, ""])
            for name, panel in panels.items():
                means = chosen.means(panel, method)
                factor = apart(means, [tar for tar, _ in theirs])
                lines.append(["", f"ours, {name}", *(f"{v:.3f}" for v in means), f"{factor:.2f}"])
    head = ["curve", "whose", *(f"m = {m}" for m in chosen.shots), "factor apart"]
    return "\n\n".join(
        [
            "### The authors' own records",
            flow("""The history of the authors' code holds six records of January 2019 (commits
            3a4986e, 3af6264 and e53ca11; `results/convex/authors-2019.json`): TAR by m of the
            strawman, the single-task learner and the omniscient one, for FTRL and for OGD. They
            were written by the code with the objective of the summed rows, on 500 tasks, the
            single-task learner with D = 2 (ours has 1); intervals are over those tasks. Ours are
            of the released preset, on the rebuilt data. The last column is the factor by which two
            curves differ (root mean square of its logarithm)."""),
            table(head, lines),
            _reading(rows, records),
        ]
    )


def _reading(rows: list[Row], records: dict[str, Any]) -> str:
    found, chosen = factors(rows, records), Rows(rows, "released")
    methods = list(CURVES.values())
    summed, true = ([found["ftrl", m, p] for m in methods] for p in (SUMMED, "FTRL"))
    nearer = [m for m, a, b in zip(methods, summed, true, strict=True) if a < b]
    most = chosen.shots[-1]
    theirs = records["ftrl-baseline"][most][0]
    ours = (chosen.mean(p, "single-task", most) for p in (SUMMED, "FTRL"))
    each = "; ".join(
        f"{m} {a:.2f} against {b:.2f}" for m, a, b in zip(methods, summed, true, strict=True)
    )
    straw = [tar for tar, _ in records["ogd-strawman"].values()]
    ratio = [a / b for a, b in zip(straw, chosen.means("OGD", "strawman"), strict=True)]
    best = [tar for tar, _ in records["ftrl-omniscient"].values()]
    above = [a / b for a, b in zip(best, chosen.means(SUMMED, "omniscient"), strict=True)]
    return flow(f"""The released objective is nearer to theirs in {len(nearer)} of {len(methods)}
        curves of FTRL ({each}). It shows most where m is large: at m = {most} their single-task
        learner has {theirs:.1f}, ours {next(ours):.1f} with that objective and {next(ours):.1f}
        with FTRL. This speaks for the paper's panel being drawn with that objective; it is no
        proof, as no record holds FAL. For OGD the single-task and omniscient learners agree
        (factors {found["ogd", "single-task", "OGD"]:.2f} and
        {found["ogd", "omniscient", "OGD"]:.2f}); their strawman lies above ours by up to a factor
        of {max(ratio):.2f}, which we cannot explain; nor can we that their omniscient FTRL lies
        above ours with that objective by up to {max(above):.2f}.""")

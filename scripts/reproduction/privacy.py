"""docs/privacy-price.md, written from the record of a full run: no number in it can drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fmrl.reproduce.privacy.claims import EXCESS, RECORDS, TAR, kept
from fmrl.reproduce.privacy.runs import CENTRE, DELTA, FAL, FIXED, NOISE, SINGLE, SPREAD
from fmrl.reproduce.verdict import Row, Rows
from reproduction.markdown import read_record, table, verdict_table


def document(folder: Path) -> str:
    """The page in Markdown."""
    found = read_record(Path(folder))
    rows, record, verdicts = found["results"]["rows"], found["record"], found["verdicts"]
    parts = [
        opening(record, verdicts),
        "## Verdicts\n\n" + verdict_table(verdicts).replace("ratio and its interval", "numbers"),
        "## TAR against epsilon\n\n![TAR against epsilon](img/privacy.png)\n\n" + tars(rows),
        "## What stays of the gain\n\n" + gains(rows),
        "## The price at a fixed noise\n\n" + prices(rows),
        "## Noise inside the tasks\n\n" + records(rows),
    ]
    return "\n\n".join(parts) + "\n"


def opening(record: dict[str, Any], verdicts: list[dict[str, Any]]) -> str:
    """What was run, and how to read the rest."""
    asked, spent = record["configuration"], record["spent"]
    return f"""# What does privacy cost?

This page is written by `python scripts/write_reproduction.py` from the records in
`results/privacy`, which `{record["command"]}` left: every number below is of that command.
Edit neither by hand. It took {record["seconds"]:.0f} seconds with {record["jobs"]} processes, \
{spent["cpu_seconds"]:.0f} seconds of processor time in {spent["parts"]} parts.

[Privacy](privacy.md) says what is promised. Here FAL plays linear regressions of m rows and d
slopes in a ball of radius 1, from its middle. Slopes lie about {SPREAD:g} from a centre of length
{CENTRE:g}; the noise of a row is {NOISE:g}. `Known(D)` is told that spread, with and without
privacy; *{SINGLE}* starts every task at the middle and is told the distance of the centre. `Tree`
has delta {DELTA:g}, clips at the border of the ball, and so must hide changes of 2.
{asked["seeds"]} draws each, seeds from {asked["seed"]}; intervals are 95 % t intervals over draws.

{sum(v["passed"] for v in verdicts)} of {len(verdicts)} claims hold. They were written down before
the first run; the largest number of tasks was 4,000 then and was raised after a quick run. Below
0 % of the gain a private start is worse than none: D says that tasks are near phi, which is then
far off."""


def _sizes(by: Rows) -> list[str]:
    return list(dict.fromkeys(r["within"] for r in by.all))


def _budgets(by: Rows) -> list[str]:
    return [m for m in by.methods(_sizes(by)[0]) if m not in (FAL, SINGLE)]


def tars(rows: list[Row]) -> str:
    """TAR with intervals, and the bound behind it."""
    by, lines = Rows(rows, TAR), []
    for size in _sizes(by):
        for tasks in by.shots:
            cells = []
            for method in (*_budgets(by), FAL, SINGLE):
                r = by.at(size, method, tasks)
                limit = f" (≤ {np.mean(r['bounds']):.3g})" if r["bounds"] else ""
                cells.append(f"{r['mean']:.3g} [{r['low']:.3g}, {r['high']:.3g}]{limit}")
            lines.append([size, f"{tasks:,}", *cells])
    head = ["size", "tasks", *(f"epsilon {m}" for m in _budgets(by)), FAL, SINGLE]
    return "In brackets behind ≤: the bound on the expected TAR.\n\n" + table(head, lines)


def gains(rows: list[Row]) -> str:
    """The share of the gain over learning every task alone."""
    by, lines = Rows(rows, TAR), []
    for size in _sizes(by):
        for tasks in by.shots:
            cells = (f"{kept(by, size, m, tasks):.0%}" for m in _budgets(by))
            lines.append([size, f"{tasks:,}", *cells])
    lead = f"(TAR of {SINGLE} − TAR) / (TAR of {SINGLE} − TAR of {FAL}):"
    head = ["size", "tasks", *(f"epsilon {m}" for m in _budgets(by))]
    return f"{lead}\n\n{table(head, lines)}"


def prices(rows: list[Row]) -> str:
    """Σ B with noise less that without, beside the theorem."""
    by, lines = Rows(rows, EXCESS), []
    for size in _sizes(by):
        cells = []
        for tasks in by.shots:
            r = by.at(size, "Σ B", tasks)
            cells.append(f"{r['mean']:.3g} (≤ {np.mean(r['bounds']):.3g})")
        lines.append([size, *cells])
    lead = f"Σ B_R(θ_t‖phi_t) less that without noise, where the noise of a node is {FIXED:g} times"
    lead += " the change of a swap for every number of tasks; behind ≤ the theorem's price."
    return f"{lead}\n\n{table(['size', *(f'{t:,} tasks' for t in by.shots)], lines)}"


def records(rows: list[Row]) -> str:
    """TAR of the second notion."""
    by, lines = Rows(rows, RECORDS), []
    many = by.shots[-1]
    for size in _sizes(by):
        found = (by.at(size, f"{name} noise", many) for name in ("without", "with"))
        lines.append([size, *(f"{r['mean']:.3g} [{r['low']:.3g}, {r['high']:.3g}]" for r in found)])
    epsilon = max(_budgets(Rows(rows, TAR)), key=float)
    lead = f"TAR of FLI-Online over 200 tasks with `NoisyGradients` at epsilon {epsilon}, clip 2."
    lead += " The intervals are wide: five draws do not always tell the two apart.\n"
    return f"{lead}\n{table(['size', 'without noise', 'with noise'], lines)}"

"""A certificate on paper: Markdown, plain and rich text, and a figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmrl.theory.certificate.value import Certificate

COLOURS = {"checked": "green", "assumed": "yellow", "false": "red"}


def _number(x: float) -> str:
    return "–" if math.isnan(x) else "∞" if math.isinf(x) else f"{x:.5g}"


def _rows(certificate: Certificate) -> list[tuple[str, ...]]:
    """bound, value, slack, ratio, largest term, where it is proved."""
    rows = []
    for b in certificate.bounds:
        slack, ratio = certificate.slack(b)
        share = b.terms[b.dominant] / b.total if b.total > 0 else 0.0
        rows.append(
            (
                b.name,
                _number(b.total),
                _number(slack),
                _number(ratio),
                f"{b.dominant} ({share:.0%})",
                b.place,
            )
        )
    return rows


HEAD = ("bound on TAR", "value", "slack", "ratio", "largest term", "proved in")


def _facts(certificate: Certificate) -> list[tuple[str, str]]:
    low, high = certificate.interval
    facts = [("composition", certificate.composition), ("tasks", str(certificate.tasks))]
    facts.append(("TAR", f"[{_number(low)}, {_number(high)}]"))
    facts += [(name, _number(value)) for name, value in certificate.similarity.items()]
    if "D*" in certificate.similarity:
        when = [str(t) for t in certificate.violations]
        shown = when if len(when) <= 12 else [*when[:6], "…", *when[-6:]]
        facts.append(
            ("violations", f"{len(when)}" + (f" (tasks {', '.join(shown)})" if when else ""))
        )
    if certificate.limit is not None:
        facts.append(("an adversary could force", _number(certificate.limit.total)))
    return facts


def markdown(certificate: Certificate) -> str:
    """The report in Markdown."""
    lines = ["# Certificate", "", certificate.reading, ""]
    lines += [
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in _facts(certificate)),
        "",
    ]
    if certificate.bounds:
        lines += [
            "## Bounds",
            "",
            "| " + " | ".join(HEAD) + " |",
            "|---|" + "---:|" * 3 + "---|---|",
        ]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in _rows(certificate)]
        lines += ["", "## Terms", "", "| bound | term | value |", "|---|---|---:|"]
        lines += [
            f"| {b.name} | {name} | {_number(v)} |"
            for b in certificate.bounds
            for name, v in b.terms.items()
        ]
        lines.append("")
    if certificate.assumptions:
        lines += ["## Assumptions", "", "| assumption | status | |", "|---|---|---|"]
        lines += [f"| {a.name} | {a.status} | {_cell(a.detail)} |" for a in certificate.assumptions]
        lines.append("")
    if certificate.refused:
        lines += [
            "## Not applicable",
            "",
            *(f"- {name}: {why}" for name, why in certificate.refused),
            "",
        ]
    return "\n".join(lines)


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


def rich_table(certificate: Certificate) -> Any:
    """A rich renderable."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(certificate):
        facts.add_row(Text(name, style="bold"), Text(value))
    parts: list[Any] = [Panel(Text(certificate.reading), title="certificate"), facts]
    if certificate.bounds:
        table = Table(*HEAD[:1])
        for name in HEAD[1:]:
            table.add_column(
                name, justify="right" if name in ("value", "slack", "ratio") else "left"
            )
        for row in _rows(certificate):
            table.add_row(*map(Text, row))
        parts.append(table)
    if certificate.assumptions:
        table = Table("assumption", "status", "")
        for a in certificate.assumptions:
            table.add_row(Text(a.name), Text(a.status, style=COLOURS[a.status]), Text(a.detail))
        parts.append(table)
    parts += [
        Text(f"not applicable — {name}: {why}", style="dim") for name, why in certificate.refused
    ]
    return Group(*parts)


def text(certificate: Certificate) -> str:
    """Plain text, as rich draws it without colours."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=120, color_system=None).print(rich_table(certificate))
    return out.getvalue().rstrip()


def figure(certificate: Certificate, path: Any = None) -> Any:
    """Left: TAR as tasks arrive, under its bounds. Right: what each bound is made of."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 4), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=[3, 2])
    if not certificate.applicable:
        for axes in (left, right):
            axes.set_axis_off()
        left.text(0, 0.5, f"not applicable: {certificate.reason}", wrap=True)
    else:
        _curves(certificate, left)
        _terms(certificate, right)
    if path is not None:
        canvas.savefig(path)
    return canvas


def _curves(certificate: Certificate, axes: Any) -> None:
    task = certificate.curves.get("task", ())
    axes.plot(task, certificate.curves.get("tar", ()), color="black", label="measured TAR")
    axes.plot(task, certificate.curves.get("bound", ()), color="tab:blue", label="per-task sum")
    for i, b in enumerate(b for b in certificate.bounds if not b.name.startswith("per-task")):
        axes.axhline(b.total, color=f"C{i + 1}", linestyle="--", label=b.name)
    if certificate.limit is not None:
        axes.axhline(
            certificate.limit.total, color="grey", linestyle=":", label="lower bound (adversary)"
        )
    bottom = axes.get_ylim()[0]
    axes.plot(
        [t + 1 for t in certificate.violations],
        [bottom] * len(certificate.violations),
        "|",
        color="red",
        label="violations",
    )
    axes.set(
        xlabel="task",
        ylabel="regret per task",
        xscale="log" if certificate.tasks > 20 else "linear",
    )
    axes.legend(fontsize=8)


def _terms(certificate: Certificate, axes: Any) -> None:
    names = list(dict.fromkeys(name for b in certificate.bounds for name in b.terms))
    start = [0.0] * len(certificate.bounds)
    for i, name in enumerate(names):
        values = [b.terms.get(name, 0.0) for b in certificate.bounds]
        axes.barh(
            [b.name for b in certificate.bounds], values, left=start, color=f"C{i % 10}", label=name
        )
        start = [a + v for a, v in zip(start, values, strict=True)]
    axes.axvline(certificate.interval[1], color="black", label="measured TAR")
    axes.invert_yaxis()
    axes.set(xlabel="regret per task")
    axes.legend(fontsize=7)

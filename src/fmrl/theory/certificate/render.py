"""A certificate on paper: a paragraph of plain English, Markdown, plain and rich text, a figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fmrl.theory.bounds.moving import FIXED

if TYPE_CHECKING:
    from fmrl.theory.certificate import Certificate

COLOURS = {"checked": "green", "assumed": "yellow", "false": "red"}
MEANING = {
    "start": "how far the optima were from where the tasks began",
    "steps": "the price of the steps themselves",
    "first task": "the first task, which starts knowing nothing",
    "first task and guess": "the first task and the guess it needs",
    "moving": "an initialisation that keeps moving",
    "deviation": "how far the optima lie from their mean",
    "guess": "guessing the similarity",
    "violations": "tasks further off than guessed",
    "task diameter": "how far apart the optima are",
    "comparator": "what the comparator itself pays",
    "beginning": "catching up with the comparator in the second task",
    "path": "a comparator that moves",
    "fitting": "a map of the side information that had to be learned",
    "members": "what the best of the members paid",
    "weights": "finding the best of the members",
    "rate": "weights that were set for lighter tasks",
    "switches": "changing from one member to another",
    "first guess": "the first task and its guess",
    "best metric": "what the best fixed metric would have paid",
    "learning": "a step that had to be learned",
    "epsilon": "the epsilon that is added to every distance",
    "optima not exact": "update vectors that are not the optima",
    "mean not exact": "a mean of update vectors that is not that of the optima",
    "privacy": "the noise that hides single tasks",
    "solver gap": "what the solver left undone",
}


def reading(certificate: Certificate) -> str:
    """What a reader who skips the tables should take away."""
    if not certificate.applicable:
        none = f"No guarantee on regret can be given for this run: {certificate.reason}."
        none = none if certificate.privacy else none.replace(" on regret", "")
        return " ".join([none, *certificate.privacy])
    low, high = certificate.interval
    best, theorem = certificate.bounds[0], certificate.theorem
    near = math.isclose(low, high, rel_tol=1e-4, abs_tol=1e-12)
    regret = f"{high:.4g}" if near else f"between {low:.4g} and {high:.4g}"

    def times(bound: Any, text: str) -> str:
        ratio = certificate.slack(bound)[1]
        return text.format(f"{ratio:.3g} times what was measured") if math.isfinite(ratio) else ""

    tasks = f"{certificate.tasks} task{'' if certificate.tasks == 1 else 's'}"
    said = [f"Over {tasks} the regret was {regret} per task on average."]
    said.append(f"It is proved to be at most {best.total:.4g} ({best.name}{times(best, ', {}')}).")
    for printed in certificate.bounds[1:]:
        if printed.name == "per-task sum":  # what `fmrl train` reports
            said.append(f"Theorem A.1 as printed (per-task sum) gives {printed.total:.4g}.")
    if theorem is not None and theorem is not best:
        value = f"{theorem.total:.4g}{times(theorem, ' ({})')}"
        alone = "learning" not in theorem.terms and theorem.note in ("", FIXED)
        alone = alone and not theorem.name.endswith("measured")
        ground = "similarity alone" if alone else "sums over the tasks"
        said.append(f"From {ground}, the {theorem.name} gives {value}.")
    lead = theorem or best
    meaning = MEANING.get(lead.dominant, lead.dominant)
    said.append(f"Its largest part, {lead.share:.0%}, is {meaning}.")
    if lead.note:
        said.append(lead.note)
    star, whole = (certificate.similarity.get(name) for name in ("D*", "D"))
    if star is not None and whole and math.isfinite(whole) and math.isfinite(star):
        alike = "alike" if star / whole < 0.5 else "not much alike"
        of = f"{star / whole:.0%} of the domain (D* = {star:.3g} of {whole:.3g})"
        said.append(f"The optima span {of}: the tasks are {alike}.")
    if star is not None and certificate.violations is not None:
        count = len(certificate.violations)
        last = f", last in task {certificate.violations[-1]}" if count else ""
        said.append(f"The guess was violated {count} time{'' if count == 1 else 's'}{last}.")
    unsure = {s: ", ".join(_named(certificate, s)) for s in ("false", "assumed")}
    if unsure["false"]:
        said.append(f"Not true of this run, and so not used: {unsure['false']}.")
    if unsure["assumed"]:
        said.append(f"Taken on trust: {unsure['assumed']}.")
    if not any(unsure.values()):
        said.append("Every assumption was checked.")
    return " ".join([*said, *certificate.privacy])


def _named(certificate: Certificate, status: str) -> list[str]:
    return [a.name for a in certificate.assumptions if a.status == status]


def _number(x: float) -> str:
    return "–" if math.isnan(x) else "∞" if math.isinf(x) else f"{x:.5g}"


HEAD = ("bound on TAR", "value", "slack", "ratio", "largest term", "proved in")


def _rows(certificate: Certificate) -> list[tuple[str, ...]]:
    """The rows under `HEAD`."""
    rows = []
    for b in certificate.bounds:
        values = map(_number, (b.total, *certificate.slack(b)))
        rows.append((b.name, *values, f"{b.dominant} ({b.share:.0%})", b.place))
    return rows


def _facts(certificate: Certificate) -> list[tuple[str, str]]:
    interval = ", ".join(map(_number, certificate.interval))
    facts = [("composition", certificate.composition), ("tasks", str(certificate.tasks))]
    facts.append(("TAR", f"[{interval}]"))
    facts += [(name, _number(value)) for name, value in certificate.similarity.items()]
    if "D*" in certificate.similarity and certificate.violations is not None:
        when = [str(t) for t in certificate.violations]
        shown = ", ".join(when if len(when) <= 12 else [*when[:6], "…", *when[-6:]])
        facts.append(("violations", f"{len(when)}" + (f" (tasks {shown})" if when else "")))
    if certificate.limit is not None:
        facts.append(("tasks this far apart can cost", _number(certificate.limit.total)))
    return facts


def markdown(certificate: Certificate) -> str:
    """The report in Markdown."""
    terms = [(b.name, name, _number(v)) for b in certificate.bounds for name, v in b.terms.items()]
    given = [(a.name, a.status, a.detail) for a in certificate.assumptions]
    lines = ["# Certificate", "", certificate.reading, ""]
    for title, head, rule, rows in (
        ("", ("", ""), "|---|---|", _facts(certificate)),
        ("Bounds", HEAD, "|---|---:|---:|---:|---|---|", _rows(certificate)),
        ("Terms", ("bound", "term", "value"), "|---|---|---:|", terms),
        ("Assumptions", ("assumption", "status", "detail"), "|---|---|---|", given),
    ):
        if rows:
            lines += [f"## {title}", ""] if title else []
            lines += [_row(head), rule, *map(_row, rows), ""]
    if certificate.refused:
        refused = [f"- {name}: {why}" for name, why in certificate.refused]
        lines += ["## Not applicable", "", *refused, ""]
    return "\n".join(lines)


def _row(cells: Any) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rich_table(certificate: Certificate) -> Any:
    """A rich renderable."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(certificate):
        facts.add_row(Text(name, style="bold"), Text(value))
    shown: list[Any] = [Panel(Text(certificate.reading), title="certificate"), facts]
    if certificate.bounds:
        table = Table()
        for name in HEAD:
            table.add_column(name, justify="right" if name in HEAD[1:4] else "left")
        for row in _rows(certificate):
            table.add_row(*map(Text, row))
        shown.append(table)
    if certificate.assumptions:
        table = Table("assumption", "status", "")
        for a in certificate.assumptions:
            table.add_row(Text(a.name), Text(a.status, style=COLOURS[a.status]), Text(a.detail))
        shown.append(table)
    refused = [f"not applicable — {name}: {why}" for name, why in certificate.refused]
    return Group(*shown, *(Text(line, style="dim") for line in refused))


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
    if certificate.applicable:
        _curves(certificate, left)
        _terms(certificate, right)
    else:
        left.set_axis_off()
        right.set_axis_off()
        left.text(0, 0.5, f"not applicable: {certificate.reason}", wrap=True)
    if path is not None:
        canvas.savefig(path)
    return canvas


def _curves(certificate: Certificate, axes: Any) -> None:
    task, tar, bound = (certificate.curves.get(name, ()) for name in ("task", "tar", "bound"))
    axes.plot(task, tar, color="black", label="measured TAR")
    axes.plot(task, bound, color="tab:blue", label="per-task sum")
    for i, b in enumerate(b for b in certificate.bounds if not b.name.startswith("per-task")):
        axes.axhline(b.total, color=f"C{i + 1}", linestyle="--", label=b.name)
    if certificate.limit is not None:
        line = {"color": "grey", "linestyle": ":", "label": "what tasks this far apart can cost"}
        axes.axhline(certificate.limit.total, **line)
    if certificate.violations is not None:
        when = [t + 1 for t in certificate.violations]
        axes.plot(when, [axes.get_ylim()[0]] * len(when), "|", color="red", label="violations")
    scale = "log" if certificate.tasks > 20 else "linear"
    axes.set(xlabel="task", ylabel="regret per task", xscale=scale)
    axes.legend(fontsize=8)


def _terms(certificate: Certificate, axes: Any) -> None:
    bounds, start = certificate.bounds, [0.0] * len(certificate.bounds)
    for i, name in enumerate(dict.fromkeys(name for b in bounds for name in b.terms)):
        values = [b.terms.get(name, 0.0) for b in bounds]
        axes.barh([b.name for b in bounds], values, left=start, color=f"C{i % 10}", label=name)
        start = [a + v for a, v in zip(start, values, strict=True)]
    axes.axvline(certificate.interval[1], color="black", label="measured TAR")
    axes.invert_yaxis()
    axes.set(xlabel="regret per task")
    axes.legend(fontsize=7)

"""The sections of the page as HTML. Strings from outside pass through `escape` or `name`; all else
is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fmrl.report import charts
from fmrl.report.facts import Data, Facts, HeldOut
from fmrl.report.text import aligned, as_number, change, count, escape, name, number, plural, score
from fmrl.report.verdict import verdict

LISTED = 100  # outliers named on the page
TRAIN = "fmrl train TABLE --task COLUMN --target COLUMN"
MISSING = {
    "heldout": (
        "No tasks were held out, so nothing can be said about new ones.",
        f"{TRAIN} --holdout 0.2 --out RUN",
    ),
    "learned": ("The initialisation was not passed to the report.", "fmrl report RUN"),
    "curves": ("The run kept no history of its tasks.", f"{TRAIN} --out RUN"),
    "guess": ("The run kept no guesses.", f"{TRAIN} --out RUN"),
    "similarity": ("The optima of the tasks were not kept.", f"{TRAIN} --out RUN"),
    "certificate": ("The run has not been certified.", "fmrl certify RUN"),
    "run": ("The run left no record of how it was made.", f"{TRAIN} --out RUN"),
}


def missing(facts: Facts, section: str) -> str:
    """One line: why there is nothing here, and what would change that."""
    why, command = MISSING[section]
    given = facts.get("missing", {}).get(section)  # type: ignore[call-overload]
    if given is not None:
        why, command = given["why"], given.get("command", "")
    fill = f" <span>To fill this: <code>{escape(command, None)}</code></span>" if command else ""
    return f'<p class="missing">{escape(why, 1000)}{fill}</p>'


def table(
    head: Iterable[str],
    rows: Iterable[Iterable[str]],
    numeric: Iterable[int] = (),
    caption: str = "",
) -> str:
    """A table from cells that are HTML already; columns of ``numeric`` are aligned to the right."""
    right = set(numeric)
    cell = lambda tag, i, text, more="": (
        f"<{tag}{more}{' class=n' if i in right else ''}>{text}</{tag}>"
    )  # noqa: E731
    top = "".join(cell("th", i, text, ' scope="col"') for i, text in enumerate(head))
    body = "".join(
        f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows
    )
    said = (
        f'<p class="caption">{caption}</p>' if caption else ""
    )  # outside, so that it wraps where a wide table scrolls
    frame = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
    return f"{said}{frame}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def details(summary: str, body: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{summary}</summary>{body}</details>"


def figure(chart: str, label: str, *notes: str) -> str:
    """The place of a chart; page.js draws it."""
    said = " ".join(note for note in notes if note)
    frame = '<div class="plot"><noscript>The chart needs JavaScript; its values are in the table.</noscript></div>'
    return f'<figure data-chart="{chart}" aria-label="{escape(label)}">{frame}<figcaption>{said}</figcaption></figure>'


def headline(facts: Facts) -> str:
    """Whether it helped, and what was learned from."""
    if "heldout" in facts:
        found = verdict(facts["heldout"])
        reasons = "".join(f"<p>{escape(reason, 1000)}</p>" for reason in found.reasons)
        said = f'<div class="verdict {found.tone}"><p class="answer">{escape(found.answer, 500)}</p>{reasons}</div>'
    else:
        answer = "Whether meta-learning helps on this data has not been measured."
        said = f'<div class="verdict unknown"><p class="answer">{answer}</p></div>'
    return said + _sizes(facts.get("data", {})) + _largest(facts)


def _largest(facts: Facts) -> str:
    """The start that was learned, in a sentence."""
    listed = [
        c
        for c in facts.get("learned", {}).get("coefficients", [])
        if as_number(c["value"]) is not None
    ][:3]
    if not listed:
        return ""
    named = [
        name(c["feature"])
        + (f" for class {name(c['output'])}" if "output" in c else "")
        + f" ({number(c['value'])})"
        for c in listed
    ]
    return f'<p class="quiet">phi, the start learned for every new task, leans most on {", ".join(named)}.</p>'


def _sizes(data: Data) -> str:
    classes = data.get("classes")
    rows = data.get("rows_per_task")
    tiles = [
        ("tasks learned from", count(data["tasks"]) if "tasks" in data else None),
        ("tasks held out", count(data["heldout_tasks"]) if "heldout_tasks" in data else None),
        ("rows", count(data["rows"]) if "rows" in data else None),
        ("rows a task", _spread(rows) if rows else None),
        ("features", count(data["features"]) if "features" in data else None),
        ("classes", count(len(classes)) if classes else None),
    ]
    shown = "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd></div>"
        for label, value in tiles
        if value is not None
    )
    lines = []
    if data.get("source"):
        columns = [
            f"{what} {name(data[key])}"
            for what, key in (("task", "task_column"), ("target", "target_column"))
            if data.get(key)
        ]
        lines.append(
            f"From {name(data['source'])}" + (f" ({', '.join(columns)})" if columns else "") + "."
        )
    if classes:
        more = f" and {count(len(classes) - 20)} more" if len(classes) > 20 else ""
        lines.append(f"Classes: {', '.join(map(name, classes[:20]))}{more}.")
    text = f'<p class="quiet">{" ".join(lines)}</p>' if lines else ""
    return (f'<dl class="tiles">{shown}</dl>' if shown else "") + text


def _spread(rows: Any) -> str:
    low, middle, high = rows
    return (
        count(low)
        if low == high
        else f"{count(low)}–{count(high)}<small> median {number(middle)}</small>"
    )


def comparison(facts: Facts) -> str:
    """Held-out score against shots, and the table of it."""
    found: HeldOut = facts["heldout"]
    metric = found["metric"]
    head = ["shots", *(name(m["name"]) for m in found["methods"])]
    others = list(dict.fromkeys(d["against"] for d in found.get("differences", [])))
    head += [f"gain over {name(other)}" for other in others]
    lookup = {(d["against"], d["shots"]): d for d in found.get("differences", [])}
    rows = []
    for i, shots in enumerate([*found["shots"], None]):
        row = ["all" if shots is None else count(shots)]
        row += ["" if shots is None else _with_interval(m, i, metric) for m in found["methods"]]
        for other in others:
            d = lookup.get((other, shots))
            row.append("" if d is None else _gain(d, metric))
        if shots is not None or any(row[1:]):
            rows.append(row)
    unit = "percentage points" if metric == "accuracy" else "R²"
    tasks = f" over {plural(found['tasks'], 'held-out task')}" if "tasks" in found else ""
    note = f"Means{tasks} with 95 % intervals. Gains are paired, in {unit}; “all” is each task's mean over its shots."
    what = "accuracy" if metric == "accuracy" else "R²"
    return figure("heldout", f"Held-out {what} against shots") + table(
        head, rows, range(1, len(head)), note
    )


def _with_interval(method: Any, i: int, metric: str) -> str:
    low, high = (method.get(end, [None] * (i + 1))[i] for end in ("low", "high"))
    span = (
        ""
        if as_number(low) is None
        else f" <small>{score(low, metric)} to {score(high, metric)}</small>"
    )
    return f"{score(method['mean'][i], metric)}{span}"


def _gain(d: Any, metric: str) -> str:
    span = (
        ""
        if as_number(d["low"]) is None
        else f" <small>{change(d['low'], metric)} to {change(d['high'], metric)}</small>"
    )
    return f"{change(d['mean'], metric)}{span}"


def learned(facts: Facts) -> str:
    """The largest coefficients of phi, with bars."""
    found = facts["learned"]
    listed = found["coefficients"]
    largest = max((abs(as_number(c["value"]) or 0.0) for c in listed), default=0.0) or 1.0
    several = any("output" in c for c in listed)
    rows, shown = [], aligned(c["value"] for c in listed)
    for c, text in zip(listed, shown, strict=True):
        value = as_number(c["value"]) or 0.0
        side, width = "down" if value < 0 else "up", 50 * abs(value) / largest
        bar = f'<span class="bar" aria-hidden="true"><i class="{side}" style="width:{width:.1f}%"></i></span>'
        rows.append(
            [name(c["feature"]), *([name(c.get("output", ""))] if several else []), text, bar]
        )
    head = [
        "feature",
        *(["class"] if several else []),
        "coefficient",
        '<span class="away">as a bar</span>',
    ]
    total = found.get("total")
    rest = (
        f"The {len(listed)} largest of {count(total)} coefficients of phi"
        if total and total > len(listed)
        else "phi, the learned start"
    )
    units = f" Units: {escape(found['note'])}." if found.get("note") else ""
    note = f"{rest}. Every new task starts from here.{units}"
    return table(head, rows, [len(head) - 2], note)


def tar(facts: Facts) -> str:
    """TAR and its bound."""
    curves, certificate = facts["curves"], facts.get("certificate")
    spec = charts.tar(facts)
    bounded, why = any("bound" in s["name"] for s in spec["series"]), ""
    if certificate is not None and not bounded:
        why = "No bound is drawn: none of this run has its assumptions met (see the certificate)."
    elif certificate is None and bounded:
        why = "The bound rests on assumptions nobody checked yet: <code>fmrl certify RUN</code>."
    some = _sample(curves["task"])
    columns = [
        (s["name"], dict(zip(s["x"], s["y"], strict=True)))
        for s in spec["series"]
        if s["style"] == "line"
    ]
    rows = [[count(t), *(number(values.get(t), 4) for _, values in columns)] for t in some]
    body = table(
        ["tasks seen", *(escape(label) for label, _ in columns)], rows, range(len(columns) + 1)
    )
    note = "TAR is the regret against each task's best fixed action, averaged over the tasks seen so far; lower is better."
    return figure(
        "tar", "TAR against tasks seen", note, why, _thinned(spec, curves.get("of"))
    ) + details("Values", body)


def guess(facts: Facts) -> str:
    """The guess and what it guessed."""
    curves = facts["curves"]
    spec = charts.guess(curves)
    note = (
        "D<sub>t</sub> is how far from phi the next optimum is believed to lie; it sets the step."
    )
    broken = (
        f"{plural(curves['violations'], 'task')} lay farther off than guessed."
        if "violations" in curves
        else ""
    )
    keys = [key for key in ("guess", "distance") if key in curves]
    where = {t: i for i, t in enumerate(curves["task"])}
    rows = [
        [count(t), *(number(curves[key][where[t]], 4) for key in keys)]
        for t in _sample(curves["task"])
    ]
    body = table(["tasks seen", *keys], rows, range(len(keys) + 1))
    return figure(
        "guess", "The guess D_t against tasks seen", note, broken, _thinned(spec, curves.get("of"))
    ) + details("Values", body)


def _sample(task: list[int]) -> list[int]:
    """1, 2, 5, 10, … and the last, as far as they were kept; the nearest kept one otherwise."""
    if not task:
        return []
    wanted = [
        lead * 10**power for power in range(9) for lead in (1, 2, 5) if lead * 10**power <= task[-1]
    ]
    return sorted({min(task, key=lambda t: abs(t - w)) for w in wanted} | {task[0], task[-1]})


def _thinned(spec: charts.Spec, of: Any) -> str:
    said = charts.thinned(max((len(s["x"]) for s in spec["series"]), default=0), of)
    return (
        f"{said}: of every stretch the first and the extremes, which look more frequent than they are."
        if said
        else ""
    )


def similarity(facts: Facts) -> str:
    """The map and its outliers."""
    found = facts["similarity"]
    spec = charts.similarity(found)
    drawn = sum(len(s["x"]) for s in spec["series"] if s["name"] in ("tasks", "outliers"))
    said = charts.thinned(drawn, found.get("of"))
    note = "One dot is the best action of one task in hindsight; tasks close together are alike."
    ball = "The circle is the smallest ball around all optima." if spec["circle"] else ""
    odd = [p for p in found["points"] if p.get("outlier")]
    total = found.get("outliers", len(odd))
    far = aligned(p["distance"] for p in odd[:LISTED])
    rows = [[name(p["name"]), d] for p, d in zip(odd, far, strict=False)]
    if rows:
        rule = f", {escape(found['rule'])}" if found.get("rule") else ""
        caption = f"{plural(total, 'outlier')}{rule}: beyond {number(found.get('fence'))}."
        below = f'<div class="narrow">{table(["task", "distance"], rows[:8], [1], caption)}'
        if len(rows) > 8:
            most = f"The {len(rows)} farthest of them" if total > len(rows) else "All of them"
            below += details(most, table(["task", "distance"], rows, [1]))
        below += "</div>"
    else:
        below = '<p class="quiet">No task lies far from the others.</p>'
    shown = f"{said}: outliers, the outermost and a random share." if said else ""
    return figure("similarity", "Map of the tasks' optima", note, ball, shown) + below


def optional(facts: Facts, section: str, present: bool, body: Callable[[Facts], str]) -> str:
    """The section, or why there is none."""
    return body(facts) if present else missing(facts, section)

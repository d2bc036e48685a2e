"""The first screen of the page, in plain words: what was gained, for which sizes of a new task, how
sure that is, and what to do next.
"""

from __future__ import annotations

from typing import Any

from fmrl.report.facts import METRICS, Data, Facts, HeldOut, called, hold_out
from fmrl.report.heldout import tasks_scored
from fmrl.report.html import as_number, count, details, escape, name, number, plural, table
from fmrl.report.verdict import MATTERS, side, verdict

FEW = 20  # tasks; a row of the table that rests on fewer is named
USE = "<code>fmrl adapt RUN new.csv</code>, <code>fmrl predict RUN new.csv</code>"
HOLD = "<code>fmrl train TABLE --task COLUMN --target COLUMN {} --out RUN</code>"
SAID = {
    "better": ("checked", "better"),
    "worse": ("false", "worse"),
    "same": ("quiet", "as good"),
    "unclear": ("quiet", "no clear difference"),
}


def summary(facts: Facts) -> str:
    """Whether it helped, for which sizes, how sure, and what to do; then what was learned from."""
    heldout = facts.get("heldout")
    answer, tone, reasons = verdict(heldout)
    body = f'<p class="answer">{escape(answer, 500)}</p>{_gained(heldout)}'
    if reasons:
        body += details("In numbers", "".join(f"<p>{escape(r, 1000)}</p>" for r in reasons))
    said = f'<div class="verdict {tone}">{body}</div>'
    said += _by_size(heldout) + _how_sure(heldout, facts.get("data", {}))
    steps = "".join(f"<li>{step}</li>" for step in next_steps(facts))
    said += f"<h3>What to do next</h3><ul>{steps}</ul>"
    return said + "<h3>What was learned from</h3>" + _sizes(facts) + _leans_on(facts)


def _gains(heldout: HeldOut | None) -> dict[str, dict[Any, str]]:
    """By baseline and by rows known (None: all together): better, worse, same, unclear, unknown."""
    found: dict[str, dict[Any, str]] = {}
    for d in (heldout or {}).get("differences", []):
        found.setdefault(d["against"], {})[d["shots"]] = side(d)
    return found


def _share(heldout: HeldOut, against: str, i: int) -> str:
    """By how much the loss at one size differs from a baseline's: "26 % less log-loss".

    >>> methods = [{"name": "FMRL", "mean": [0.9]}, {"name": "pooled", "mean": [0.8]}]
    >>> _share({"metric": "r2", "shots": [1], "methods": methods}, "pooled", 0)
    '50\\xa0% less squared error'
    """
    metric, by_name = heldout["metric"], {m["name"]: m["mean"] for m in heldout["methods"]}
    ours = as_number(heldout["methods"][0]["mean"][i]) if heldout["methods"] else None
    base = as_number(by_name[against][i]) if against in by_name else None
    if ours is None or base is None:
        return ""
    if metric == "accuracy":
        more = "more" if ours >= base else "fewer"
        return f"{abs(100 * (ours - base)):.0f} {more} of 100 rows right"
    lost, theirs = (1 - ours, 1 - base) if metric == "r2" else (ours, base)
    if theirs <= 0 or lost < 0:
        return ""
    what = "squared error" if metric == "r2" else METRICS[metric]
    change = f"{100 * abs(1 - lost / theirs):.0f}\xa0%"
    return f"{change} {'less' if lost <= theirs else 'more'} {what}"


def _gained(heldout: HeldOut | None) -> str:
    """One sentence: for every baseline the fewest rows, one or more, where the difference is
    clear.
    """
    said = []
    for against, by_size in _gains(heldout).items():
        clear = [k for k in by_size if k is not None and by_size[k] in ("better", "worse")]
        if heldout is None or not clear:
            continue
        shots = min(clear, key=lambda k: (k == 0, k))
        share = _share(heldout, against, heldout["shots"].index(shots))
        if share:
            where = plural(shots, "row") + " of a new task known"
            said.append(f"with {where}, {escape(share)} than {escape(called(against))}")
    line = "; ".join(said)
    return f"<p>What was gained: {line}.</p>" if said else ""


def _by_size(heldout: HeldOut | None) -> str:
    """For which sizes of a new task: a word for every baseline, with the number of tasks."""
    gains = _gains(heldout)
    if heldout is None or not gains:
        return ""
    head = ["rows known", "tasks"]
    head += [f"against {escape(called(against))}" for against in gains]
    rows = []
    for i, shots in enumerate(heldout["shots"]):
        row = [count(shots), tasks_scored(heldout, i) or count(heldout.get("tasks"))]
        for against, by_size in gains.items():
            look, word = SAID.get(by_size.get(shots, "unknown"), ("quiet", "–"))
            clear = by_size.get(shots) in ("better", "worse")
            share = f" <small>{escape(_share(heldout, against, i))}</small>" if clear else ""
            row.append(f'<span class="status {look}">{word}</span>{share}')
        rows.append(row)
    return "<h3>For which sizes</h3>" + table(
        head, rows, (0, 1), "By rows of a new task that are known."
    )


def _how_sure(heldout: HeldOut | None, data: Data) -> str:
    gains = _gains(heldout)
    if heldout is None or not gains:
        return ""
    tasks, away = plural(heldout.get("tasks"), "task"), data.get("heldout_tasks", 0)
    if away > heldout.get("tasks", away):
        tasks = (
            f"Of {plural(away, 'task')} held out, {count(heldout['tasks'])} had rows enough. These"
        )
    said = f"<p>{tasks} in all were kept away from learning and predicted afterwards, by every "
    said += "method from the same rows. “Better” and “worse” are said where the 95&nbsp;% interval "
    said += "of the difference, task by task, lies on one side of zero; “as good” where all of it "
    said += f"lies within {MATTERS} of zero; else there is no clear difference.</p>"
    listed = heldout["methods"][0].get("tasks", []) if heldout["methods"] else []
    few = [count(k) for k, n in zip(heldout["shots"], listed, strict=False) if n < FEW]
    if few:
        rows = (
            f"the line for {few[0]} rows" if len(few) == 1 else f"lines for {', '.join(few)} rows"
        )
        said += f"<p>Read {rows} with care: fewer than {FEW} tasks were large enough.</p>"
    return "<h3>How sure</h3>" + said


def next_steps(facts: Facts) -> list[str]:
    """What a reader can do now, as HTML: from the verdict, the outliers and the drift."""
    heldout, steps = facts.get("heldout"), []
    gains = _gains(heldout)
    if not gains:
        steps.append(f"Measure it: hold out whole tasks, {HOLD.format('--holdout 0.3')}.")
    overall = {against: by_size.get(None, "unknown") for against, by_size in gains.items()}
    if overall and all(found == "better" for found in overall.values()):
        steps.append(f"Use it for new tasks: {USE}.")
    for against, found in overall.items():
        known = {k: v for k, v in gains[against].items() if k is not None}
        wins = [k for k, v in known.items() if v == "better"]
        other = escape(called(against))
        if found in ("same", "unclear", "worse") and wins:
            where = f"from {plural(min(wins), 'row')} of a new task on"
            if any(k > min(wins) and v != "better" for k, v in known.items()):
                sizes = " or ".join(map(count, wins))
                where = f"with {sizes} row{'s' * (wins != [1])} of a new task"
                where += ", not clearly with more" if max(known) > max(wins) else ""
            steps.append(f"Against {other}, adapt {where}: {USE}.")
        elif found in ("same", "worse"):
            better = "as good" if found == "same" else "better"
            steps.append(f"Prefer {other}: it is {better} here, and simpler.")
        elif found == "unclear":
            how = "it takes more tasks"
            if option := hold_out(facts.get("data", {}).get("holdout", 0.0)):
                how = f"hold out more tasks: {HOLD.format(option)}"
            steps.append(f"To tell it from {other}, {how}.")
        if found == "better" and (behind := [k for k, v in known.items() if v == "worse"]):
            steps.append(f"With {', '.join(map(count, behind))} rows prefer {other}.")
    alike = facts.get("similarity", {})
    odd = [name(p["name"]) for p in alike.get("points", []) if p.get("outlier")]
    if odd:
        more = f" and {count(alike.get('outliers', len(odd)) - 3)} more" if len(odd) > 3 else ""
        steps.append(
            f"Look at {', '.join(odd[:3])}{more}: far from all others. Mixed-up labels or units "
            "look like this, and so do tasks that are truly different."
        )
    drift = as_number(alike.get("environment", {}).get("drift", {}).get("p"))
    followed = facts.get("learned", {}).get("kind", "recent") == "recent"
    if drift is not None and drift <= 0.03 and followed:
        steps.append("Train again as new tasks come: the tasks change over time (see below).")
    return steps


def _leans_on(facts: Facts) -> str:
    """The start that was learned, in a sentence that says which class a coefficient speaks for."""
    learned = facts.get("learned", {})
    target = name(facts.get("data", {}).get("target_column") or "the target")
    named = []
    for c in [c for c in learned.get("coefficients", []) if as_number(c["value"])][:3]:
        up = (as_number(c["value"]) or 0.0) > 0
        who = c.get("output", learned.get("positive"))
        if who is None:
            does = f"{'raises' if up else 'lowers'} {target}"
        else:
            does = f"speaks {'for' if up else 'against'} {name(who)}"
        named.append(f"{name(c['feature'])} {does} ({number(c['value'])})")
    said = "In a typical task,"
    if learned.get("bent"):
        said = "Beside a common part that is not linear, and has most to say,"
    if named and (unit := learned.get("note", "").partition(";")[0]):
        named[-1] += f", {escape(unit)}"
    return f'<p class="quiet">{said} {", ".join(named)}.</p>' if named else ""


def _sizes(facts: Facts) -> str:
    data: Data = facts.get("data", {})
    classes, rows = data.get("classes"), data.get("rows_per_task")

    def known(key: str) -> str | None:
        return count(data[key]) if key in data else None  # type: ignore[literal-required]

    tiles = {
        "tasks learned from": known("tasks"),
        "tasks held out": known("heldout_tasks"),
        "rows": known("rows"),
        "rows a task": _spread(rows) if rows else None,
        "features": known("features"),
        "classes": count(len(classes)) if classes else None,
    }
    shown = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in tiles.items() if v)
    lines = []
    if data.get("source"):
        lines.append(f"From {name(data['source'])}.")
    if data.get("task_column"):
        lines.append(f"A task is all rows with one value of {name(data['task_column'])}.")
    if data.get("target_column"):
        lines.append(f"Predicted is {name(data['target_column'])}.")
    if classes:
        more = f" and {count(len(classes) - 20)} more" if len(classes) > 20 else ""
        lines.append(f"Classes: {', '.join(map(name, classes[:20]))}{more}.")
    text = f'<p class="quiet">{" ".join(lines)}</p>' if lines else ""
    return (f'<dl class="tiles">{shown}</dl>' if shown else "") + text


def _spread(rows: Any) -> str:
    low, middle, high = rows
    span = f"{count(low)}–{count(high)}<small> median {number(middle)}</small>"
    return count(low) if low == high else span

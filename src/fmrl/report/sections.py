"""The sections of the page as HTML. Strings from outside pass through `escape` or `name`; all else
is written here.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fmrl.report import charts
from fmrl.report.facts import PAPER, Facts, family
from fmrl.report.html import (
    aligned,
    as_number,
    code,
    count,
    details,
    escape,
    figure,
    name,
    number,
    plural,
    score,
    table,
)
from fmrl.report.verdict import proved, verdict

LISTED = 100  # outliers named on the page
SIGNS = {"false": "✕", "assumed": "○", "checked": "✓"}  # in the order they are listed
TRAIN = "fmrl train TABLE --task COLUMN --target COLUMN"
_NEW = "No tasks were held out, so nothing can be said about new ones."
MISSING = {
    "heldout": (_NEW, f"{TRAIN} --holdout 0.2 --out RUN"),
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


def learned(facts: Facts) -> str:
    """The largest coefficients of the start, with bars, and how tasks differ from it."""
    found = facts["learned"]
    listed, total = found["coefficients"], found.get("total")
    values = [as_number(c["value"]) or 0.0 for c in listed]
    largest = max(map(abs, values), default=0.0) or 1.0
    several, stepped = (any(key in c for c in listed) for key in ("output", "step"))
    rows, steps = [], aligned(c.get("step") for c in listed)
    texts = zip(aligned(c["value"] for c in listed), steps, strict=True)
    for c, value, (text, step) in zip(listed, values, texts, strict=True):
        side, width = "down" if value < 0 else "up", f"width:{50 * abs(value) / largest:.1f}%"
        bar = f'<span class="bar" aria-hidden="true"><i class="{side}" style="{width}"></i></span>'
        output = [name(c.get("output", ""))] if several else []
        feature = name(c["feature"]).replace("=", "=<wbr>", 1)  # comment=no show: not inside a word
        rows.append([feature, *output, *([step] if stepped else []), text, bar])
    head = ["feature", *(["class"] if several else []), *(["step"] if stepped else [])]
    head.append("coefficient")
    head.append('<span class="away">as a bar</span>')
    what = "The learned start"
    if total and total > len(listed):
        what = f"The {len(listed)} largest of {count(total)} coefficients of the learned start"
    units = f" Units: {escape(found['note'])}." if found.get("note") else ""
    if found.get("positive") is not None and not several:
        units += f" A coefficient above 0 speaks for class {name(found['positive'])}"
        units += f", below 0 for {name(found.get('negative'))}."
    elif several:
        units += " A coefficient above 0 speaks for the class beside it, below 0 against it."
    note = f"{what}. Every new task starts from here.{units}"
    note += " A large step says that tasks differ in this coefficient." if stepped else ""
    where = escape(found.get("environment", ""), 500)
    where = f"<p>While learning: {where}.</p>" if where else ""
    shown = table(head, rows, range(1 + several, len(head) - 1), note)
    return shown + where + _families(found.get("families", ()))


def _families(found: Any) -> str:
    """In which ways tasks may differ, with the weights that did best on tasks held out."""
    names = list(dict.fromkeys(n for f in found for n in f["weights"]))
    used = [n for n in names if any(f["weights"].get(n) for f in found)]
    if not used:
        return ""
    rows = [
        [count(f["rows"]), *(score(f["weights"].get(n, 0.0), "accuracy") for n in used)]
        for f in found
    ]
    note = "How a new task may differ from the start, by the number of its rows: the weights under "
    note += "which an average of these models predicted best on tasks held out while learning."
    head = ["rows", *(escape(family(n)) for n in used)]
    return details("How a new task may differ", table(head, rows, range(1, len(head)), note))


def theory(facts: Facts) -> str:
    """What the folded part is, and what is proved in relation to what was measured."""
    said = "Regret is what was lost, row by row, against the best model for each task in hindsight."
    worth = facts.get("similarity", {}).get("worth")
    lines = [said, *proved(worth, verdict(facts.get("heldout")).tone)]
    return "".join(f"<p>{escape(line, 1000)}</p>" for line in lines)


def curves(facts: Facts) -> str:
    """TAR and its bound."""
    certificate, spec = facts.get("certificate"), charts.tar(facts)
    bounded, why = any("bound" in s["name"] for s in spec["series"]), ""
    if certificate is not None and not bounded:
        why = "No bound is drawn: none of this run has its assumptions met (see the certificate)."
    elif certificate is None and bounded:
        why = "The bound rests on assumptions nobody checked yet: <code>fmrl certify RUN</code>."
    lines = [s for s in spec["series"] if s["style"] == "line"]
    shown = {escape(s["name"]): dict(zip(s["x"], s["y"], strict=True)) for s in lines}
    note = "TAR is the regret against each task's best fixed action, averaged over the tasks seen "
    note += "so far; lower is better."
    return _over_tasks(facts, spec, "TAR against tasks seen", shown, note, why)


def guess(facts: Facts) -> str:
    """The guess and what it guessed, or the learned step."""
    found, far = facts["curves"], ""
    if "step" in found:
        note = "How far a task moves along a gradient, learned from the tasks before it; where it "
        note += "differs by coefficient, the mean."
        label = "The step against tasks seen"
    else:
        note = "D<sub>t</sub> is how far from phi the next optimum is believed to lie; it sets the "
        note, label = f"{note}step.", "The guess D_t against tasks seen"
        if "violations" in found:
            far = f"{plural(found['violations'], 'task')} lay farther off than guessed."
    keys = [key for key in ("step", "guess", "distance") if key in found]
    shown = {key: dict(zip(found["task"], found[key], strict=True)) for key in keys}  # type: ignore[literal-required]
    return _over_tasks(facts, charts.guess(found), label, shown, note, far)


def _over_tasks(
    facts: Facts, spec: charts.Spec, label: str, shown: dict[str, dict], *notes: str
) -> str:
    """A chart against tasks seen, and its values after 1, 2, 5, 10, … tasks: those kept nearest."""
    task = facts["curves"]["task"]
    wanted = [lead * 10**power for power in range(9) for lead in (1, 2, 5)] if task else []
    some = {min(task, key=lambda t: abs(t - w)) for w in wanted if w <= task[-1]}
    some |= {*task[:1], *task[-1:]}
    names = dict(zip(task, facts["curves"].get("name") or (), strict=False))
    last = [lambda t: name(names.get(t, ""))] if names else []
    rows = [
        [count(t), *(say(t) for say in last), *(number(v.get(t), 4) for v in shown.values())]
        for t in sorted(some)
    ]
    head = ["tasks seen", *(["the last of them"] if names else []), *shown]
    body = table(head, rows, [0, *range(1 + len(last), len(head))])
    points = max((len(s["x"]) for s in spec["series"]), default=0)
    said = charts.share_drawn(points, facts["curves"].get("of"))
    kept = "of every stretch the first and the extremes, which look more frequent than they are"
    drawn = figure(spec["id"], label, *notes, f"{said}: {kept}." if said else "")
    return drawn + details("Values", body)


def similarity(facts: Facts) -> str:
    """The map and its outliers."""
    found, spec = facts["similarity"], charts.similarity(facts["similarity"])
    drawn = sum(len(s["x"]) for s in spec["series"] if s["name"] in ("tasks", "outliers"))
    said = charts.share_drawn(drawn, found.get("of"))
    shown = f"{said}: outliers, the outermost and a random share." if said else ""
    note = "One dot is one task: the model that would have been best for it. Dots close together "
    note += "are tasks that are alike."
    if any(s["name"] == "phi" for s in spec["series"]):
        note += " The diamond is phi, the learned start: what a new task has before its first row."
    ball = "The circle is the smallest ball around all optima." if spec["circle"] else ""
    odd = [p for p in found["points"] if p.get("outlier")]
    total, head = found.get("outliers", len(odd)), ["task", "distance"]
    far = aligned(p["distance"] for p in odd[:LISTED])
    rows = [[name(p["name"]), d] for p, d in zip(odd, far, strict=False)]
    below = '<p class="quiet">No task lies far from the others.</p>'
    if rows:
        rule = f", {escape(found['rule'])}" if found.get("rule") else ""
        caption = f"{plural(total, 'outlier')}{rule}: beyond {number(found.get('fence'))}."
        most = f"The {len(rows)} farthest of them" if total > len(rows) else "All of them"
        more = details(most, table(head, rows, [1])) if len(rows) > 8 else ""
        below = f'<div class="narrow">{table(head, rows[:8], [1], caption)}{more}</div>'
    drawn = figure("similarity", "Map of the tasks' optima", note, ball, shown)
    drawn += _playground(facts) + below
    where = facts.get("learned", {})
    return drawn + (_environment(found["environment"], where) if "environment" in found else "")


def _playground(facts: Facts) -> str:
    """The link to the page on which these tasks can be dragged."""
    if not facts.get("playground"):
        return ""
    to = "./" + quote(str(facts["playground"]), errors="replace")  # "./": never a scheme
    return f'<p><a href="{escape(to, None)}">Drag these tasks and watch what it changes</a></p>'


def _environment(found: dict[str, Any], learned: Any) -> str:
    """Drift and groups: in words, beside those of the model, as a curve over the tasks, and the
    tests behind the words.
    """
    drift, groups = found["drift"], found["groups"]
    note = "How far optima lie from where their tasks would start. If the start that forgets is "
    note += "closer, old tasks mislead."
    shuffled = f"{number(drift['chance'])} if tasks are shuffled"
    tests = [
        ["drift: does the order of tasks matter", f"p = {number(drift['p'])}"],
        ["drift: path of a moving mean", f"{number(drift['path'])} ({shuffled})"],
        ["groups: more than noise of the same shape", f"p = {number(groups['p'])}"],
        [f"bound with memory of about {plural(found['memory'], 'task')}", _share(found, "drift")],
        ["bound with a start for each group", _share(found, "groups")],
    ]
    columns = (groups["values"], groups["gaps"], groups["errors"])
    rows = [
        [count(k), number(value), f"{number(gap)} ± {number(error)}", "✓" * (k == groups["k"])]
        for k, (value, gap, error) in enumerate(zip(*columns, strict=True), start=1)
    ]
    caption = "Gap: log of the k-means value of Gaussian noise, less that of the optima."
    head = ["k", "k-means value", "gap", "chosen"]
    by_k = table(head, rows, (0, 1, 2), caption, stacked=True)
    body = table(["test or worth", ""], tests) + by_k
    drawn = figure("environment", "Distance of optima from their start, over the tasks", note)
    firsts = [name(c["name"]) for c in drift["changes"] if c.get("name") is not None]
    new = f" The first task after a change: {', '.join(firsts)}." if firsts else ""
    said = f"<p>{escape(found['sentence'], 1000)}{new}</p>"
    kinds, kind = found.get("kinds"), learned.get("kind")
    if kinds is not None and "kind" in learned and (kinds or kind != "stationary"):
        so = "So is the model" if kind in kinds else "The model is learned otherwise"
        why = "There the loss on later tasks decides, here where the best models of tasks lie."
        said += f"<p>{so}: {escape(learned.get('environment', ''), 500)}. {why}</p>"
    return said + drawn + details("Tests and worth", body)


def _share(found: dict[str, Any], what: str) -> str:
    worth = as_number(found[f"worth_{what}"])
    return "–" if worth is None else f"{100 * worth:.0f}&nbsp;% of one start for all"


def run(facts: Facts) -> str:
    """Command, configuration, versions, checksums."""
    found = facts["run"]
    parts = ""
    for said, key in (("To reproduce", "command"), ("The composition that ran", "composition")):
        parts += f"<p>{said}:</p>{code(found[key])}" if found.get(key) else ""
    tables = ""
    for key in ("configuration", "versions"):
        given = found.get(key) or {}
        rows = [
            [name(k), name(number(v, 6) if isinstance(v, float) else v)] for k, v in given.items()
        ]
        tables += table([key, ""], rows) if rows else ""
    folded = f'<div class="columns">{tables}</div>'
    parts += details("Configuration and versions", folded) if tables else ""
    rows = []
    for d in found.get("data") or ():
        size = count(d["rows"]) if "rows" in d else ""
        rows.append([name(d["name"]), size, f"<code>{escape(d['sha256'])}</code>"])
    head, numbers = ["data", "rows", "sha256"], [1]
    if not any(row[1] for row in rows):
        head, numbers, rows = ["data", "sha256"], [], [[row[0], row[2]] for row in rows]
    parts += table(head, rows, numbers) if rows else ""
    if (seconds := as_number(found.get("seconds"))) is not None:
        unit, size = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 7200 else ("h", 3600)
        parts += f'<p class="quiet">The run took {number(seconds / size)} {unit}.</p>'
    return parts


def citation(facts: Facts) -> str:
    """BibTeX."""
    bibtex = facts.get("bibtex", PAPER)
    return f"<p>If this helped your work, cite the paper it rests on:</p>{code(bibtex)}"


def certificate(facts: Facts) -> str:
    """Bounds that hold, every assumption with its status, and what is no guarantee here."""
    found = facts["certificate"]
    broken = [(r["name"], r["why"]) for r in found.get("refused", ())]
    for b in found.get("bounds", ()):
        false = [a["name"] for a in b.get("assumptions", ()) if a["status"] == "false"]
        broken += [(b["name"], f"false here: {', '.join(false)}")] if false else []
    parts = _guarantees(found, charts.holding(found))
    if limit := found.get("limit"):
        said = "With tasks as dissimilar as these an adversary could force a TAR of"
        parts += f"<p>{said} {number(limit['total'], 4)} on anyone.</p>"
    if listed := found.get("assumptions", ()):
        rank = {status: i for i, status in enumerate(SIGNS)}
        rows = [
            [_status(a["status"]), escape(a["name"]), escape(a.get("detail", ""), 400)]
            for a in sorted(listed, key=lambda a: rank.get(a["status"], 0))
        ]
        unused = any(a["status"] == "false" for a in listed)
        caption = "What guarantees rest on."
        caption += " What is false here is used by none of them." if unused else ""
        parts += table(["status", "assumption", "detail"], rows, caption=caption)
    if broken:
        rows = [[name(title), escape(why, 600)] for title, why in broken]
        said = f"Not guarantees here ({len(broken)})"
        parts += details(said, table(["bound", "why not"], rows))
    return parts


def _guarantees(found: dict[str, Any], bounds: list[dict[str, Any]]) -> str:
    if not bounds:
        why = escape(found.get("reason") or "no bound applies", None)
        return f'<p class="missing">No guarantee can be given for this run: {why}.</p>'
    said = f"<p>{escape(found['reading'], None)}</p>" if found.get("reading") else ""
    ends = (number(x, 4) for x in found.get("tar", ()) if as_number(x) is not None)
    measured = " to ".join(dict.fromkeys(ends)) or "–"
    caption = f"Measured TAR: {measured} over {plural(found.get('tasks'), 'task')}."
    totals = aligned((b["total"] for b in bounds), 4)
    ratios = aligned(b.get("ratio") for b in bounds)
    rows = [
        [name(b["name"]), total, ratio, _largest(b), escape(b.get("place"))]
        for b, total, ratio in zip(bounds, totals, ratios, strict=True)
    ]
    terms = [
        [name(b["name"]), escape(term), number(v, 4)]
        for b in bounds
        for term, v in b["terms"].items()
    ]
    head = ["guarantee on TAR", "value", "times measured", "largest term", "proved in"]
    by_term = table(["guarantee", "term", "value"], terms, [2])
    return (
        said + table(head, rows, (1, 2), caption, stacked=True) + details("Term by term", by_term)
    )


def _status(status: Any) -> str:
    known = status if status in SIGNS else "false"
    sign = f'<span aria-hidden="true">{SIGNS[known]}</span>'
    return f'<span class="status {known}">{sign} {escape(status)}</span>'


def _largest(bound: Any) -> str:
    terms = {k: x for k, v in bound["terms"].items() if (x := as_number(v)) is not None}
    top, total = max(terms, key=lambda k: terms[k], default=""), as_number(bound["total"])
    share = f" ({100 * terms[top] / total:.0f}&nbsp;%)" if terms and total and total > 0 else ""
    return escape(top) + share

"""The certificate on the page: bounds that hold, what they rest on, and what is no guarantee."""

from __future__ import annotations

from typing import Any

from fmrl.report import charts
from fmrl.report.facts import Facts
from fmrl.report.html import aligned, as_number, details, escape, name, number, plural, table

SIGNS = {"false": "✕", "assumed": "○", "checked": "✓"}  # in the order they are listed


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

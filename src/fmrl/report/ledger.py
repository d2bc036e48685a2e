"""The closing sections: what is proved and on what grounds, how the run was made, and what to cite."""

from __future__ import annotations

from typing import Any

from fmrl.report.charts import holding
from fmrl.report.facts import PAPER, Facts
from fmrl.report.sections import details, table
from fmrl.report.text import aligned, as_number, count, escape, name, number, plural

SIGNS = {"checked": "✓", "assumed": "○", "false": "✕"}


def certificate(facts: Facts) -> str:
    """Bounds that hold, every assumption with its status, and what is no guarantee here."""
    found = facts["certificate"]
    bounds, broken, parts = (
        holding(found),
        [(r["name"], r["why"]) for r in found.get("refused", ())],
        [],
    )
    for b in found.get("bounds", ()):
        false = [a["name"] for a in b.get("assumptions", ()) if a["status"] == "false"]
        broken += [(b["name"], f"false here: {', '.join(false)}")] if false else []
    if bounds:
        if found.get("reading"):
            parts.append(f"<p>{escape(found['reading'], None)}</p>")
        low, high = (as_number(x) for x in found.get("tar", (None, None)))
        ends = list(dict.fromkeys(number(x, 4) for x in (low, high) if x is not None))
        measured = " to ".join(ends) or "–"
        head = ["guarantee on TAR", "value", "times measured", "largest term", "proved in"]
        values = zip(
            bounds,
            aligned((b["total"] for b in bounds), 4),
            aligned(b.get("ratio") for b in bounds),
            strict=True,
        )
        rows = [
            [name(b["name"]), total, ratio, _largest(b), escape(b.get("place"))]
            for b, total, ratio in values
        ]
        parts.append(
            table(
                head,
                rows,
                (1, 2),
                f"Measured TAR: {measured} over {plural(found.get('tasks'), 'task')}.",
            )
        )
        terms = [
            [name(b["name"]), escape(term), number(v, 4)]
            for b in bounds
            for term, v in b["terms"].items()
        ]
        parts.append(details("Term by term", table(["guarantee", "term", "value"], terms, [2])))
    else:
        why = escape(found.get("reason") or "no bound applies", None)
        parts.append(f'<p class="missing">No guarantee can be given for this run: {why}.</p>')
    limit = found.get("limit")
    if limit:
        parts.append(
            f"<p>With tasks as dissimilar as these an adversary could force a TAR of {number(limit['total'], 4)} on anyone.</p>"
        )
    listed = found.get("assumptions", ())
    if listed:
        order = {"false": 0, "assumed": 1, "checked": 2}
        rows = [
            [_status(a["status"]), escape(a["name"]), escape(a.get("detail", ""), 400)]
            for a in sorted(listed, key=lambda a: order.get(a["status"], 0))
        ]
        unused = (
            " What is false here is used by none of them."
            if any(a["status"] == "false" for a in listed)
            else ""
        )
        parts.append(
            table(
                ["status", "assumption", "detail"],
                rows,
                caption=f"What guarantees rest on.{unused}",
            )
        )
    if broken:
        rows = [[name(title), escape(why, 600)] for title, why in broken]
        parts.append(
            details(f"Not guarantees here ({len(broken)})", table(["bound", "why not"], rows))
        )
    return "".join(parts)


def _status(status: Any) -> str:
    known = status if status in SIGNS else "false"
    return f'<span class="status {known}"><span aria-hidden="true">{SIGNS[known]}</span> {escape(status)}</span>'


def _largest(bound: Any) -> str:
    terms = {
        k: v for k, v in ((k, as_number(v)) for k, v in bound["terms"].items()) if v is not None
    }
    if not terms:
        return ""
    top, total = max(terms, key=lambda k: terms[k]), as_number(bound["total"])
    return escape(top) + (
        f" ({100 * terms[top] / total:.0f}&nbsp;%)" if total and total > 0 else ""
    )


def run(facts: Facts) -> str:
    """Command, configuration, versions, checksums."""
    found, parts = facts["run"], []
    if found.get("command"):
        parts.append(
            f"<p>To reproduce:</p><pre><code>{escape(found['command'], None)}</code></pre>"
        )
    if found.get("composition"):
        parts.append(
            f"<p>The composition that ran:</p><pre><code>{escape(found['composition'], None)}</code></pre>"
        )
    tables = []
    for title, key in (("configuration", "configuration"), ("versions", "versions")):
        rows = [[name(k), name(_shown(v))] for k, v in (found.get(key) or {}).items()]
        if rows:
            tables.append(table([title, ""], rows))
    parts.append(f'<div class="columns">{"".join(tables)}</div>' if tables else "")
    if found.get("data"):
        rows = [
            [
                name(d["name"]),
                count(d["rows"]) if "rows" in d else "",
                f"<code>{escape(d['sha256'])}</code>",
            ]
            for d in found["data"]
        ]
        parts.append(table(["data", "rows", "sha256"], rows, [1]))
    if as_number(found.get("seconds")) is not None:
        parts.append(f'<p class="quiet">The run took {_time(found["seconds"])}.</p>')
    return "".join(parts)


def _shown(value: Any) -> str:
    return number(value, 6) if isinstance(value, float) else str(value)


def _time(seconds: Any) -> str:
    found = as_number(seconds) or 0.0
    return (
        f"{number(found)} s"
        if found < 120
        else f"{number(found / 60)} min"
        if found < 7200
        else f"{number(found / 3600)} h"
    )


def citation(facts: Facts) -> str:
    """BibTeX."""
    return f"<p>If this helped your work, cite the paper it rests on:</p><pre><code>{escape(facts.get('bibtex', PAPER), None)}</code></pre>"

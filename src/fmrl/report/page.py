"""render: facts in, one HTML file out that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import fmrl
from fmrl import files
from fmrl.errors import FMRLError
from fmrl.records import plain
from fmrl.report import brief, charts, heldout, sections
from fmrl.report.facts import Facts
from fmrl.report.html import details, escape

SCRIPTS = ("axes.js", "chart.js", "explore.js", "theme.js", "page.js")  # one scope, in this order
# Anchor, title, and the fact without which there is nothing to show (None: always shown).
SECTIONS = (
    ("summary", "In short", None, brief.summary),
    ("heldout", "New tasks, by rows known", "heldout", heldout.heldout),
    ("learned", "What was learned", "learned", sections.learned),
    ("similarity", "How alike the tasks are", "similarity", sections.similarity),
    ("run", "How it was made", "run", sections.run),
    ("citation", "Citation", None, sections.citation),
    ("tar", "Regret as tasks arrive", "curves", sections.curves),
    ("guess", "The guess D<sub>t</sub>", "guess", sections.guess),
    ("certificate", "Certificate", "certificate", sections.certificate),
)
FOLDED = ("tar", "guess", "certificate")  # the theory, at the end


def render(facts: Facts) -> str:
    """The page as a string: a pure function of the facts.

    It opens offline: styles, script and data are inside, and its own content policy forbids it
    every request.

    Args:
        facts: What to show, as `Facts` describes it; only a title is required.

    Returns:
        HTML.

    >>> page = render({"title": "shops </script>"})
    >>> page.count("<script"), page.count("</script>"), "shops &lt;/script&gt;" in page
    (2, 2, True)
    """
    if not isinstance(facts, Mapping) or not facts.get("title"):
        raise FMRLError("a report needs facts with at least a title", fix='give {"title": "…"}')
    try:
        return _filled(facts)
    except FMRLError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"the report's facts are not as fmrl.report.Facts says ({type(error).__name__}: "
        raise FMRLError(f"{what}{error})", fix="collect them again") from error


def write(facts: Facts, path: str | os.PathLike) -> Path:
    """Render to a file; a write that fails leaves the file that was there.

    Args:
        facts: What to show, as `Facts` describes it.
        path: The HTML file; folders above it are made.

    Returns:
        The path.
    """
    if not isinstance(facts, dict):
        what = f"facts are a dictionary, not a {type(facts).__name__}"
        raise FMRLError(what, fix="the order is (facts, path)")
    return files.write(path, render(facts))


def embed(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can close the element or open a
    comment.

    >>> embed(["</script><!--", float("nan"), "\u2028"])
    '["\\\\u003c/script\\\\u003e\\\\u003c!--",null,"\\\\u2028"]'
    """
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def assemble(template: str, script: str, parts: Mapping[str, str], allowed: str = "") -> str:
    """A page whose places {{name}} are filled, with a content policy that forbids every request
    and every script but this one.

    Args:
        template: The HTML, with places for ``policy`` and ``script`` too.
        script: Runs in strict mode, in a scope of its own.
        parts: What fills the other places, as HTML.
        allowed: More of the content policy.
    """
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    filled = {**parts, "script": script, "policy": f"{policy}; img-src data:{allowed}"}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)


def asset(name: str, package: str = "fmrl.report") -> str:
    """The text of a file that lies in a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _filled(facts: Facts) -> str:
    facts = charts.thinned_facts(facts)
    created = facts.get("run", {}).get("created")
    parts = {
        "title": escape(facts["title"]),
        "style": asset("page.css"),
        "data": embed(charts.specs(facts)),
        "sections": _sections(facts),
        "when": f"{escape(created)} · " if created else "",
        "version": escape(fmrl.__version__),
    }
    return assemble(asset("page.html"), "".join(map(asset, SCRIPTS)), parts)


def _sections(facts: Facts) -> str:
    learned = {"guess", "step"} & {*facts.get("curves", {})}
    there = {*facts, *({"guess"} if learned else ()), None}
    links, body, folded = "", "", ""
    for key, title, needs, section in SECTIONS:
        title = "The step" if key == "guess" and "step" in learned else title
        links += f'<li><a href="#{key}">{title}</a></li>'
        html = section(facts) if needs in there else sections.missing(facts, str(needs))
        made = f'<section id="{key}"><h2>{title}</h2>{html}</section>'
        body, folded = (body, folded + made) if key in FOLDED else (body + made, folded)
    theory = details("For theorists: regret and what is proved", sections.theory(facts) + folded)
    body += f'<div id="theory">{theory}</div>'
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>{body}'

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
from fmrl.report import charts, ledger, sections
from fmrl.report.facts import Facts
from fmrl.report.text import escape

SCRIPTS = ("axes.js", "chart.js", "explore.js", "page.js")  # one scope, in this order


def render(facts: Facts) -> str:
    """The page as a string: a pure function of the facts (see `fmrl.report.facts.Facts`).

    It opens offline: styles, script and data are inside, and its own content policy forbids it
    every request.

    >>> page = render({"title": "shops </script>"})
    >>> page.count("<script"), page.count("</script>"), "shops &lt;/script&gt;" in page, "fmrl certify RUN" in page
    (2, 2, True, True)
    """
    if not isinstance(facts, Mapping) or not facts.get("title"):
        raise FMRLError("a report needs facts with at least a title", fix='give {"title": "…"}')
    try:
        return _filled(facts)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, FMRLError):
            raise
        what = f"{type(error).__name__}: {error}"
        raise FMRLError(
            f"the report's facts are not as fmrl.report.facts says ({what})",
            fix="gather them again",
        ) from error


def _filled(facts: Facts) -> str:
    facts = charts.slim(facts)
    script, style = (
        "".join(['"use strict";\n(() => {\n', *map(_asset, SCRIPTS), "})();\n"]),
        _asset("page.css"),
    )
    parts = {
        "title": escape(facts["title"]),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_digest(script)}'; img-src data:",
        "style": style,
        "script": script,
        "data": embed(specs(facts)),
        "sections": _sections(facts),
        "when": _when(facts),
        "version": escape(fmrl.__version__),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def write(facts: Facts, path: str | os.PathLike) -> Path:
    """Render to a file, whole or not at all."""
    return files.write(path, render(facts))


def embed(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can close the element or open a
    comment.

    >>> embed(["</script><!--", float("nan"), "\u2028"])
    '["\\\\u003c/script\\\\u003e\\\\u003c!--",null,"\\\\u2028"]'
    """
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def specs(facts: Facts) -> list[charts.Spec]:
    """The charts for which there are facts."""
    found = []
    if "heldout" in facts:
        found.append(charts.heldout(facts["heldout"]))
    if "curves" in facts:
        found.append(charts.tar(facts))
        if "guess" in facts["curves"]:
            found.append(charts.guess(facts["curves"]))
    if "similarity" in facts:
        found.append(charts.similarity(facts["similarity"]))
    return found


def _sections(facts: Facts) -> str:
    has_guess = "guess" in facts.get("curves", {})
    listed = [
        ("summary", "In short", sections.headline(facts)),
        (
            "heldout",
            "New tasks, by shots",
            sections.optional(facts, "heldout", "heldout" in facts, sections.comparison),
        ),
        (
            "learned",
            "What was learned",
            sections.optional(facts, "learned", "learned" in facts, sections.learned),
        ),
        (
            "tar",
            "Regret as tasks arrive",
            sections.optional(facts, "curves", "curves" in facts, sections.tar),
        ),
        (
            "guess",
            "The guess D<sub>t</sub>",
            sections.optional(facts, "guess", has_guess, sections.guess),
        ),
        (
            "similarity",
            "How alike the tasks are",
            sections.optional(facts, "similarity", "similarity" in facts, sections.similarity),
        ),
        (
            "certificate",
            "Certificate",
            sections.optional(facts, "certificate", "certificate" in facts, ledger.certificate),
        ),
        ("run", "How it was made", sections.optional(facts, "run", "run" in facts, ledger.run)),
        ("citation", "Citation", ledger.citation(facts)),
    ]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in listed)
    nav = f'<nav aria-label="Sections"><ul>{links}</ul></nav>'
    body = [f'<section id="{key}"><h2>{title}</h2>{html}</section>' for key, title, html in listed]
    return nav + "".join(body)


def _when(facts: Facts) -> str:
    created = facts.get("run", {}).get("created")
    return f"{escape(created)} · " if created else ""


def _asset(name: str) -> str:
    return resources.files("fmrl.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

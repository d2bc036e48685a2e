"""The report page: one dictionary of facts in, one self-contained HTML file out.

    fmrl.report.write(facts, "report.html")        or        python -m fmrl.report facts.json report.html

`facts` describes the dictionary and `facts_of` makes it from a history; `curves`, `similarity_map`,
`coefficients`, `held_out`, `certificate_facts` and `checksums` make single sections from values of
the library."""

from fmrl.report.facts import PAPER, Facts
from fmrl.report.from_history import facts_of
from fmrl.report.from_values import (
    certificate_facts,
    checksums,
    coefficients,
    curves,
    held_out,
    similarity_map,
)
from fmrl.report.page import render, write

__all__ = [
    "PAPER",
    "Facts",
    "certificate_facts",
    "checksums",
    "coefficients",
    "curves",
    "facts_of",
    "held_out",
    "render",
    "similarity_map",
    "write",
]

"""The report page: one dictionary of facts in, one self-contained HTML file out.

    fmrl.report.write(facts, "report.html")
    python -m fmrl.report facts.json report.html

`Facts` describes the dictionary and `facts_of` makes it from a history; `curves`, `similarity_map`,
`worth`, `coefficients`, `held_out`, `certificate_facts` and `checksums` make single sections from
values of the library.
"""

from fmrl.report.facts import PAPER, Facts
from fmrl.report.heldout import held_out
from fmrl.report.make_facts import (
    certificate_facts,
    checksums,
    coefficients,
    curves,
    facts_of,
    similarity_map,
    worth,
)
from fmrl.report.page import render, write

__all__ = [
    "PAPER", "Facts", "certificate_facts", "checksums", "coefficients", "curves", "facts_of",
    "held_out", "render", "similarity_map", "worth", "write",
]  # fmt: skip

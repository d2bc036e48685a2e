"""Values, tables and figures as HTML: escaped strings, numbers with sensible digits."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from typing import Any

# Control characters and lone surrogates are not allowed in HTML.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LONGEST = 200  # characters of a name that the page keeps


def clean(value: Any, longest: int | None = LONGEST) -> str:
    """Any value as text that a page can hold, cut where it is too long to read.

    >>> clean("a\\x00b"), clean("x" * 300)[-3:], clean(None)
    ('a\ufffdb', 'xx…', '')
    """
    text = _UNPRINTABLE.sub("\ufffd", "" if value is None else str(value))
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"


def escape(value: Any, longest: int | None = LONGEST) -> str:
    """Text for HTML, elements and quoted attributes alike.

    >>> escape("</script><b a='1'>")
    '&lt;/script&gt;&lt;b a=&#x27;1&#x27;&gt;'
    """
    return html.escape(clean(value, longest), quote=True)


def name(value: Any) -> str:
    """A user's string, isolated: its writing direction cannot reorder the text around it."""
    return f"<bdi>{escape(value)}</bdi>"


def as_number(value: Any) -> float | None:
    """A finite float, or None.

    >>> as_number("1e3"), as_number(float("inf")), as_number("x"), as_number(True)
    (1000.0, None, None, 1.0)
    """
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def number(value: Any, digits: int = 3) -> str:
    """Significant digits, a true minus sign, thousands apart; – for what is not known.

    >>> number(0.012345), number(-1234567.0), number(None), number(2.0), number(4.1e-9)
    ('0.0123', '−1,234,567', '–', '2', '4.1 × 10⁻⁹')
    """
    found = as_number(value)
    if found is None:
        infinite = isinstance(value, float) and math.isinf(value)
        return ("∞" if value > 0 else "−∞") if infinite else "–"
    if found == 0:
        return "0"
    size = math.floor(math.log10(abs(found)))
    if size < -4 or size > 14:
        lead, power = f"{found:.{digits - 1}e}".split("e")
        text = f"{_trimmed(lead)} × 10{str(int(power)).translate(_RAISED)}"
    else:
        text = _trimmed(f"{found:,.{max(0, digits - 1 - size)}f}")
    return text.replace("-", "−")


def aligned(values: Iterable[Any], digits: int = 3) -> list[str]:
    """A column of numbers with the same decimals: as many as the largest needs, or the smallest for
    two digits, at most four.

    >>> aligned([-0.53412, 0.0528, 0.0, None])
    ['−0.534', '0.053', '0.000', '–']
    >>> aligned([146.2, 6.03])
    ['146.2', '6.0']
    """
    found = [as_number(v) for v in values]
    sizes = [math.floor(math.log10(abs(v))) for v in found if v]
    if sizes and not -5 < max(sizes) < 12:
        return [number(v, digits) for v in found]
    decimals = min(digits + 1, max(0, digits - 1 - max(sizes), 1 - min(sizes))) if sizes else 0
    return ["–" if v is None else f"{v:,.{decimals}f}".replace("-", "−") for v in found]


def count(value: Any) -> str:
    """A whole number, thousands apart.

    >>> count(100000), count(None), count(3.0)
    ('100,000', '–', '3')
    """
    found = as_number(value)
    return "–" if found is None else f"{round(found):,}".replace("-", "−")


def plural(value: Any, word: str) -> str:
    """A count with its noun.

    >>> plural(1, "task"), plural(2000, "task"), plural(3, "class")
    ('1 task', '2,000 tasks', '3 classes')
    """
    many = word + ("es" if word.endswith("s") else "s")
    return f"{count(value)} {word if as_number(value) == 1 else many}"


def score(value: Any, metric: str) -> str:
    """A score: shares in per cent, log-loss and R² with three decimals, widths in any unit.

    >>> score(0.8125, "accuracy"), score(-0.3333, "r2"), score(1234.5, "width")
    ('81.2\\xa0%', '−0.333', '1,234')
    """
    found, share = as_number(value), metric in ("accuracy", "coverage")
    if found is None or metric == "width" or (not share and abs(found) >= 100):
        return number(found)
    text = f"{100 * found:.1f}\xa0%" if share else f"{found:.3f}"
    return text.replace("-", "−")


def change(value: Any, metric: str) -> str:
    """A difference of scores, signed: in percentage points for accuracy.

    >>> change(0.0321, "accuracy"), change(-0.05, "r2"), change(None, "r2")
    ('+3.2', '−0.050', '–')
    """
    found = as_number(value)
    if found is None:
        return "–"
    points = 100 * found if metric == "accuracy" else found
    decimals = 1 if metric == "accuracy" else 3 if abs(found) < 100 else 0
    return f"{points:+,.{decimals}f}".replace("-", "−")


def table(
    head: Iterable[str],
    rows: Iterable[Iterable[str]],
    right: Iterable[int] = (),
    caption: str = "",
    stacked: bool = False,
) -> str:
    """A table from cells that are HTML already; the columns ``right`` are aligned to the right.

    On a phone a table that is stacked, or of more than five columns, becomes a card for each row,
    where cells carry their column's name.
    """
    look, head = dict.fromkeys(right, " class=n"), list(head)
    stacked = stacked or len(head) > 5
    labels = [re.sub(r"<[^>]*>", "", text) if stacked else "" for text in head]

    def cells(tag: str, texts: Iterable[str]) -> str:
        said = [f' data-label="{label}"' if tag == "td" and stacked else "" for label in labels]
        made = (
            f"<{tag}{look.get(i, '')}{said[i] if i < len(said) else ''}>{text}"
            for i, text in enumerate(texts)
        )
        end = f"</{tag.split()[0]}>"
        return "<tr>" + "".join(cell + end for cell in made) + "</tr>"

    top, body = cells('th scope="col"', head), "".join(cells("td", row) for row in rows)
    # The caption stands outside, so that it wraps where a wide table scrolls.
    said = f'<p class="caption">{caption}</p>' if caption else ""
    frame = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
    look_of = " class=stack" if stacked else ""
    whole = f"<table{look_of}><thead>{top}</thead><tbody>{body}</tbody></table>"
    return f"{said}{frame}{whole}</div>"


def code(text: Any) -> str:
    """A command or a program, as it is typed."""
    return f"<pre><code>{escape(text, None)}</code></pre>"


def details(summary: str, body: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{summary}</summary>{body}</details>"


def figure(chart: str, label: str, *notes: str) -> str:
    """The place of a chart; page.js draws it."""
    away = "<noscript>The chart needs JavaScript; its values are in the table.</noscript>"
    caption = f"<figcaption>{' '.join(filter(None, notes))}</figcaption>"
    head = f'<figure data-chart="{chart}" aria-label="{escape(label)}">'
    return f'{head}<div class="plot">{away}</div>{caption}</figure>'

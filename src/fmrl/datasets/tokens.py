"""Splitting running text into the tokens of GloVe's vocabulary.

GloVe's 6B vectors were trained on Penn-Treebank-like tokens: punctuation stands alone, clitics are
cut off (``it's`` is ``it 's``), numbers keep their inner separators (``1,200``), case is dropped.
The same is done here by one regular expression and no vocabulary, so that the tokens of a text
never depend on the vectors at hand. Words joined by hyphens, dashes or slashes are cut at the
joint, which keeps technical compounds inside the vocabulary."""

import html
import re
import unicodedata

_SAME = str.maketrans(
    {"’": "'", "‘": "'", "`": "'", "´": "'", "′": "'", "“": '"', "”": '"', "″": '"', "…": " ... "}
    | dict.fromkeys("–—―", " -- ")
    | dict.fromkeys("‐‑−", "-")
    | dict.fromkeys("\u00a0\u2009\u200a\u202f\u00ad\u200b\ufeff", " ")
)
_TOKEN = re.compile(
    r"""
      (?:[a-z]\.){2,}                              # u.s.  i.e.
    | \d+(?:[.,:]\d+)*(?:(?:st|nd|rd|th|s)\b)?     # 1,200  3.14  10:30  19th  1990s
    | [^\W\d_]+?(?=n't\b) | n't\b                  # do|n't
    | '(?:s|re|ve|ll|d|m)\b                        # it|'s
    | [^\W\d_]+                                    # words, in any script
    | \.\.\. | -- | ''                             # marks of several characters
    | [^\w\s]                                      # any other mark, alone
    """,
    re.IGNORECASE | re.VERBOSE,
)


def tokenize(text: str) -> list[str]:
    """Tokens of a sentence, case kept (features are looked up in lower case).

    >>> tokenize("It's Aalborg&nbsp;(1930–1981): 1,200 well-known U.S. films don't count.")[:9]
    ['It', "'s", 'Aalborg', '(', '1930', '--', '1981', ')', ':']
    >>> len(tokenize("It doesn't."))
    4
    """
    if "&" in text:
        text = html.unescape(
            html.unescape(text)
        )  # some pages carry entities that were escaped twice
    if not text.isascii() or "`" in text:
        text = unicodedata.normalize("NFC", text).translate(_SAME)
    return _TOKEN.findall(text)

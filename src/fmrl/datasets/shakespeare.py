"""LEAF Shakespeare: a role of a play is a task, each character of its lines a sample."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fmrl.core.losses import Softmax
from fmrl.core.tasks import Task
from fmrl.datasets import archive
from fmrl.datasets.fetch import get
from fmrl.datasets.registry import dataset
from fmrl.errors import LayoutError

# LEAF's 80 characters, in its order; anything else becomes the space it stands in for.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_CODES = np.full(256, ALPHABET.index(" "), dtype=np.uint8)
_CODES[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))


@dataclass(frozen=True, repr=False)
class Shakespeare:
    """Roles as character codes, one flat array: role r is ``text[offsets[r]:offsets[r+1]]``.

    Args:
        names: [T] of the roles.
        text: uint8 [N] codes.
        offsets: [T + 1].

    >>> roles = Shakespeare(("A",), encode("to be"), np.array([0, 5]))
    >>> X, y = roles.samples(0, context=3)
    >>> decode(X[1]), decode(y[1:2])
    ('o b', 'e')
    """

    names: tuple[str, ...]
    text: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Task]:
        return self.tasks()

    def __repr__(self) -> str:
        return f"Shakespeare({len(self)} roles, {len(self.text):,} characters)"

    def samples(self, r: int, context: int = 80) -> tuple[np.ndarray, np.ndarray]:
        """(X, y) of role r: X [n, context] a view of the characters before y [n]."""
        text = self.text[self.offsets[r] : self.offsets[r + 1]]
        if len(text) <= context:
            what = f"the role {self.names[r]} has {len(text)} characters"
            what += f", no sample with {context} before it"
            fix = "lower context, or keep roles with `longer(context)`"
            raise LayoutError(what, task=r, fix=fix)
        return np.lib.stride_tricks.sliding_window_view(text, context)[:-1], text[context:]

    def longer(self, length: int) -> "Shakespeare":
        """Only the roles with more than ``length`` characters."""
        kept = [r for r in range(len(self)) if self.offsets[r + 1] - self.offsets[r] > length]
        text = [self.text[self.offsets[r] : self.offsets[r + 1]] for r in kept]
        if not kept:
            raise LayoutError(f"no role has more than {length} characters", fix="lower the length")
        return _joined({self.names[r]: part for r, part in zip(kept, text, strict=True)})

    def tasks(self, context: int = 3, limit: int | None = 100) -> Iterator[Task]:
        """Roles as linear next-character tasks, one at a time: the last ``context`` characters
        one-hot, rows of unit length.

        x [80 * context] has ``context`` entries 1/sqrt(context); at most the first ``limit``
        samples of a role; roles too short for one sample are left out."""
        loss, width = Softmax(len(ALPHABET)), len(ALPHABET)
        for r in range(len(self)):
            if self.offsets[r + 1] - self.offsets[r] <= context:
                continue
            codes, y = self.samples(r, context)
            codes, y = codes[:limit], y[:limit].astype(np.int64)
            X = np.zeros((len(y), context * width))
            np.put_along_axis(X, codes + np.arange(context) * width, context**-0.5, axis=1)
            yield Task(X, y, loss=loss, name=self.names[r])


def _joined(roles: Mapping[str, np.ndarray]) -> Shakespeare:
    text = list(roles.values())
    return Shakespeare(tuple(roles), np.concatenate(text), np.cumsum([0, *map(len, text)]))


def encode(text: str) -> np.ndarray:
    """Codes uint8 [n] of a text.

    >>> encode("\\n a").tolist()
    [0, 1, 53]
    """
    return _CODES[np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)]


def decode(codes: np.ndarray) -> str:
    """The text of codes."""
    return "".join(ALPHABET[c] for c in codes)


def load_shakespeare(
    source: str | os.PathLike | None = None,
    *,
    data: str | os.PathLike | None = None,
    expect: int | str | None = "known",
) -> Shakespeare:
    """All roles in name order.

    Args:
        source: The archive or the folder ``by_play_and_character`` (default: the registry's copy).
        data: The folder of local copies (default: ``FMRL_DATA``).
        expect: The number of roles; 'known' is the registry's (1,144) for its own copy, None takes
            what is there.
    """
    path = get("leaf-shakespeare", data).path if source is None else Path(source)
    if expect == "known":
        expect = dataset("leaf-shakespeare").counts["roles"] if source is None else None
    roles: dict[str, np.ndarray] = {}
    for file, content in archive.entries(path, "*.txt"):
        if not file.endswith(".txt"):
            continue
        name = file.rsplit("/", 1)[-1][:-4]
        if name in roles:
            fix = "give the archive or the folder by_play_and_character"
            raise LayoutError(f"{path} holds {name}.txt twice", fix=fix)
        try:
            roles[name] = encode(content.decode("utf-8"))
        except UnicodeDecodeError as e:
            what = f"{name}.txt is not UTF-8 ({e.reason} at byte {e.start})"
            raise LayoutError(what, fix="get the set again") from None
        if not len(roles[name]):
            raise LayoutError(f"{name}.txt is empty", fix="get the set again, or remove the file")
    if not roles or (expect is not None and len(roles) != expect):
        what = f"{path} has {len(roles)} roles, {expect or 'some'} expected"
        raise LayoutError(what, fix="get the set again, or pass expect=None")
    return _joined({name: roles[name] for name in sorted(roles)})


def count(name: str, path: Path) -> dict[str, int]:
    """Counts of a copy."""
    return {"roles": len(load_shakespeare(path))}

"""Loading Mini-Wiki, the authors' or the rebuilt one: text files in, unit-length bag-of-words tasks
out.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fmrl.core.losses import OneVsAll
from fmrl.core.tasks import Task
from fmrl.datasets import archive
from fmrl.datasets.fetch import cache_dir, get
from fmrl.datasets.glove import Glove, file_key, find_glove
from fmrl.datasets.manifest import NAME, check_manifest, read_manifest
from fmrl.datasets.registry import dataset
from fmrl.errors import LayoutError
from fmrl.files import atomic

SPLITS = ("train", "dev", "test")
_LABEL = re.compile(r"\s*-?[0-9]{1,9}\s*")
KNOWN = "known"  # counts are checked against what the registry, or a manifest, says
_FILE = re.compile(r"(?:^|/)(?:bal/(train|dev|test)/(\d+)|(raw))/(\d+)\.txt$")
_VERSION = (
    2  # of the features: raise it when their computation changes, so that old caches are left alone
)


@dataclass(frozen=True, repr=False)
class MiniWiki:
    """Four-class text tasks over the same labels, stored flat: task t is rows
    ``offsets[t]:offsets[t+1]``.

    X [N, 50] float64, unit rows (zero when no word is known) · y [N] int64 · ids [T] file numbers ·
    splits [T] · classes [4]."""

    name: str
    X: np.ndarray
    y: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    splits: np.ndarray
    classes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks())

    def __repr__(self) -> str:
        return f"MiniWiki({self.name!r}, {len(self)} tasks, {len(self.y):,} samples, {len(self.classes)} classes)"

    def arrays(self, t: int, order: str = "file") -> tuple[np.ndarray, np.ndarray]:
        """(X, y) of task t; 'file' keeps the shuffled order of the file, 'blocked' puts the classes
        one after another.
        """
        rows = slice(self.offsets[t], self.offsets[t + 1])
        X, y = self.X[rows], self.y[rows]
        if order == "file":
            return X, y
        if order != "blocked":
            raise LayoutError(f"order={order!r} is unknown", fix="use 'file' or 'blocked'")
        by_class = np.argsort(y, kind="stable")
        return X[by_class], y[by_class]

    def tasks(self, order: str = "file") -> list[Task]:
        """One Task per text task, in numeric file order, with the one-vs-all loss over the shared
        labels.

        Regret against a fixed comparator means something else in 'blocked' order: the learner then
        meets one class at a time."""
        loss = OneVsAll(self.classes)
        return [
            Task(*self.arrays(t, order), loss=loss, name=int(self.ids[t])) for t in range(len(self))
        ]


def load_miniwiki(
    source: str | os.PathLike | None = None,
    *,
    name: str = "mini-wiki",
    split: str = "train",
    shots: int | None = 32,
    glove: Glove | str | os.PathLike | None = None,
    data: str | os.PathLike | None = None,
    expect: int | str | None = KNOWN,
) -> MiniWiki:
    """Load the m-shot tasks of one split ('train', 'dev', 'test' or 'all'), or the unbalanced
    ``raw`` tasks with ``shots=None``.

    source: a folder or archive that holds ``bal/`` and ``raw/`` at any depth; by default the
    registry's ``name`` ('mini-wiki' or 'mini-wiki-rebuilt'). expect: the number of tasks the whole
    set must have; 'known' is the registry's (812 for Mini-Wiki) and, for a rebuilt set, the files
    its manifest lists, byte for byte; None takes what is there. Tasks come in the order of their
    numbers. Features are cached as one file, keyed by the content of what they were made from, so a
    changed source or changed vectors are never confused with old features."""
    if split not in (*SPLITS, "all"):
        raise LayoutError(f"split={split!r} is unknown", fix="use 'train', 'dev', 'test' or 'all'")
    path = Path(source) if source is not None else get(name, data).path
    title = _title(path, name, source is None)
    files, everything = read_tasks(path, shots)
    if expect == KNOWN:
        check_manifest(read_manifest(path) or {}, listing(files, shots), shots)
        expect = dataset(name).counts.get("tasks") if source is None else None
    if expect is not None and len(everything) != expect:
        fix = "the copy is incomplete: fetch it again, or pass expect=None to use what is there"
        raise LayoutError(f"{title} has {len(everything)} tasks, {expect} expected", fix=fix)
    kept = [(i, s, content) for (i, s), content in files if split in (s, "all") or s == "raw"]
    if not kept:
        kind = "raw" if shots is None else f"{shots}-shot {split}"
        raise LayoutError(
            f"{path} has no {kind} task",
            fix="check split and shots; shots are 1, 2, 4, 8, 16, 32 or None for raw",
        )
    parsed = [parse(content, f"{s}/{i}.txt", t, shots) for t, (i, s, content) in enumerate(kept)]
    classes = tuple(sorted({label for labels, _ in parsed for label in labels}))
    for t, (labels, _) in enumerate(parsed):
        if missing := set(classes) - set(labels):
            what = f"{kept[t][1]}/{kept[t][0]}.txt has no sample of class {', '.join(map(str, sorted(missing)))}"
            raise LayoutError(
                what, task=t, fix="every task has the same classes: fetch or build the set again"
            )
    if len(classes) < 2:
        raise LayoutError(
            f"{path} has only the class {classes}", fix="a task needs at least two classes"
        )
    X = _features([text for _, texts in parsed for text in texts], glove, data)
    y = np.concatenate([np.array(labels, dtype=np.int64) for labels, _ in parsed])
    offsets = np.concatenate([[0], np.cumsum([len(labels) for labels, _ in parsed])])
    return MiniWiki(
        title,
        X,
        y,
        offsets,
        np.array([i for i, _, _ in kept]),
        np.array([s for _, s, _ in kept]),
        classes,
    )


def _title(path: Path, name: str, registered: bool) -> str:
    # A rebuilt set is never called by the original's name, wherever it was put.
    rebuilt = (
        any((p / "manifest.json").is_file() for p in (path, path.parent)) or "rebuilt" in path.name
    )
    return (
        NAME if rebuilt or name == "mini-wiki-rebuilt" else "Mini-Wiki" if registered else path.name
    )


def listing(
    files: list[tuple[tuple[int, str], bytes]], shots: int | None
) -> Iterator[tuple[str, int, bytes]]:
    """(folder, id, bytes) of what `read_tasks` returned, as a manifest counts them."""
    return (
        ("raw" if shots is None else f"bal/{s}/{shots}", i, content) for (i, s), content in files
    )


def read_tasks(
    path: Path, shots: int | None
) -> tuple[list[tuple[tuple[int, str], bytes]], set[int]]:
    """The wanted files in numeric order (then train, dev, test), and the ids of all tasks there
    are.
    """
    files, ids = {}, set()
    for name, content in _entries(path, shots):
        m = _FILE.search(name)
        if m is None:
            continue
        split, m_shots, raw, number = m.groups()
        ids.add(int(number))
        if content is not None and (raw if shots is None else m_shots == str(shots)):
            if (int(number), split or "raw") in files:
                what = f"{path} holds {split or 'raw'}/{number}.txt twice: two sets lie in it"
                raise LayoutError(what, fix="give the folder or archive of one of them")
            files[int(number), split or "raw"] = content
    if not ids:
        raise LayoutError(
            f"{path} holds no bal/<split>/<shots>/<id>.txt",
            fix="give the folder or archive that holds bal/ and raw/",
        )
    rank = {s: k for k, s in enumerate((*SPLITS, "raw"))}
    return sorted(files.items(), key=lambda kv: (kv[0][0], rank[kv[0][1]])), ids


def _entries(path: Path, shots: int | None) -> Iterator[tuple[str, bytes | None]]:
    if path.is_file():
        yield from archive.members(path)
        return
    if not path.is_dir():
        raise LayoutError(
            f"{path} does not exist", fix="give the folder or archive that holds bal/ and raw/"
        )
    wanted = "/raw/" if shots is None else f"/{shots}/"
    for file in sorted(path.rglob("*.txt")):
        name = file.as_posix()
        yield name, file.read_bytes() if wanted in name else None


def parse(content: bytes, where: str, t: int, shots: int | None) -> tuple[list[int], list[str]]:
    """(labels, texts) of one file's lines; ``where`` and ``t`` serve messages."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as e:
        raise LayoutError(
            f"{where} is not UTF-8 ({e.reason} at byte {e.start})",
            task=t,
            fix="fetch the set again",
        ) from None
    labels, texts = [], []
    for k, line in enumerate(lines):
        if not line.strip():
            continue
        label, tab, text = line.partition("\t")
        if not tab or not _LABEL.fullmatch(label):
            raise LayoutError(
                f"{where} has a line that is not label<TAB>tokens: {line[:40]!r}", task=t, round=k
            )
        labels.append(int(label))
        texts.append(text)
    if not labels:
        raise LayoutError(f"{where} is empty", task=t, fix="fetch or build the set again")
    if shots is not None and any(labels.count(c) != shots for c in set(labels)):
        counts = {c: labels.count(c) for c in sorted(set(labels))}
        raise LayoutError(
            f"{where} should have {shots} samples a class, has {counts}",
            task=t,
            fix="fetch or build the set again",
        )
    return labels, texts


def _features(texts: list[str], glove, data) -> np.ndarray:
    """CBOW rows, from the cache when the same texts met the same vectors before."""
    source = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    key = glove.fingerprint if isinstance(glove, Glove) else file_key(find_glove(glove, data))
    name = hashlib.sha256(f"{_VERSION}|{source}|{key}".encode()).hexdigest()[:24]
    path = cache_dir() / "features" / f"cbow-{name}.npz"
    if path.is_file():
        try:
            with np.load(path, allow_pickle=False) as z:
                X = z["X"]
                if X.shape[0] == len(texts) and hashlib.sha256(
                    np.ascontiguousarray(X)
                ).hexdigest() == str(z["sha256"]):
                    return X
        except Exception:
            pass  # a damaged cache is made again, never used
    X = (glove if isinstance(glove, Glove) else Glove.load(glove, data)).cbow(
        text.split() for text in texts
    )
    with atomic(path) as part, open(part, "wb") as f:
        np.savez(f, X=X, sha256=hashlib.sha256(X).hexdigest())
    return X

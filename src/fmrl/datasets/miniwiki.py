"""Loading Mini-Wiki, the authors' or the rebuilt one: text files in, unit-length bag-of-words tasks
out.

A rebuilt set has a manifest: how many files each folder has and what they hash to, so that an
altered one is noticed."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.losses import OneVsAll
from fmrl.core.tasks import Task
from fmrl.datasets import archive
from fmrl.datasets.fetch import cache_dir, get
from fmrl.datasets.glove import Glove, file_key, find_glove
from fmrl.datasets.registry import dataset
from fmrl.errors import LayoutError
from fmrl.files import atomic, read_json

SPLITS = ("train", "dev", "test")
REBUILT = "Mini-Wiki (rebuilt)"
KNOWN = "known"  # counts are checked against what the registry, or a manifest, says
_LABEL = re.compile(r"\s*-?[0-9]{1,9}\s*")
_FILE = re.compile(r"(?:^|/)(?:bal/(train|dev|test)/(\d+)|(raw))/(\d+)\.txt$")
_VERSION = (
    2  # of the features: raise it when their computation changes, so that caches are not used
)
_AGAIN = "fetch or build the set again"
_SOURCE = "give the folder or archive that holds bal/ and raw/"
_BUILD = "an altered copy is never used: build it again with `fmrl data build mini-wiki`"


@dataclass(frozen=True, repr=False)
class MiniWiki:
    """Four-class text tasks over the same labels, stored flat: task t is rows
    ``offsets[t]:offsets[t+1]``.

    Args:
        name: What the set is called.
        X: float64 [N, 50], unit rows (zero when no word is known).
        y: int64 [N].
        offsets: [T + 1].
        ids: [T] numbers of the files.
        splits: [T].
        classes: [4] the labels.
    """

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
        size = f"{len(self)} tasks, {len(self.y):,} samples, {len(self.classes)} classes"
        return f"MiniWiki({self.name!r}, {size})"

    def arrays(self, t: int, order: str = "file") -> tuple[np.ndarray, np.ndarray]:
        """(X, y) of task t, in the order of the 'file' (shuffled) or 'blocked' by class."""
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
        loss, pairs = OneVsAll(self.classes), (self.arrays(t, order) for t in range(len(self)))
        names = self.ids.tolist()
        return [Task(X, y, loss=loss, name=n) for (X, y), n in zip(pairs, names, strict=True)]


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
    """Load the tasks of one split, in the order of their numbers.

    Features are cached as one file, keyed by the content of what they were made from, so a changed
    source or changed vectors are never confused with old features.

    Args:
        source: A folder or archive that holds ``bal/`` and ``raw/`` at any depth (default: the
            registry's ``name``).
        name: 'mini-wiki' or 'mini-wiki-rebuilt'.
        split: 'train', 'dev', 'test' or 'all'.
        shots: Samples of each class: 1, 2, 4, 8, 16 or 32; None for the unbalanced ``raw`` tasks.
        glove: Word vectors, or the path of a file of them (default: as `Glove.load` finds them).
        data: The folder of local copies (default: ``FMRL_DATA``).
        expect: The number of tasks of all splits. 'known' is the registry's (812 for Mini-Wiki)
            and, for a rebuilt set, the files its manifest lists, byte for byte. None takes what is
            there.
    """
    if split not in (*SPLITS, "all"):
        raise LayoutError(f"split={split!r} is unknown", fix="use 'train', 'dev', 'test' or 'all'")
    path = Path(source) if source is not None else get(name, data).path
    title = _title(path, name, source is None)
    files, everything = read_tasks(path, shots)
    if expect == KNOWN:
        check_manifest(read_manifest(path), files, shots)
        expect = dataset(name).counts.get("tasks") if source is None else None
    if expect is not None and len(everything) != expect:
        fix = "the copy is incomplete: fetch it again, or pass expect=None to use what is there"
        raise LayoutError(f"{title} has {len(everything)} tasks, {expect} expected", fix=fix)
    kept = [(i, s, content) for (i, s), content in files if split in (s, "all") or s == "raw"]
    if not kept:
        kind = "raw" if shots is None else f"{shots}-shot {split}"
        fix = "check split and shots; shots are 1, 2, 4, 8, 16, 32 or None for raw"
        raise LayoutError(f"{path} has no {kind} task", fix=fix)
    parsed = [parse(content, f"{s}/{i}.txt", t, shots) for t, (i, s, content) in enumerate(kept)]
    classes = tuple(sorted({label for labels, _ in parsed for label in labels}))
    for t, (labels, _) in enumerate(parsed):
        if missing := set(classes) - set(labels):
            names = ", ".join(map(str, sorted(missing)))
            what = f"{kept[t][1]}/{kept[t][0]}.txt has no sample of class {names}"
            raise LayoutError(what, task=t, fix=f"every task has the same classes: {_AGAIN}")
    if len(classes) < 2:
        what = f"{path} has only the class {classes}"
        raise LayoutError(what, fix="a task needs at least two classes")
    X = _features([text for _, texts in parsed for text in texts], glove, data)
    y = np.concatenate([np.array(labels, dtype=np.int64) for labels, _ in parsed])
    offsets = np.cumsum([0, *(len(labels) for labels, _ in parsed)])
    ids, splits = np.array([i for i, _, _ in kept]), np.array([s for _, s, _ in kept])
    return MiniWiki(title, X, y, offsets, ids, splits, classes)


def count(name: str, path: Path) -> dict[str, int]:
    """Counts of a copy; a rebuilt one is compared with its manifest, file by file."""
    if name == "mini-wiki-rebuilt":
        manifest = read_manifest(path)
        if "folders" not in manifest:
            fix = "build it again with `fmrl data build mini-wiki`"
            raise LayoutError(f"{path} has no manifest.json that lists its files", fix=fix)
        for shots in (*manifest.get("shots", ()), None):
            check_manifest(manifest, read_tasks(path, shots)[0], shots)
    files, ids = read_tasks(path, 1)
    parsed = (parse(content, f"{s}/{i}.txt", t, 1) for t, ((i, s), content) in enumerate(files))
    return {"tasks": len(ids), "classes": len({label for labels, _ in parsed for label in labels})}


def summarise(files: Iterable[tuple[str, int, bytes]]) -> dict[str, dict[str, Any]]:
    """What a manifest says of (folder, id, bytes): per folder ('bal/train/32', 'raw') the number of
    files and a hash of their numbers and contents.

    >>> a, b = ("raw", 0, b"a"), ("raw", 1, b"b")
    >>> summarise([a, b]) == summarise([b, a])
    True
    """
    held: dict[str, list[tuple[int, str]]] = {}
    for folder, number, content in files:
        held.setdefault(folder, []).append((number, hashlib.sha256(content).hexdigest()))
    text = {f: "".join(f"{n} {h}\n" for n, h in sorted(rows)) for f, rows in held.items()}
    digests = {f: hashlib.sha256(text[f].encode()).hexdigest() for f in sorted(held)}
    return {f: {"files": len(held[f]), "sha256": digest} for f, digest in digests.items()}


def read_manifest(path: Path) -> Mapping[str, Any]:
    """The manifest that lies in a folder or beside it; empty where there is none."""
    for file in (path / "manifest.json", path.parent / "manifest.json"):
        if file.is_file():
            try:
                held = read_json(file)
            except (ValueError, OSError) as e:
                raise LayoutError(f"{file} cannot be read ({e})", fix=_BUILD) from None
            return held if isinstance(held, dict) else {}
    return {}


def check_manifest(manifest: Mapping[str, Any], files: list, shots: int | None) -> None:
    """Raise LayoutError unless what `read_tasks` found is what the manifest was written for."""
    expected = manifest.get("folders")
    if not isinstance(expected, dict):
        return
    folders = ("raw" if shots is None else f"bal/{s}/{shots}" for (_, s), _ in files)
    found = summarise((f, i, body) for f, ((i, _), body) in zip(folders, files, strict=True))
    for folder, want in expected.items():
        if folder == "raw" if shots is None else folder.endswith(f"/{shots}"):
            got = found.get(folder, {"files": 0, "sha256": ""})
            if got["files"] != want["files"]:
                what = f"has {got['files']} files in {folder}, {want['files']} were built"
                raise LayoutError(f"{REBUILT} {what}", fix=_BUILD)
            if got["sha256"] != want["sha256"]:
                what = f"was altered: the files in {folder} are not those that were built"
                raise LayoutError(f"{REBUILT} {what}", fix=_BUILD)
    if extra := [f for f in found if f not in expected]:
        raise LayoutError(f"{REBUILT} was altered: {extra[0]} was not built", fix=_BUILD)


def read_tasks(
    path: Path, shots: int | None
) -> tuple[list[tuple[tuple[int, str], bytes]], set[int]]:
    """The wanted files as ((id, split), bytes), by number and split, and the ids of all tasks."""
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
        raise LayoutError(f"{path} holds no bal/<split>/<shots>/<id>.txt", fix=_SOURCE)
    rank = {s: k for k, s in enumerate((*SPLITS, "raw"))}
    return sorted(files.items(), key=lambda kv: (kv[0][0], rank[kv[0][1]])), ids


def _entries(path: Path, shots: int | None) -> Iterator[tuple[str, bytes | None]]:
    """Names of files, with the bytes of those that are wanted."""
    if path.is_file():
        yield from archive.members(path)
        return
    if not path.is_dir():
        raise LayoutError(f"{path} does not exist", fix=_SOURCE)
    wanted = "/raw/" if shots is None else f"/{shots}/"
    for file in sorted(path.rglob("*.txt")):
        name = file.as_posix()
        yield name, file.read_bytes() if wanted in name else None


def parse(content: bytes, where: str, t: int, shots: int | None) -> tuple[list[int], list[str]]:
    """(labels, texts) of one file's lines; ``where`` and ``t`` serve messages."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as e:
        what = f"{where} is not UTF-8 ({e.reason} at byte {e.start})"
        raise LayoutError(what, task=t, fix="fetch the set again") from None
    labels, texts = [], []
    for k, line in enumerate(lines):
        if not line.strip():
            continue
        label, tab, text = line.partition("\t")
        if not tab or not _LABEL.fullmatch(label):
            what = f"{where} has a line that is not label<TAB>tokens: {line[:40]!r}"
            raise LayoutError(what, task=t, round=k)
        labels.append(int(label))
        texts.append(text)
    if not labels:
        raise LayoutError(f"{where} is empty", task=t, fix=_AGAIN)
    counts = {c: labels.count(c) for c in sorted(set(labels))}
    if shots is not None and set(counts.values()) != {shots}:
        what = f"{where} should have {shots} samples a class, has {counts}"
        raise LayoutError(what, task=t, fix=_AGAIN)
    return labels, texts


def _title(path: Path, name: str, registered: bool) -> str:
    # A rebuilt set is never called by the original's name, wherever it was put.
    manifest = any((p / "manifest.json").is_file() for p in (path, path.parent))
    if manifest or "rebuilt" in path.name or name == "mini-wiki-rebuilt":
        return REBUILT
    return "Mini-Wiki" if registered else path.name


def _features(texts: list[str], glove: Any, data: Any) -> np.ndarray:
    """CBOW rows, from the cache when the same texts met the same vectors before."""
    source = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    key = glove.fingerprint if isinstance(glove, Glove) else file_key(find_glove(glove, data))
    name = hashlib.sha256(f"{_VERSION}|{source}|{key}".encode()).hexdigest()[:24]
    path = cache_dir() / "features" / f"cbow-{name}.npz"
    if path.is_file():
        try:
            with np.load(path, allow_pickle=False) as z:
                X, expected = np.ascontiguousarray(z["X"]), str(z["sha256"])
            if len(X) == len(texts) and hashlib.sha256(X).hexdigest() == expected:
                return X
        except Exception:
            pass  # a damaged cache is made again, never used
    vectors = glove if isinstance(glove, Glove) else Glove.load(glove, data)
    X = vectors.cbow(text.split() for text in texts)
    with atomic(path) as part, open(part, "wb") as f:
        np.savez(f, X=X, sha256=hashlib.sha256(X).hexdigest())
    return X

"""Rebuilding Mini-Wiki by the recipe of the paper's appendix, from Wiki3029 and WordNet alone.

Pages whose titles are noun lemmas -> the sense the page is about -> four meta-classes -> tasks of
one page from each class -> the m longest sentences of each page, m = 1, 2, 4, ..., 32. Every choice
is a sort, by length or by a SHA-256 of the seed and the thing's name, so the result depends on the
inputs and the seed and on nothing else (not on NumPy's generators, not on the platform)."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmrl.datasets import archive
from fmrl.datasets.glove import tokenize
from fmrl.datasets.miniwiki import REBUILT, summarise
from fmrl.datasets.wordnet import CUT, NAMES, WordNet, best_cuts, classify, page_senses
from fmrl.errors import FetchError, LayoutError
from fmrl.files import atomic, sha256, sweep

SHOTS = (1, 2, 4, 8, 16, 32)
SPLITS = (("train", 0.8), ("dev", 0.1), ("test", 0.1))
ROOT = "miniwikinet"
Progress = Callable[[str, int, int], None]  # what is being done, how many so far, how many in all
Tasks = tuple[tuple[str, ...], ...]  # titles of the pages of each task


@dataclass(frozen=True)
class Built:
    """What was built: pages of the tasks, all pages of each class, and the cuts compared."""

    path: Path
    tasks: Tasks
    classes: Mapping[str, list[str]]
    cuts: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
    pages: int
    splits: Mapping[str, int]


def build(
    wiki3029: str | Path,
    wordnet: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    reuse: bool = False,
    tarball: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Built:
    """Write ``out/miniwikinet/{bal,raw}`` and ``out/manifest.json``; ``out`` appears only when it
    is complete.

    Args:
        wiki3029: ``wiki3029.tsv.xz`` or ``Wiki-3029.tar.gz``.
        wordnet: WordNet 3.0's dict folder or archive.
        out: A new folder.
        seed: Of page order, splits and sample order.
        reuse: Pages of the smaller classes serve again until every page of the largest class has a
            task. Pages are then shared between tasks, and also between train, dev and test.
        tarball: Also write ``out/mini-wiki-rebuilt.tar.gz``, the same bytes every time.
        progress: Called with what is being done, how many so far and how many in all.
    """
    out, sources = Path(out), {"wiki3029": Path(wiki3029), "wordnet": Path(wordnet)}
    if out.exists() and not out.is_dir():
        raise LayoutError(f"{out} is a file", fix="name a new folder")
    if out.exists() and any(out.iterdir()):
        raise LayoutError(f"{out} is not empty", fix="name a new folder, or remove the old build")
    pages, net = read_wiki3029(sources["wiki3029"]), WordNet.load(wordnet)
    progress("choosing senses", 0, 1)
    senses = page_senses(net, pages)
    classes = classify(net, senses)
    cuts = best_cuts(net, senses) if len(senses) > 1000 else []
    named = tuple((tuple(net.synsets[s].words[0] for s in three), sizes) for three, sizes in cuts)
    tasks = _tasks(classes, seed, reuse)
    splits = _splits(len(tasks), seed)
    manifest: dict[str, Any] = {
        "name": REBUILT,
        "inputs": {n: sha256(p) if p.is_file() else None for n, p in sources.items()},
        "seed": seed,
        "reuse": reuse,
        "shots": SHOTS,
        "pages in all": len(pages),
        "pages with a noun lemma": len(senses),
        "meta-classes": {
            n: {"label": k, "pages": len(classes[n]), "synsets": list(CUT[n].items())}
            for k, n in enumerate(NAMES)
        },
        "splits": {s: splits.count(s) for s, _ in SPLITS},
    }
    sweep(out.parent)
    with atomic(out, error=FetchError) as part:
        manifest["folders"] = summarise(
            _write_tasks(part / ROOT, tasks, pages, splits, seed, progress)
        )
        manifest["tasks"] = [
            {"id": i, "split": splits[i], "pages": list(t)} for i, t in enumerate(tasks)
        ]
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (part / "manifest.json").write_bytes(text.encode())
        if tarball:
            _pack(part / ROOT, part / "mini-wiki-rebuilt.tar.gz")
        if out.exists():
            out.rmdir()
    return Built(out, tasks, classes, named, len(senses), manifest["splits"])


def read_wiki3029(path: Path) -> dict[str, list[str]]:
    """Sentences by page title, in name order, from lines or from an archive of Title.txt."""
    pages: dict[str, list[str]] = {}
    for number, (title, sentence) in enumerate(_rows(path), 1):
        try:
            pages.setdefault(title.decode(), []).append(sentence.decode().strip())
        except UnicodeDecodeError as e:
            what = f"{path.name}, line {number} is not UTF-8 ({e.reason})"
            raise LayoutError(what, fix="fetch the file again") from None
    if not pages:
        fix = "give wiki3029.tsv.xz or Wiki-3029.tar.gz"
        raise LayoutError(f"{path.name} holds no page", fix=fix)
    # Repeated sentences would count twice among the longest.
    return {t: list(dict.fromkeys(s for s in pages[t] if s)) for t in sorted(pages)}


def count_pages(name: str, path: Path) -> dict[str, int]:
    """Pages of a copy of Wiki3029; the authors' archive has one more."""
    return {"pages" if path.suffix == ".xz" else "pages in the archive": len(read_wiki3029(path))}


def _rows(path: Path) -> Iterator[tuple[bytes, bytes]]:
    if path.name.endswith(archive.ENDINGS):
        for name, content in archive.members(path):
            base = name.rsplit("/", 1)[-1]
            if base.endswith(".txt") and not base.startswith("."):
                yield from ((base[:-4].encode(), line) for line in content.split(b"\n"))
        return
    for number, line in enumerate(archive.open_lines(path), 1):
        title, tab, sentence = line.partition(b"\t")
        if not tab:
            what = f"{path.name}, line {number} has no tab"
            raise LayoutError(what, fix="lines are Title<TAB>sentence")
        yield title, sentence


def _order(seed: int, *key: object) -> bytes:
    return hashlib.sha256(repr((seed, *key)).encode()).digest()


def _tasks(classes: Mapping[str, list[str]], seed: int, reuse: bool) -> Tasks:
    if empty := [n for n in classes if not classes[n]]:
        what = f"no page falls into the meta-class {empty[0]!r}"
        raise LayoutError(what, fix="give all of Wiki3029")
    drawn = [sorted(classes[n], key=lambda t: _order(seed, "page", t)) for n in NAMES]
    size = (max if reuse else min)(len(d) for d in drawn)
    return tuple(tuple(d[i % len(d)] for d in drawn) for i in range(size))


def _splits(n: int, seed: int) -> list[str]:
    ranked = sorted(range(n), key=lambda i: _order(seed, "split", i))
    bounds = [round(n * sum(f for _, f in SPLITS[: k + 1])) for k in range(len(SPLITS))]
    out = [""] * n
    for rank, i in enumerate(ranked):
        out[i] = next(name for (name, _), b in zip(SPLITS, bounds, strict=True) if rank < b)
    return out


def _write_tasks(
    root: Path, tasks: Tasks, pages: Mapping, splits: list[str], seed: int, progress: Progress
) -> Iterator[tuple[str, int, bytes]]:
    """Write every task's files, and yield (folder, id, bytes) of each."""
    for i, titles in enumerate(tasks):
        for folder, content in _files(i, titles, pages, splits[i], seed):
            path = root / folder / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            yield folder, i, content
        progress("writing tasks", i + 1, len(tasks))


def _files(
    i: int, titles: tuple[str, ...], pages: Mapping[str, list[str]], split: str, seed: int
) -> Iterator[tuple[str, bytes]]:
    """(folder, content) of one task's files."""
    rows = []  # (label, rank among the page's sentences by length, line)
    for label, title in enumerate(titles):
        texts, page = [tokenize(s) for s in pages[title]], pages[title]
        longest = sorted(range(len(page)), key=lambda k: (-len(texts[k]), -len(page[k]), k))
        if len(longest) < SHOTS[-1]:
            what = f"the page {title} has {len(longest)} sentences, {SHOTS[-1]} are needed"
            raise LayoutError(what, task=i)
        lines = (f"{label}\t{' '.join(texts[k])}\n" for k in longest)
        rows += [(label, rank, line) for rank, line in enumerate(lines)]
    # One shuffle for all shots: an m-shot file is the 32-shot file with lines left out.
    rows.sort(key=lambda r: _order(seed, "sample", i, r[0], r[1]))
    for m in SHOTS:
        yield f"bal/{split}/{m}", "".join(line for _, rank, line in rows if rank < m).encode()
    yield "raw", "".join(line for _, _, line in rows).encode()


def _pack(root: Path, path: Path) -> None:
    with (
        open(path, "wb") as f,
        gzip.GzipFile(filename="", fileobj=f, mode="wb", mtime=0) as g,
        tarfile.open(fileobj=g, mode="w", format=tarfile.USTAR_FORMAT) as t,
    ):
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            content = file.read_bytes()
            info = tarfile.TarInfo(f"{ROOT}/{file.relative_to(root).as_posix()}")
            info.size, info.mode = len(content), 0o644
            t.addfile(info, io.BytesIO(content))

"""Parts of a run: each is computed once, and its result kept as one small JSON file."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

import fmrl
from fmrl.files import read_json
from fmrl.records import plain, write_json

FORMAT = 3  # of a part's file; raised when what a part computes changes
# Of fmrl: what a part computes with, beside its study.
SOURCES = ("core", "theory", "stats.py", "reproduce/grouped.py")
READERS = ("claims.py",)  # of a study: they only read what parts have left


@cache
def sources(study: str) -> str:
    """Checksum of the source files a result of that study can depend on."""
    root, digest = Path(fmrl.__file__).parent, hashlib.sha256()
    names = (*SOURCES, f"reproduce/{study}")
    files = (p for name in names for p in (root / name, *(root / name).rglob("*.py")))
    for path in sorted(files):
        if path.is_file() and path.name not in READERS:
            name = path.relative_to(root).as_posix()
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def checksum(result: Any) -> str:
    """Checksum of a result, by which a damaged file is known."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Part:
    """One piece of work: ``work`` is called with the data and the arguments (plain values)."""

    name: str
    work: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    cost: float = 1.0  # in any unit: the most costly go first
    made_of: str = ""  # what the arguments only name: the composition, the preset
    alone: bool = False  # run after the others, with nothing beside it

    def key(self, data: str) -> dict[str, Any]:
        """What the result depends on; a stored result with another key is not used."""
        study = self.work.__module__.removeprefix("fmrl.reproduce.").partition(".")[0]
        code = {"format": FORMAT, "fmrl": fmrl.__version__, "sources": sources(study)}
        work = f"{self.work.__module__}:{self.work.__qualname__}"
        asked = {"work": work, "arguments": self.arguments, "made_of": self.made_of, "data": data}
        return plain(code | asked)

    def path(self, folder: Path) -> Path:
        """Where its result lies."""
        return folder / f"{self.name}.json"


def stored(part: Part, folder: Path, data: str) -> dict[str, Any] | None:
    """What a finished part has left ("result", "cpu_seconds"), or None."""
    try:
        found = read_json(part.path(folder))
        known = found["key"] == part.key(data) and found["sha256"] == checksum(found["result"])
        return found if known and found["cpu_seconds"] >= 0 else None
    except (OSError, ValueError, KeyError, TypeError):  # not there, cut off, or of another kind
        return None


def perform(part: Part, data: Any, folder: Path) -> dict[str, Any]:
    """Do one part and store what it leaves, whole or not at all."""
    started, used = time.perf_counter(), time.process_time()
    result = plain(part.work(data, **part.arguments))
    left = {
        "key": part.key(data.sha256),
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(time.process_time() - used, 3),
        "sha256": checksum(result),
        "result": result,
    }
    write_json(part.path(folder), left)
    return left


def run_parts(
    parts: Iterable[Part],
    data: Any,
    folder: Path,
    jobs: int = 2,
    progress: Callable[[str, float], Any] = lambda name, cost: None,
) -> dict[str, dict[str, Any]]:
    """What every part has left, by name; ``progress`` is called with its name and cost.

    ``data`` is given to every part; its ``sha256`` says what it holds.
    """
    left, waiting = {}, []

    def finish(part: Part, found: dict[str, Any]) -> None:
        left[part.name] = found
        progress(part.name, part.cost)

    for part in parts:
        if found := stored(part, folder, data.sha256):
            finish(part, found)
        else:
            waiting.append(part)
    waiting.sort(key=lambda part: -part.cost)
    if jobs <= 1 or len(waiting) <= 1:
        with threadpool_limits(1):
            for part in waiting:
                finish(part, perform(part, data, folder))
        return left
    # Spawned, not forked: a fork would copy the locks of the thread that draws the progress bar.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _install, (data,))
    try:
        running = {pool.submit(_work, part, folder): part for part in waiting}
        for done in as_completed(running):
            finish(running[done], done.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return left


_DATA: list[Any] = []  # of a worker process, so that it is sent once


def _install(data: Any) -> None:
    threadpool_limits(1)
    _DATA[:] = [data]


def _work(part: Part, folder: Path) -> dict[str, Any]:
    return perform(part, _DATA[0], folder)

"""The runner: a study is a list of parts; a finished part is one small JSON file, and nothing it
holds is computed again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

import fmrl
from fmrl.records import plain, write_json
from fmrl.reproduce.convex.sets import StudySet

FORMAT = 2  # of a part's file; raised when what a part computes changes

SOURCES = ("core", "growth", "similar", "study")  # of fmrl: what a part computes with
SHOWN = (
    "claims",
    "document",
    "figures",
    "prose",
    "verdict",
)  # of fmrl.reproduce.convex: only read what parts have left


@cache
def sources() -> str:
    """Checksum of the source files a result can depend on."""
    root, digest = Path(fmrl.__file__).parent, hashlib.sha256()
    for path in sorted(p for folder in SOURCES for p in (root / folder).rglob("*.py")):
        if not (path.parent.name == "study" and path.stem in SHOWN):
            digest.update(
                f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0"
            )
    return digest.hexdigest()


def digest(result: Any) -> str:
    """Checksum of a result, by which a file that lost a piece of it is known."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Part:
    """One piece of work: ``work`` is 'module:function' of fmrl.reproduce.convex, called with the
    data and the arguments (plain values).
    """

    name: str
    work: str
    arguments: dict[str, Any] = field(default_factory=dict)
    cost: float = 1.0  # in any unit: the dearest go first
    made_of: str = ""  # what the arguments only name: the composition, the preset

    def key(self, data: str) -> dict[str, Any]:
        """What the result depends on; a stored result with another key is not used."""
        code = {"format": FORMAT, "fmrl": fmrl.__version__, "sources": sources()}
        return plain(
            code
            | {
                "work": self.work,
                "arguments": self.arguments,
                "made_of": self.made_of,
                "data": data,
            }
        )

    def path(self, folder: Path) -> Path:
        """Where its result lies."""
        return folder / f"{self.name}.json"


def stored(part: Part, folder: Path, data: str) -> Any:
    """The result of a finished part, or None."""
    try:
        found = json.loads(part.path(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("key") != part.key(data):
        return None
    whole = found.get("sha256") == digest(found.get("result")) and isinstance(
        found.get("cpu_seconds"), (int, float)
    )
    return found["result"] if whole else None


def spent(parts: Iterable[Part], folder: Path) -> dict[str, float]:
    """What finished parts cost when they were computed, whenever that was."""
    found = [json.loads(part.path(folder).read_text(encoding="utf-8")) for part in parts]
    return {"parts": len(found), "cpu_seconds": round(sum(f["cpu_seconds"] for f in found), 1)}


def perform(part: Part, data: StudySet, folder: Path) -> Any:
    """Do one part and store its result, whole or not at all."""
    module, _, name = part.work.partition(":")
    started, used = time.perf_counter(), time.process_time()
    result = plain(
        getattr(import_module(f"fmrl.reproduce.convex.{module}"), name)(data, **part.arguments)
    )
    spent = {
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(time.process_time() - used, 3),
    }
    write_json(
        part.path(folder),
        {"key": part.key(data.sha256), **spent, "sha256": digest(result), "result": result},
    )
    return result


def run_parts(
    parts: Iterable[Part],
    data: StudySet,
    folder: Path,
    jobs: int = 2,
    progress: Callable[[str, float], Any] = lambda name, cost: None,
) -> dict[str, Any]:
    """Results by part name. ``progress`` is called with a name and a cost when a part is there,
    whether found or computed.
    """
    results, waiting = {}, []
    for part in parts:
        found = stored(part, folder, data.sha256)
        if found is None:
            waiting.append(part)
        else:
            results[part.name] = found
            progress(part.name, part.cost)
    waiting.sort(key=lambda part: -part.cost)
    if jobs <= 1 or len(waiting) <= 1:
        with threadpool_limits(1):
            for part in waiting:
                results[part.name] = perform(part, data, folder)
                progress(part.name, part.cost)
        return results
    # Spawned, not forked: a fork would copy the locks of whatever thread draws the progress bar.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _install, (data,))
    try:
        running = {pool.submit(_work, part, folder): part for part in waiting}
        for done in as_completed(running):
            results[running[done].name] = done.result()
            progress(running[done].name, running[done].cost)
    finally:
        pool.shutdown(cancel_futures=True)
    return results


_DATA: list[StudySet] = []  # of a worker process


def _install(data: StudySet) -> None:
    threadpool_limits(1)
    _DATA[:] = [data]


def _work(part: Part, folder: Path) -> Any:
    return perform(part, _DATA[0], folder)

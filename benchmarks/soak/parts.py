"""The parts of the soak: how many instances each has, and how one is checked by its seed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
for folder in (HERE, HERE.parent):
    sys.path.insert(0, str(folder))


@dataclass(frozen=True)
class Part:
    """One kind of abuse."""

    what: str
    total: int  # seeds in the whole soak
    check: Callable[[int], str | None]  # what is wrong with the instance of a seed
    each: int = 1  # instances a seed stands for
    batch: int = 25  # seeds a process does before it is replaced


def against(seed: int) -> str | None:
    """An odd composition of public values and a user's own, and everything printed about it."""
    import adversary

    return adversary.check(seed)


def solver(seed: int) -> str | None:
    """An odd problem in 60 digits."""
    import precise

    return precise.check(seed)


def files(seed: int) -> str | None:
    """A forged file, under limits of memory and time."""
    import forge

    forge.prey()
    forge.limited()
    return forge.check(seed)


def kills(seed: int) -> str | None:
    """kill -9 of a command or writer."""
    import writers

    return writers.killed(seed)


def disk(seed: int) -> str | None:
    """A write that the disk refuses."""
    import writers

    return writers.refused(seed)


def threads(seed: int) -> str | None:
    """Two operations on one estimator at once."""
    from threads import PAIRS, pair

    wrong = pair(*PAIRS[seed % len(PAIRS)], seed)
    return "; ".join([*PAIRS[seed % len(PAIRS)], *wrong[:3]]) if wrong else None


def ray(seed: int) -> str | None:
    """20 workers, a driver and a head node of a cluster killed; the numbers stay the same."""
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, str(HERE.parent / "scale.py"), "kills", "--out", out]
        words += ["--tasks", "10000", "--seed", str(seed)]
        said = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
        if said.returncode:
            return (said.stdout + said.stderr).strip()[-500:]
        entry = json.loads(next(Path(out).glob("kills*.json")).read_text())
    for who in ("driver", "head"):
        for name in ("regret", "guess", "phi"):
            if entry[who].get(name, 0) > 1e-10:
                return f"after the {who} was killed, {name} differs by {entry[who][name]}"
    return None


def memory(seed: int) -> str | None:
    """Fit, stream, adapt, store and load 90 times: the memory held stays the same."""
    import gc

    import psutil
    from threads import Shared, adapt, partial_fit, save, stream

    held = []
    with tempfile.TemporaryDirectory() as home:
        for turn in range(90):
            shared = Shared(seed, Path(home))
            for work in (partial_fit, stream, adapt, save):
                work(shared)
            if turn in (29, 89):
                gc.collect()
                held.append(psutil.Process().memory_info().rss)
    grown = held[1] / held[0] - 1
    return f"memory grew by {grown:.1%} over 60 turns" if grown > 0.05 else None


PARTS = {
    "adversary": Part("odd compositions against every claim", 100_000, against, batch=500),
    "solver": Part("odd problems against 60 digits", 10_000, solver),
    "files": Part("forged files over every loader", 10_000, files, batch=500),
    "kills": Part("kill -9 of every command and writer", 1000, kills, batch=50),
    "disk": Part("writes that the disk refuses", 1000, disk, batch=200),
    "threads": Part("pairs of operations on one estimator", 2000, threads, batch=100),
    "ray": Part("faults of a Ray cluster", 10, ray, each=22, batch=1),
    "memory": Part("rounds of work whose memory stays flat", 6, memory, each=90, batch=1),
}

"""Every command and writer killed at a random moment, or refused a write: what lies on the disk
afterwards is whole, old or new, and the next try ends as if nothing had happened.

    python benchmarks/soak again kills 17
    python benchmarks/soak again disk 17
"""

from __future__ import annotations

import atexit
import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import patch

import polars as pl

import fmrl

sys.path.insert(0, str(Path(__file__).parents[1]))
import faults

from fmrl.errors import FMRLError
from fmrl.runs import Options, Run, train
from fmrl.runs.algorithm_run import WINDOW
from fmrl.runs.models import Models

SECONDS = 2.0  # within which a writer is killed


def _command(*words: object) -> None:
    code, told = faults.invoke(*words)
    if code:
        raise FMRLError(told.strip()[-300:])


def _model(home: Path, out: Path) -> None:
    Run.load(home / "run").estimator.save(out)


def _history(home: Path, out: Path) -> None:
    fmrl.save_history(Run.load(home / "run").history, out)


def _state(home: Path, out: Path) -> None:
    fmrl.save_state(Run.load(home / "run").history.state, out)


def _adapt(home: Path, out: Path) -> None:
    _command("adapt", home / "run", home / "table.csv", "--out", out)


def _predict(home: Path, out: Path) -> None:
    _command("predict", home / "run", home / "table.csv", "--out", out)


def _report(home: Path, out: Path) -> None:
    _command("report", home / "run", "--out", out)


def _page(path: Path) -> None:
    if not path.read_text(encoding="utf-8").rstrip().endswith("</html>"):
        raise AssertionError("half a page")


def _lines(path: Path) -> None:
    if path.suffix == ".csv" and len(path.read_text().splitlines()) != 1 + ROWS:
        raise AssertionError("half a table")


ROWS = 60 * 5
# What is written, the name it gets, and how it is read back.
JOBS: dict[str, tuple[Callable[[Path, Path], None], str, Callable]] = {
    "save": (_model, "model.safetensors", fmrl.MetaClassifier.load),
    "save_history": (_history, "history.npz", fmrl.load_history),
    "save_state": (_state, "state.npz", fmrl.load_state),
    "adapt": (_adapt, "models.json", Models.load),
    "adapt to tensors": (_adapt, "models.safetensors", Models.load),
    "predict": (_predict, "p.csv", _lines),
    "predict to parquet": (_predict, "p.parquet", pl.read_parquet),
    "report": (_report, "report.html", _page),
}


@cache
def home() -> Path:
    """A finished run, made once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="fmrl-writers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    table = faults.write_table(folder / "table.csv", 60)
    train(Options(str(table), "user", "liked", common="linear"), folder / "run", evaluate_tasks=2)
    return folder


@cache
def long_run() -> tuple[Path, dict[str, str], float]:
    """A table of several windows, and what the run that nothing happens to holds."""
    table = faults.write_table(home() / "long.csv", int(3.2 * WINDOW), 4)
    return table, *faults.undisturbed(table)


def _child(name: str, folder: str, out: str, told: str) -> None:
    """Write the same file again and again."""
    Path(told).touch()
    while True:
        JOBS[name][0](Path(folder), Path(out))


def killed(seed: int) -> str | None:
    """Kill a writer, or on odd seeds one of two at one path; what is wrong, or None."""
    rng = random.Random(seed)
    if seed % 10 == 0:  # fmrl train, which goes on where it was
        table, whole, seconds = long_run()
        out = home() / f"train{seed}"
        why = faults.survives(table, whole, out, kill_after=rng.uniform(0, seconds))
        shutil.rmtree(out, ignore_errors=True)
        return why or None
    name = rng.choice(sorted(JOBS))
    work, file, read = JOBS[name]
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir=home()))
    out, told = folder / file, folder / "told"
    given = (name, str(home()), str(out), str(told))
    group = [faults.FORKS.Process(target=_child, args=given) for _ in range(1 + seed % 2)]
    try:
        for process in group:
            process.start()
        while not told.exists() and group[0].is_alive():
            group[0].join(0.005)
        time.sleep(rng.uniform(0, SECONDS))
        for process in group:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        if any(process.exitcode != -signal.SIGKILL for process in group):
            return f"{name}: ended by itself with {[p.exitcode for p in group]}"
        if out.exists():
            read(out)
        work(home(), out)
        read(out)
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


REFUSED = {errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system"}


def refused(seed: int) -> str | None:
    """The n-th call that writes fails; the old file must survive, and the error be in words."""
    rng = random.Random(seed)
    name = sorted(JOBS)[seed % len(JOBS)]
    work, file, read = JOBS[name]
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=home()))
    out, call = folder / file, rng.choice(["replace", "fsync", "mkdir", "open"])
    number, reason = rng.randrange(1, 8), rng.choice(sorted(REFUSED))
    try:
        work(home(), out)
        before, count, real = out.read_bytes(), 0, getattr(os, call)
        made = {*folder.iterdir()}  # a report has the playground's page beside it

        def failing(*args, **named):
            nonlocal count
            writes = call != "open" or args[1] & (os.O_WRONLY | os.O_RDWR)
            count += bool(writes)
            if writes and count == number:
                raise OSError(reason, REFUSED[reason], str(args[0]))
            return real(*args, **named)

        try:
            with patch.object(os, call, failing):
                work(home(), out)
        except FMRLError as error:
            if REFUSED[reason].split()[0] not in str(error):
                return f"{name}, {call} {number}: the error does not say why: {error}"
            if out.read_bytes() != before:
                return f"{name}, {call} {number}: the old file is gone"
        read(out)
        left = [p.name for p in folder.iterdir() if p not in made]
        return f"{name}, {call} {number}: {left[0]} was left behind" if left else None
    except Exception as error:
        return f"{name}, {call} {number}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)

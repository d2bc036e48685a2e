"""Faults: what a long run is to survive. python benchmarks/faults.py [--kills 50] [--fuzz 1000]
[--seed 0]

kill -9 of `fmrl train` at random moments, and at every moment a file is put in place; a file
system that refuses to write more; fuzzed tables and model files. Everything is compared with the
run that nothing happened to, or with a second way of reading the table. Prints one line a kind of
fault and exits with 1 if any was not survived. tests/runs has a share of it."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import polars as pl

from fmrl.datasets import training_ids
from fmrl.errors import FMRLError
from fmrl.runs import Options, folder, train
from fmrl.runs.algorithm_run import WINDOW
from fmrl.tables.kinds import GAPS

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["faults", "fmrl.runs", "fmrl.report", "sklearn.linear_model"])


# ---- tables


def write_table(path: Path, tasks: int, rows: int = 5, seed: int = 0) -> Path:
    """Users who differ a little in what they like; some ages are missing."""
    rng = np.random.default_rng(seed)
    taste = np.array([1.0, -2.0]) + 0.5 * rng.normal(size=(tasks, 2))
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["user", "price", "age", "colour", "liked"])
        for t in range(tasks):
            for i in range(rows):
                price, age = rng.normal(size=2)
                liked = i if i < 2 else int(taste[t] @ [price, age] + 0.3 * rng.normal() > 0)
                shown = "" if rng.random() < 0.05 else f"{40 + 10 * age:.2f}"
                colour = rng.choice(["red", "blue", "green"])
                out.writerow([f"u{t}", f"{price:.3f}", shown, colour, ("no", "yes")[liked]])
    return path


# ---- kills


class Fate(NamedTuple):
    """How a run of a child process ended."""

    code: int  # its exit code; −9 if it was killed
    played: int  # tasks it said it had played
    seconds: float


def _child(table: str, out: str, log: str, fault: tuple[str, int]) -> None:
    """Train, saying how far it is; with a fault to happen."""
    told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kind, number = fault
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
    if kind in ("before", "after"):
        real, count = os.replace, 0

        def replace(*args, **named):
            nonlocal count
            count += 1
            if count == number and kind == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args, **named)
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = replace
    os.write(told, b"begin 0\n")
    done = {"playing": 0}

    def progress(what, at, total):
        if what == "playing" and at > done["playing"]:
            done["playing"] = at
            os.write(told, f"played {at}\n".encode())

    try:
        # The table is sorted, so that nothing is written but the run.
        options = Options(table, "user", "liked", apart="error")
        how = {"checkpoint_every": WINDOW, "resume": True, "evaluate_tasks": 2}
        train(options, Path(out), progress=progress, **how)
    except (FMRLError, OSError) as error:
        print(error, file=sys.stderr)
        os._exit(2)
    os._exit(0)


def run(
    table: Path, out: Path, fault: tuple[str, int] = ("none", 0), kill_after: float | None = None
) -> Fate:
    """Train in a process of its own; kill -9 it some seconds after it began."""
    log = out.with_suffix(".log")
    log.unlink(missing_ok=True)
    process = FORKS.Process(target=_child, args=(str(table), str(out), str(log), fault))
    process.start()
    while process.is_alive() and not (log.exists() and log.stat().st_size):
        process.join(0.005)
    began = time.perf_counter()
    process.join(kill_after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    lines = [line.split() for line in log.read_text().splitlines()]
    return Fate(process.exitcode, int(lines[-1][1]) if lines else 0, time.perf_counter() - began)


def digests(out: Path) -> dict[str, str]:
    """What a finished run holds; without what may differ, such as how long it took."""
    names = (folder.MODEL, folder.HISTORY, folder.TASKS, folder.HELDOUT, folder.MODELS)
    return {name: folder.sha256(out / name) for name in names}


def survives(
    table: Path, whole: dict[str, str], out: Path, fault=("none", 0), kill_after=None
) -> str:
    """Let a run die, resume it, and compare with the whole one; what is wrong, or nothing."""
    died = run(table, out, fault, kill_after)
    finished = (out / folder.RECORD).exists()  # then there is nothing to play again
    again = run(table, out)
    if again.code:
        return f"the resumed run ended with {again.code}"
    record = folder.read_sealed(out / folder.RECORD)
    lost = died.played - record["resumed_after"]
    if died.code and not finished and lost > WINDOW:  # one window may not have been saved yet
        return f"{died.played} tasks were played, only {record['resumed_after']} kept"
    if digests(out) != whole:
        return "the resumed run ends elsewhere"
    names = [p.name for p in out.iterdir()]
    left = [n for n in names if "partial" in n or n in (folder.CHECKPOINT, ".lock")]
    return f"{left[0]} was left behind" if left else ""


def undisturbed(table: Path) -> tuple[dict[str, str], float]:
    """What the run that nothing happens to holds, and its seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        fate = run(table, Path(scratch) / "whole")
        assert fate.code == 0, fate
        return digests(Path(scratch) / "whole"), fate.seconds


def kills(table: Path, whole: dict[str, str], seconds: float, count: int, seed: int) -> list[str]:
    """Kill at random moments of the run's time, and at every moment a file is put in place."""
    rng, wrong = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        faults = [(("none", 0), rng.uniform(0, seconds)) for _ in range(count)]
        faults += [((kind, n), None) for n in range(1, 16) for kind in ("before", "after")]
        for i, (fault, after) in enumerate(faults):
            out = Path(scratch) / f"run{i}"
            if why := survives(table, whole, out, fault, after):
                wrong.append(f"{fault}, {after}: {why}")
            shutil.rmtree(out)
    return wrong


def full_disk(table: Path, whole: dict[str, str]) -> list[str]:
    """Files may not grow beyond what the second checkpoint needs: the first must survive, and the
    run go on from it.
    """
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "full"
        # Settings, and the checkpoints after one and two windows, were put in place.
        first = run(table, out, ("after", 3))
        kept = (out / folder.CHECKPOINT).stat().st_size
        before = folder.sha256(out / folder.CHECKPOINT)
        fate = run(table, out, ("full", kept + 100))
        if first.code != -9 or fate.code != 2:
            wrong.append(f"a full disk ended the run with {fate.code}")
        if folder.sha256(out / folder.CHECKPOINT) != before:
            wrong.append("the checkpoint before did not survive a full disk")
        if run(table, out).code or digests(out) != whole:
            wrong.append("the run did not go on to the same end")
    return wrong


# ---- fuzz

CELLS = [
    "", "nan", "NaN", "inf", "-inf", "1e999", "1e-320", "é", "\0", '"', "'", "1,5", "0x10", "1_000",
    " 1.5", "1.5 ", "+2", "--3", "u0", "yes", "TRUE", "null", "9" * 400, "1e308", "🙂", "=1+1",
    "[bold]", "a\nb", "-0.0", "1.5e", "12abc", "\ufeff",
]  # fmt: skip


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, drop, repeat or add bytes, or cut."""
    kind = rng.randrange(6)
    at = rng.randrange(max(1, len(data)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        flipped = bytes([b ^ (1 << rng.randrange(8)) for b in data[at : at + 1]])
        return data[:at] + flipped + data[at + 1 :]
    if kind == 2:
        return data[:at] + data[at + rng.randrange(1, 40) :]
    if kind == 3:
        return data[:at] + rng.randbytes(rng.randrange(1, 20)) + data[at:]
    if kind == 4:
        other = rng.randrange(max(1, len(data)))
        return data[:at] + data[other : other + rng.randrange(1, 60)] + data[at:]
    return data[:at] + bytes(rng.randrange(1, 30)) + data[at + 10 :]


def mutate_table(text: str, rng: random.Random) -> bytes:
    """Change cells, rows, columns, the header or the encoding of a CSV file, or its bytes."""
    rows = [row for row in csv.reader(io.StringIO(text))]
    kind, r, c = rng.randrange(12), rng.randrange(1, len(rows)), rng.randrange(len(rows[0]))
    if kind <= 3:
        for _ in range(rng.randrange(1, 4)):
            rows[rng.randrange(1, len(rows))][rng.randrange(len(rows[0]))] = rng.choice(CELLS)
    elif kind == 4:
        rows[r] = rows[r][:c] if rng.random() < 0.5 else rows[r] + ["more"]
    elif kind == 5:
        old = rows[0][c]
        rows[0][c] = rng.choice(["", "user", "price", old + " ", old.upper(), "é", '"'])
    elif kind == 6:
        rows = [row[:c] + row[c + 1 :] for row in rows]
    elif kind == 7:
        rows = rows[: rng.randrange(0, 3)]
    elif kind == 8:
        rows[r], rows[-1] = rows[-1], rows[r]
        rows.insert(r, list(rows[r]))
    elif kind == 9:
        return mutate_bytes(text.encode(), rng)
    out, comma = io.StringIO(), rng.choice([",", ",", ",", ";", "\t"]) if kind == 10 else ","
    end = rng.choice(["\n", "\r\n"])
    csv.writer(out, delimiter=comma, lineterminator=end).writerows(rows)
    encodings = ["utf-8", "utf-8-sig", "latin-1", "utf-16"]
    return out.getvalue().encode(rng.choice(encodings) if kind == 11 else "utf-8", "replace")


@cache
def _command(app: Any) -> Any:
    """The tree of commands, whose making takes longer than most commands."""
    from typer.main import get_command

    return get_command(app)


def invoke(*words: object) -> tuple[int, str]:
    """The command line in this process: exit code and output. Anything but an exit is a
    traceback, and raised.
    """
    from typer import testing

    from fmrl.cli.main import app

    with patch.object(testing, "_get_command", _command):
        result = testing.CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def by_hand(table: bytes, models: dict) -> list[str] | None:
    """Predictions by reading the table with the csv module and summing up; None where that cannot
    be done.
    """
    try:
        text = table.decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (UnicodeDecodeError, csv.Error):
        return None
    said, features = [], models["features"]
    for row in rows[1:]:
        cells = dict(zip(rows[0], row + [""] * (len(rows[0]) - len(row)), strict=False))
        model = models["tasks"].get(cells.get("user"), models["tasks"]["start"])
        z = model["intercept"][0]
        for name, weight in zip(features, model["coef"][0], strict=True):
            column, _, level = name.partition("=")
            if name.endswith(" is missing"):
                x = float(missing(cells[name.removesuffix(" is missing")]))
            elif level:
                x = float(cells[column] == level)
            else:
                x = models["fill"][name] if missing(cells[name]) else float(cells[name])
            z += weight * x
        said.append(models["classes"][int(z > 0)])
    return said


def _rows(table: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.decode("utf-8-sig"), newline="")))


def missing(cell: str) -> bool:
    """As the table reader has it: nothing, a mark of that, or not a number."""
    return cell.strip() in ("", *GAPS) or cell.lower().strip("+-") == "nan"


class Prey:
    """A finished run and a table for the fuzzer to maul."""

    def __init__(self, scratch: Path):
        self.scratch, self.run = scratch, scratch / "run"
        self.table = write_table(scratch / "table.csv", 60)
        self.text = self.table.read_text(encoding="utf-8")
        table = str(self.table)
        train(Options(table, "user", "liked", common="linear"), self.run, evaluate_tasks=3)
        self.adapted = scratch / "models.json"
        assert invoke("adapt", self.run, self.table, "--out", self.adapted)[0] == 0
        self.models = json.loads(self.adapted.read_text())
        encoder = json.loads((self.run / folder.ENCODER).read_text())
        self.models["fill"] = {c["name"]: c["fill"] for c in encoder["columns"]}
        self.models["tasks"]["start"] = self._start()
        self.answers = self.ask()
        assert self.answers[0][0] == 0

    def _start(self) -> dict:
        from fmrl.runs import Run
        from fmrl.runs.models import in_user_units

        found = Run.load(self.run)
        coef, intercept = in_user_units(found.encoder, *found.start)
        return {"coef": coef.tolist(), "intercept": intercept.tolist()}

    def ask(self) -> list[tuple[int, str]]:
        """What the run says, by every command that reads it."""
        out, told = self.scratch / "asked.csv", []
        for more in (("--adapted", self.adapted), ()):
            out.unlink(missing_ok=True)
            code, _ = invoke("predict", self.run, self.table, *more, "--out", out)
            told.append((code, out.read_text() if code == 0 else ""))
        told.append(invoke("certify", self.run, "--json"))
        return [*told, invoke("cite", self.run), invoke("report", self.run, "--json")]

    def predict(self, data: bytes) -> str:
        """Predict a mauled table; what is wrong, or nothing."""
        path, out = self.scratch / "mauled.csv", self.scratch / "said.csv"
        path.write_bytes(data)
        out.unlink(missing_ok=True)
        code, told = invoke("predict", self.run, path, "--adapted", self.adapted, "--out", out)
        if code == 2:
            return "" if "error" in told and not out.exists() else f"no error said: {told}"
        said = [row["prediction"] for row in _rows(out.read_bytes())]
        good = code == 0 and said == by_hand(data, self.models)
        return "" if good else f"exit {code}, {len(said)} predictions differ from those by hand"

    def binary(self, suffix: str, rng: random.Random) -> str:
        """Predict a mauled Parquet or Arrow file: changed values cannot be told, but it must end
        in order.
        """
        path = self.scratch / f"mauled{suffix}"
        frame = pl.read_csv(self.table)
        (frame.write_parquet if suffix == ".parquet" else frame.write_ipc)(path)
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
        code, told = invoke("predict", self.run, path, "--out", self.scratch / "said.csv")
        return "" if code == 0 or (code == 2 and "error" in told) else f"exit {code}: {told}"

    def train(self, data: bytes) -> str:
        """Train on a mauled table; what is wrong, or nothing."""
        path, out = self.scratch / "mauled.csv", self.scratch / "mauled"
        path.write_bytes(data)
        shutil.rmtree(out, ignore_errors=True)
        words = ("--task", "user", "--target", "liked", "--out", out, "--evaluate", "1", "--json")
        code, told = invoke("train", path, *words)
        if code == 2:
            good = "error" in told and not (out / folder.RECORD).exists()
            return "" if good else f"no error said: {told}"
        record, rows = folder.read_sealed(out / folder.RECORD), _rows(data)
        ids = {row["user"] for row in rows}
        trained = set(training_ids(ids, 0.9))
        found = [record[name] for name in ("tasks", "heldout_tasks", "rows")]
        truth = [len(trained), len(ids - trained), sum(row["user"] in trained for row in rows)]
        found.append(sorted(record["classes"]))
        truth.append(sorted({row["liked"] for row in rows}))
        good = code == 0 and found == truth and all(map(math.isfinite, record["tar"]))
        return "" if good else f"{found} is not {truth}"

    def path(self, name: str) -> Path:
        """Of a file that can be mauled."""
        return self.adapted if name == self.adapted.name else self.run / name

    def model(self, name: str, data: bytes) -> str:
        """Maul a file of the run; every command must say the same as before, or refuse."""
        path = self.path(name)
        before = path.read_bytes()
        try:
            path.write_bytes(data)
            for told, truth in zip(self.ask(), self.answers, strict=True):
                if told != truth and not ((told[0] == 2 and "error" in told[1]) or told == (2, "")):
                    return f"{name}: says {told[1][:80]!r}"
        finally:
            path.write_bytes(before)
        return ""


def fuzz(count: int, seed: int, training: float = 0.15) -> list[str]:
    """Half tables (a share of them to train on), half files of a run."""
    rng, wrong = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        prey = Prey(Path(scratch))
        names = [p.name for p in sorted(prey.run.iterdir()) if p.suffix not in (".html", ".txt")]
        names.append(prey.adapted.name)
        for i in range(count):
            try:
                if i % 2:
                    name = rng.choice(names)
                    why = prey.model(name, mutate_bytes(prey.path(name).read_bytes(), rng))
                elif i % 10 == 4:
                    why = prey.binary(rng.choice([".parquet", ".arrow"]), rng)
                else:
                    maul = prey.train if rng.random() < training else prey.predict
                    why = maul(mutate_table(prey.text, rng))
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            if why:
                wrong.append(f"case {i} of seed {seed}: {why}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--fuzz", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        table = write_table(Path(scratch) / "table.csv", 5 * WINDOW)
        whole, seconds = undisturbed(table)
        killed = f"{given.kills} kills at random moments and at every file put in place"
        fuzzed = f"{given.fuzz} fuzzed tables and model files"
        for name, find, *asked in (
            (killed, kills, table, whole, seconds, given.kills, given.seed),
            ("a full disk", full_disk, table, whole),
            (fuzzed, fuzz, given.fuzz, given.seed),
        ):
            began, wrong = time.perf_counter(), find(*asked)
            how = f"{len(wrong)} not survived" if wrong else "survived"
            print(f"{name}: {how}, {time.perf_counter() - began:.0f} s", flush=True)
            for why in wrong[:20]:
                print(f"  {why}")
            bad += len(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Millions of tasks: train, stop, resume, predict and store, with how long and how much memory.

    python benchmarks/soak/millions.py --tasks 5000000 --out results/soak [--work FOLDER]

Every task has one row and an id of 36 characters. The run is stopped at its first checkpoint and
resumed. Prints one line a step: seconds, processor time, and the most memory its process has held.
With --out the record is written to millions.json there, with the load of the machine."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from fmrl.records import record, write_json
from fmrl.runs.folder import CHECKPOINT, RECORD

SAVE = """
import sys, time
import numpy as np
import fmrl, polars as pl
frame = pl.read_parquet(sys.argv[1])
X, y = frame.select("a", "b").to_numpy(), frame["y"].to_numpy()
reg = fmrl.MetaRegressor(common="linear").fit(X, y, task=frame["task"].to_numpy())
before = time.perf_counter()
reg.save(sys.argv[2])
stored = time.perf_counter()
again = fmrl.MetaRegressor.load(sys.argv[2])
loaded = time.perf_counter()
some = slice(0, None, max(1, len(X) // 1000))
ids = frame["task"].to_numpy()[some]
assert np.array_equal(again.predict(X[some], task=ids), reg.predict(X[some], task=ids))
print(f"  save {stored - before:.1f} s, load {loaded - stored:.1f} s")
"""


def write_table(path: Path, tasks: int, seed: int = 0) -> None:
    """Tasks of one row each, in blocks, so that the table is never whole in memory."""
    rng, parts = np.random.default_rng(seed), []
    for first in range(0, tasks, 250_000):
        count = min(250_000, tasks - first)
        a, b = rng.normal(size=(2, count))
        ids = [
            f"{first + i:08d}-0000-4000-8000-{(first + i) * 7919:012d}"[:36] for i in range(count)
        ]
        y = 1 + 2 * a - b + 0.3 * rng.normal(size=count)
        parts.append(path.with_suffix(f".{first}.parquet"))
        pl.DataFrame({"task": ids, "a": a, "b": b, "y": y}).write_parquet(parts[-1])
    pl.scan_parquet(parts).sink_parquet(path)
    for part in parts:
        part.unlink()


def step(what: str, words: list[str], until: Path | None = None) -> dict:
    """Run a program; press Ctrl-C when a file has appeared, if asked to."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT)
        while until is not None and not until.exists() and process.poll() is None:
            time.sleep(0.2)
        if until is not None:
            process.send_signal(signal.SIGINT)
        _, status, spent = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    seconds, good = time.perf_counter() - began, code == (0 if until is None else 130)
    used, most = spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 2**20
    took = f"{seconds:.0f} s ({used:.0f} s of processor time), {most:.2f} GiB"
    print(f"{what}: {took}{'' if good else ' FAILED'}", flush=True)
    if not good or "save " in text:
        print(text[-2000:], flush=True)
    times = {"seconds": round(seconds, 1), "processor": round(used, 1)}
    return {"step": what, **times, "gib": round(most, 2), "good": good}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="where the record is written")
    parser.add_argument("--work", type=Path, help="for the files (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, record("millions", tasks=args.tasks) as entry:
        home = args.work or Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        table, run = home / "table.parquet", home / "run"
        began = time.perf_counter()
        write_table(table, args.tasks)
        size = os.stat(table).st_size / 2**20
        print(f"table: {time.perf_counter() - began:.0f} s, {size:.0f} MiB", flush=True)
        fmrl = [sys.executable, "-c", "from fmrl_program import run; run()"]
        words = [*fmrl, "train", str(table), "--task", "task", "--target", "y", "--out", str(run)]
        words += ["--common", "linear", "--kind", "regression"]
        found = [step("train, stopped", words, until=run / CHECKPOINT)]
        found.append(step("train, resumed", [*words, "--resume"]))
        done = json.loads((run / RECORD).read_text())
        print(f"  resumed after {done['resumed_after']:,} of {done['tasks']:,} tasks", flush=True)
        predictions = str(home / "p.parquet")
        found.append(
            step("predict", [*fmrl, "predict", str(run), str(table), "--out", predictions])
        )
        found.append(
            step("fit, save and load", [sys.executable, "-c", SAVE, str(table), str(home / "m")])
        )
        counted = {key: done[key] for key in ("tasks", "heldout_tasks", "resumed_after")}
        load = [round(v, 1) for v in os.getloadavg()]
        machine = {"cores": os.cpu_count(), "load": load, "busy": load[-1] > (os.cpu_count() or 1)}
        entry |= {"steps": found, "trained": counted, "machine": machine}
        entry["command"] = f"python benchmarks/soak/millions.py --tasks {args.tasks}"
    if args.out:
        print(write_json(args.out / "millions.json", entry))
    return int(not all(s["good"] for s in found))


if __name__ == "__main__":
    sys.exit(main())

"""Millions of tasks: train, stop, resume, predict and store, with how long and how much memory.

    python benchmarks/soak/millions.py --tasks 1000000 [--out FOLDER]

Every task has one row and an id of 36 characters. The run is stopped half way and resumed. Prints
one line a step: seconds, and the most memory any step's process has held."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

SAVE = """
import resource, sys, time
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


def step(what: str, words: list[str], after: float | None = None) -> dict:
    """Run a program; stop it with SIGINT after some seconds if asked to."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if after is not None:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            process.send_signal(2)
    said = process.communicate()[0]
    seconds = time.perf_counter() - began
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    most, used = spent.ru_maxrss / 2**20, spent.ru_utime - used
    right = 130 if after is not None else 0
    good = process.returncode in (0, right)
    took = f"{seconds:.0f} s ({used:.0f} s of processor time), {most:.1f} GiB"
    print(f"{what}: {took}{'' if good else ' FAILED'}", flush=True)
    if not good or "save " in said:
        print(said[-2000:], flush=True)
    times = {"seconds": round(seconds, 1), "processor": round(used, 1)}
    return {"step": what, **times, "gib": round(most, 2), "good": good}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--stop", type=float, help="seconds after which training is stopped")
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(args.out or scratch)
        home.mkdir(parents=True, exist_ok=True)
        table, run = home / "table.parquet", home / "run"
        began = time.perf_counter()
        write_table(table, args.tasks)
        print(
            f"table: {time.perf_counter() - began:.0f} s, {os.stat(table).st_size / 2**20:.0f} MiB"
        )
        fmrl = [sys.executable, "-c", "from fmrl_program import run; run()"]
        words = [*fmrl, "train", str(table), "--task", "task", "--target", "y", "--out", str(run)]
        words += ["--common", "linear", "--kind", "regression"]
        found = [step("train, stopped", words, args.stop or args.tasks / 40_000)]
        found.append(step("train, resumed", [*words, "--resume"]))
        predictions = str(home / "p.parquet")
        found.append(
            step("predict", [*fmrl, "predict", str(run), str(table), "--out", predictions])
        )
        found.append(
            step("fit, save and load", [sys.executable, "-c", SAVE, str(table), str(home / "m")])
        )
        print(json.dumps({"tasks": args.tasks, "steps": found}))
    return int(not all(s["good"] for s in found))


if __name__ == "__main__":
    sys.exit(main())

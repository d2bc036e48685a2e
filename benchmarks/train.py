"""What fmrl train costs: tasks a second and peak memory against the number of tasks. python
benchmarks/train.py [--tasks 20000 80000]

Every size is a process of its own: Parquet with 20 rows a task and 10 features, two classes, no
evaluation, models not kept."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from data import peak_mb

ROWS, FEATURES, CHUNK = 20, 10, 10_000


def write(path: Path, tasks: int) -> Path:
    """The table, made in chunks so that it is never held whole."""
    import polars as pl

    rng, parts = np.random.default_rng(0), []
    common = rng.normal(size=FEATURES)
    for first in range(0, tasks, CHUNK):
        count = min(CHUNK, tasks - first)
        X = rng.normal(size=(count, ROWS, FEATURES))
        w = common + 0.5 * rng.normal(size=(count, FEATURES))
        z = np.einsum("trf,tf->tr", X, w) + rng.normal(size=(count, ROWS))
        ids = np.repeat(np.arange(first, first + count), ROWS)
        columns = {"task": ids, "y": (z > 0).astype(int).ravel()}
        columns |= {f"x{j}": X[..., j].ravel() for j in range(FEATURES)}
        parts.append(path.with_name(f"{first}.arrow"))
        pl.DataFrame(columns).write_ipc(parts[-1])
    pl.scan_ipc(parts).sink_parquet(path)
    return path


def measure(table: str, out: str, apart: str) -> None:
    """Train, and print seconds and the peak of memory as JSON; before counts what importing alone
    takes.
    """
    from fmrl.runs import Options, train

    before, began = peak_mb(), time.perf_counter()
    options = Options(table, "task", "y", apart=apart)
    record = train(options, Path(out), keep_models=False, evaluate_tasks=0)
    found = {"tasks": record["tasks"], "seconds": time.perf_counter() - began}
    print(json.dumps(found | {"peak": peak_mb(), "before": before}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, nargs="+", default=[20_000, 80_000])
    parser.add_argument("--measure", nargs=3)
    given = parser.parse_args()
    if given.measure:
        return measure(*given.measure)
    for tasks in given.tasks:
        with tempfile.TemporaryDirectory() as scratch:
            table = f"{scratch}/table.parquet"
            code = f"import train, pathlib; train.write(pathlib.Path({table!r}), {tasks})"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
            for apart in ("error", "gather"):
                words = [sys.executable, __file__, "--measure", table, f"{scratch}/{apart}", apart]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout)
                how = "sorted" if apart == "error" else "gathered"
                rate = f"{found['tasks'] / found['seconds']:,.0f} tasks/s"
                memory = f"peak {found['peak']:.0f} MB (imports alone {found['before']:.0f} MB)"
                print(f"{found['tasks']:,} tasks, rows {how}: {rate}, {memory}", flush=True)


if __name__ == "__main__":
    main()

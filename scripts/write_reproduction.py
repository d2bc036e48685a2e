"""Write docs/reproduction.md, docs/geometry.md and their pictures from the records of full runs.

python scripts/write_reproduction.py               # from results/{convex,deep,geometry}
python scripts/write_reproduction.py --take RUN    # first copy the records a run has left in RUN
python scripts/write_reproduction.py --judge       # first decide the verdicts again from the rows
"""

import argparse
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from reproduction import convex, deep, geometry

from fmrl.records import write_json
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.compositions import curves
from fmrl.reproduce.figures import draw
from fmrl.reproduce.geometry.claims import judge as judge_shapes

ROOT = Path(__file__).resolve().parents[1]


def judge_again(folder: Path, figure: str, found: dict) -> None:
    """Write the verdicts that the rows give; rows of curves that are not in the table any more
    are left out and counted.
    """
    rows, record = found["results"]["rows"], found["record"]
    if figure == "samples":
        known = {(p, c.within, c.method) for p in ("paper", "released") for c in curves(p)}
        rows = [r for r in rows if (r["preset"], r["within"], r["method"]) in known]
    if left := len(found["results"]["rows"]) - len(rows):
        record["unused"] = record.get("unused", 0) + left
        write_json(folder / "results.json", found["results"] | {"rows": rows})
    shapes = figure == "geometry"
    verdicts = [asdict(v) for v in (judge_shapes(rows) if shapes else judge(figure, rows))]
    write_json(folder / "verdicts.json", verdicts)
    write_json(folder / "record.json", record | {"passed": sum(v["passed"] for v in verdicts)})


def take(run: Path, records: Path, shapes: Path) -> None:
    """Copy the records of a finished `fmrl reproduce convex` or `fmrl reproduce geometry`."""
    places = {figure: records / figure for figure in convex.FIGURES} | {"geometry": shapes}
    for figure, folder in places.items():
        if (run / figure).is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("results.json", "verdicts.json", "record.json"):
                shutil.copyfile(run / figure / name, folder / name)


def draw_pictures(records: Path, networks: Path, shapes: Path, images: Path) -> None:
    """The pictures of the pages."""
    with tempfile.TemporaryDirectory() as folder:
        for figure, found in convex.read(records).items():
            draw(figure, found["results"]["rows"], found["results"]["data"], Path(folder))
            for name in convex.PICTURES[figure]:
                shutil.copyfile(Path(folder) / f"{name}.png", images / f"convex-{name}.png")
        found = geometry.read(shapes)["results"]
        draw("geometry", found["rows"], found["data"], Path(folder))
        shutil.copyfile(Path(folder) / "geometry.png", images / "geometry.png")
    deep.draw(networks, images)


def main() -> None:
    """Take the records, draw, write."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, text in (
        ("--records", ROOT / "results" / "convex", "folder of the convex study's records"),
        ("--deep", ROOT / "results" / "deep", "folder of the deep study's records"),
        ("--geometry", ROOT / "results" / "geometry", "folder of the record about shapes"),
        ("--docs", ROOT / "docs", "where reproduction.md, geometry.md and img/ go"),
        ("--take", None, "folder of a finished convex or geometry run to copy the records from"),
    ):
        options.add_argument(name, type=Path, default=default, help=text)
    options.add_argument("--judge", action="store_true", help="decide the verdicts again")
    given = options.parse_args()
    if given.take:
        take(given.take, given.records, given.geometry)
    if given.judge:
        judge_again(given.geometry, "geometry", geometry.read(given.geometry))
        for figure, found in convex.read(given.records).items():
            judge_again(given.records / figure, figure, found)
    draw_pictures(given.records, given.deep, given.geometry, given.docs / "img")
    pages = {
        "reproduction.md": convex.document(given.records) + "\n" + deep.document(given.deep),
        "geometry.md": geometry.document(given.geometry),
    }
    for name, page in pages.items():
        (given.docs / name).write_text(page, encoding="utf-8")
        print(given.docs / name)


if __name__ == "__main__":
    main()

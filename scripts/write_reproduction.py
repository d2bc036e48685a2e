"""Write the pages of the studies and their pictures from the records of full runs.

python scripts/write_reproduction.py               # from the records in results
python scripts/write_reproduction.py --take RUN    # first copy the records a run has left in RUN
python scripts/write_reproduction.py --judge       # first decide the verdicts again from the rows
"""

import argparse
import shutil
import tempfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from reproduction import convex, deep, environments, federated, geometry, privacy, steps
from reproduction.markdown import read_record

from fmrl.records import write_json
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.compositions import curves
from fmrl.reproduce.figures import draw

ROOT = Path(__file__).resolve().parents[1]
OWN = ("geometry", "environments", "privacy", "federated")  # studies of our own


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
    own = import_module(f"fmrl.reproduce.{figure}.claims").judge if figure in OWN else None
    verdicts = [asdict(v) for v in (own(rows) if own else judge(figure, rows))]
    write_json(folder / "verdicts.json", verdicts)
    write_json(folder / "record.json", record | {"passed": sum(v["passed"] for v in verdicts)})


def take(run: Path, records: Path, own: dict[str, Path]) -> None:
    """Copy the records of a finished `fmrl reproduce convex`, or of a study of our own."""
    places = {figure: records / figure for figure in convex.FIGURES} | own
    places["steps"] = records.parent / "steps"
    for figure, folder in places.items():
        if (run / figure).is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("results.json", "verdicts.json", "record.json"):
                shutil.copyfile(run / figure / name, folder / name)


def draw_pictures(records: Path, networks: Path, own: dict[str, Path], images: Path) -> None:
    """The pictures of the pages."""
    with tempfile.TemporaryDirectory() as folder:
        for figure, found in convex.read(records).items():
            draw(figure, found["results"]["rows"], found["results"]["data"], Path(folder))
            for name in convex.PICTURES[figure]:
                shutil.copyfile(Path(folder) / f"{name}.png", images / f"convex-{name}.png")
        for name, place in own.items():
            found = read_record(place)["results"]
            draw(name, found["rows"], found["data"], Path(folder))
            shutil.copyfile(Path(folder) / f"{name}.png", images / f"{name}.png")
    deep.draw(networks, images)


def main() -> None:
    """Take the records, draw, write."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given = {name: (ROOT / "results" / name, "folder of its records") for name in (*OWN, "steps")}
    given["records"] = ROOT / "results" / "convex", "folder of the convex study's records"
    given["deep"] = ROOT / "results" / "deep", "folder of the deep study's records"
    given["docs"] = ROOT / "docs", "where the pages and img/ go"
    given["take"] = None, "folder of a finished run without networks to copy the records from"
    for name, (default, text) in given.items():
        options.add_argument(f"--{name}", type=Path, default=default, help=text)
    options.add_argument("--judge", action="store_true", help="decide the verdicts again")
    given = options.parse_args()
    own = {name: getattr(given, name) for name in OWN}
    if given.take:
        take(given.take, given.records, own)
    own = {name: folder for name, folder in own.items() if folder.is_dir()}
    if given.judge:
        for name, folder in own.items():
            judge_again(folder, name, read_record(folder))
        for figure, found in convex.read(given.records).items():
            judge_again(given.records / figure, figure, found)
    draw_pictures(given.records, given.deep, own, given.docs / "img")
    pages = {
        "reproduction.md": convex.document(given.records) + "\n" + deep.document(given.deep),
        "geometry.md": geometry.document(given.geometry),
        "moving.md": environments.document(given.environments),
        "steps.md": steps.document(given.steps),
        "privacy-price.md": privacy.document(given.privacy),
    }
    if "federated" in own:
        pages["shakespeare.md"] = federated.document(given.federated)
    for name, page in pages.items():
        (given.docs / name).write_text(page, encoding="utf-8")
        print(given.docs / name)


if __name__ == "__main__":
    main()

"""From a request to files: parts are run (or found), rows made of them, claims judged, figures
drawn, the record written.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from fmrl.errors import FMRLError
from fmrl.records import plain, record, write_json
from fmrl.reproduce.convex import batch, growth, samples, similarity
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.config import Config
from fmrl.reproduce.convex.figures import draw
from fmrl.reproduce.convex.parts import Part, run_parts, spent
from fmrl.reproduce.convex.sets import StudySet
from fmrl.reproduce.verdict import Row

STUDIES = {"similarity": similarity, "growth": growth, "samples": samples, "batch": batch}


def plan(figures: Sequence[str], config: Config) -> list[Part]:
    """Every part the figures need."""
    return [part for figure in figures for part in STUDIES[figure].parts(config)]


def reproduce(
    figures: Sequence[str],
    config: Config,
    data: StudySet,
    out: Path,
    jobs: int = 2,
    progress: Callable[[str, float], Any] = lambda name, cost: None,
) -> dict[str, Any]:
    """Run ``figures`` and write, under out/<figure>: results.json, results.csv, verdicts.json,
    record.json and the pictures.

    Finished parts lie under out/parts and are used again. Returns {"record": …, "verdicts": [...],
    "files": [...]}."""
    usable(Path(out))
    if config.tasks is not None:
        data = data.reduced(*config.tasks)
    with record("reproduce", figures=",".join(figures), **asdict(config)) as entry:
        entry |= {"data": describe(data), "jobs": jobs}
        parts, folder = plan(figures, config), Path(out) / "parts"
        results = run_parts(parts, data, folder, jobs, progress)
        entry["spent"] = spent(parts, folder)
    verdicts, files = [], []
    for figure in figures:
        rows = plain(STUDIES[figure].rows(config, results))
        found = [v.plain() for v in judge(figure, rows)]
        verdicts += found
        files += write(figure, rows, found, entry, Path(out))
    return {"record": entry, "verdicts": verdicts, "files": files}


def usable(out: Path) -> None:
    """Refuse a folder that cannot be one, before any work is done."""
    if taken := next((p for p in (out, *out.parents) if p.exists() and not p.is_dir()), None):
        raise FMRLError(f"{taken} is a file, not a folder", fix="choose another --out")


def describe(data: StudySet) -> dict[str, Any]:
    """The data by its own name, with counts and checksum."""
    splits = {s: len(data.index(s)) for s in ("train", "dev", "test")}
    return {
        "name": data.name,
        "title": data.title,
        "tasks": len(data.split),
        **splits,
        "sha256": data.sha256,
    }


def write(
    figure: str, rows: list[Row], verdicts: list[dict], entry: dict[str, Any], out: Path
) -> list[Path]:
    """One figure's files."""
    folder, title = out / figure, entry["data"]["title"]
    files = [
        write_json(folder / "results.json", {"figure": figure, "data": title, "rows": rows}),
        write_json(folder / "verdicts.json", verdicts),
        write_json(
            folder / "record.json",
            entry | {"figure": figure, "passed": sum(v["passed"] for v in verdicts)},
        ),
    ]
    files.append(folder / "results.csv")
    files[-1].write_text(table(rows, title), encoding="utf-8")
    drawn = draw(figure, rows, title, folder)
    for old in {*folder.glob(f"{figure}*.png"), *folder.glob(f"{figure}*.svg")} - set(drawn):
        old.unlink()  # of an earlier run with other presets
    return files + drawn


def table(rows: list[Row], data: str) -> str:
    """The scalar columns as CSV."""
    names = list(
        dict.fromkeys(k for r in rows for k, v in r.items() if not isinstance(v, (list, dict)))
    )
    text = StringIO()
    writer = csv.DictWriter(text, ["data", *names], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"data": data} | r for r in rows)
    return text.getvalue()

"""What studies without networks do alike: run parts, make rows of them, judge, draw and write."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from fmrl.errors import FMRLError
from fmrl.files import write as write_text
from fmrl.records import plain, record, write_json
from fmrl.reproduce.figures import draw
from fmrl.reproduce.parts import Part, run_parts
from fmrl.reproduce.verdict import Row, Verdict


@dataclass(frozen=True)
class Figure:
    """One figure of a study."""

    parts: list[Part]  # what it needs
    rows: Callable[[list[tuple[Part, Any]]], list[Row]]  # made of pairs (part, result)
    judge: Callable[[list[Row]], Iterable[Verdict]]


@dataclass(frozen=True)
class Study:
    """Figures, ready to run."""

    title: str  # what they are played on
    config: Any  # their sizes, a dataclass
    data: Any  # given to every part
    about: dict[str, Any]  # the data, for the record; "skipped" names what is not here
    figures: dict[str, Figure]

    @property
    def parts(self) -> list[Part]:
        return [part for figure in self.figures.values() for part in figure.parts]

    def run(
        self,
        out: Path,
        jobs: int = 2,
        progress: Callable[[str, float], Any] = lambda name, cost: None,
    ) -> dict[str, Any]:
        """Run the figures and write, under out/<figure>: results.json, results.csv, verdicts.json,
        record.json and the pictures.

        Finished parts lie under out/parts and are used again; ``progress`` is called with the name
        and the cost of each. Returns {"record": …, "verdicts": [`Verdict`, …], "files": [path, …],
        "rows": …}, of all figures together.
        """
        usable(Path(out))
        asked = {"figures": ",".join(self.figures), **asdict(self.config)}
        with record("reproduce", **asked) as entry:
            entry |= {"data": {"title": self.title} | self.about, "jobs": jobs}
            left = {}
            for alone, processes in ((False, jobs), (True, 1)):
                chosen = [part for part in self.parts if part.alone == alone]
                left |= run_parts(chosen, self.data, Path(out) / "parts", processes, progress)
            seconds = round(sum(found["cpu_seconds"] for found in left.values()), 1)
            entry["spent"] = {"parts": len(left), "cpu_seconds": seconds}
        done: dict[str, Any] = {"record": entry, "verdicts": [], "files": [], "rows": []}
        for name, figure in self.figures.items():
            rows = plain(figure.rows([(p, left[p.name]["result"]) for p in figure.parts]))
            verdicts = list(figure.judge(rows))
            done["files"] += write(name, rows, verdicts, entry, Path(out))
            done["verdicts"] += verdicts
            done["rows"] += rows
        return done


def ours(name: str, seed: int = 0, quick: bool = False, data: Path | None = None) -> Study:
    """A study of our own. Its module ``runs`` says what is run: TITLE, Config, which reads the
    data, and plan(config, data); ``claims`` what follows from it: rows, judge and summary.
    """
    runs, claims = (import_module(f"fmrl.reproduce.{name}.{part}") for part in ("runs", "claims"))
    config = runs.Config(seed=seed)
    config = config.quick() if quick else config
    found = config.read(data)
    parts = runs.plan(config, found)
    about = {"sha256": {part.name: part.made_of for part in parts if part.made_of}}
    about |= {"skipped": found.skipped}
    return Study(runs.TITLE, config, found, about, {name: Figure(parts, claims.rows, claims.judge)})


def usable(out: Path) -> None:
    """Refuse a folder that cannot be one, before any work is done."""
    if taken := next((p for p in (out, *out.parents) if p.exists() and not p.is_dir()), None):
        raise FMRLError(f"{taken} is a file, not a folder", fix="choose another --out")


def write(
    figure: str, rows: list[Row], verdicts: list[Verdict], entry: dict[str, Any], out: Path
) -> list[Path]:
    """Write one figure's files; pictures of an earlier run with other presets go."""
    folder, title = out / figure, entry["data"]["title"]
    passed = sum(v.passed for v in verdicts)
    files = [
        write_json(folder / "results.json", {"figure": figure, "data": title, "rows": rows}),
        write_json(folder / "verdicts.json", [asdict(v) for v in verdicts]),
        write_json(folder / "record.json", entry | {"figure": figure, "passed": passed}),
        write_text(folder / "results.csv", _csv(rows, title)),
    ]
    drawn = draw(figure, rows, title, folder)
    for old in {*folder.glob(f"{figure}*.png"), *folder.glob(f"{figure}*.svg")} - set(drawn):
        old.unlink()
    return files + drawn


def _csv(rows: list[Row], data: str) -> str:
    """The columns that hold one value a row."""
    scalar = [{k: v for k, v in r.items() if not isinstance(v, (list, dict))} for r in rows]
    text, names = StringIO(), list(dict.fromkeys(k for r in scalar for k in r))
    writer = csv.DictWriter(text, ["data", *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"data": data} | r for r in scalar)
    return text.getvalue()

"""What all studies without a GPU do alike: run parts, make rows of them, judge, draw and write."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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
class Study:
    """One study of our own, ready to run.

    Args:
        name: Of its command, its folder and its picture.
        title: What it is played on.
        config: Its sizes, a dataclass.
        data: Given to every part; ``data.skipped`` names what is not here.
        parts: What is run.
        rows: Makes rows of pairs (part, result).
        judge: Makes verdicts of rows.
        alone: Parts that are run after the others, one at a time.
    """

    name: str
    title: str
    config: Any
    data: Any
    parts: list[Part]
    rows: Callable[[Any], list[Row]]
    judge: Callable[[list[Row]], list[Verdict]]
    alone: list[Part] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Of all parts."""
        return sum(part.cost for part in (*self.parts, *self.alone))

    def run(
        self,
        out: Path,
        jobs: int = 2,
        progress: Callable[[str, float], Any] = lambda name, cost: None,
    ) -> dict[str, Any]:
        """Run the study and write, under out/<name>: results.json, results.csv, verdicts.json,
        record.json and the picture.

        Finished parts lie under out/parts and are used again; ``progress`` is called with the name
        and the cost of each. Returns {"record": …, "verdicts": [`Verdict`, …], "files": [path, …],
        "rows": …}.
        """
        usable(Path(out))
        folder = Path(out) / "parts"
        with record(f"reproduce {self.name}", **asdict(self.config)) as entry:
            checksums = {part.name: part.made_of for part in self.parts if part.made_of}
            about = {"title": self.title, "sha256": checksums, "skipped": self.data.skipped}
            entry |= {"data": about, "jobs": jobs}
            left = run_parts(self.parts, self.data, folder, jobs, progress)
            left |= run_parts(self.alone, self.data, folder, 1, progress)
            seconds = round(sum(found["cpu_seconds"] for found in left.values()), 1)
            entry["spent"] = {"parts": len(left), "cpu_seconds": seconds}
        asked = [(part, left[part.name]["result"]) for part in (*self.parts, *self.alone)]
        made = plain(self.rows(asked))
        verdicts = self.judge(made)
        files = write(self.name, made, verdicts, entry, Path(out))
        return {"record": entry, "verdicts": verdicts, "files": files, "rows": made}


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

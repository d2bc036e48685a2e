"""Made-up records of a deep study, and what holds of every study of our own."""

import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from reproduction.markdown import read_record
from typer.testing import CliRunner

from fmrl.cli.main import app
from fmrl.reproduce.deep.settings import Plan, reference, runs
from fmrl.reproduce.figures import draw

ROOT = Path(__file__).parents[2]

TINY = "Pool('Tiny ImageNet-100', 64 classes, 8,960 inputs (3, 84, 84))"


def made(
    settings: str, data: str, iterations: int, finished: int, begun: int, shift: float = -0.04
) -> dict:
    """A study's record with the authors' accuracies moved by ``shift``: ``finished`` runs, then
    ``begun`` ones with one look.
    """
    results = {}
    for i, r in enumerate(runs(settings)[: finished + begun]):
        end = round(reference()[r.name]["accuracy"]["test"] + shift, 5)
        results[r.name] = {"curve": [[iterations // 2, round(end - 0.02, 5)]]}
        if i < finished:
            results[r.name]["curve"].append([iterations, end])
            ends = {"transductive": (end, 1000), "inductive": (round(end - 0.03, 5), 250)}
            results[r.name]["final"] = {
                p: {"accuracy": a, "error": 0.005, "tasks": n} for p, (a, n) in ends.items()
            }
    plan = Plan(every=iterations // 2, iterations=None if iterations == 20_000 else iterations)
    about = {"configuration": {"device": "a device"}, "plan": repr(plan), "data": data}
    return about | {"training seconds": 1234.6, "runs": results}


def judged(name, rows):
    claims = import_module(f"fmrl.reproduce.{name}.claims")
    return [asdict(v) for v in claims.judge(rows)]


def check_quick(name, page, folder, seconds=30):
    """Run a study with --quick: verdicts, picture and page follow from its rows, and a second run
    computes nothing. Returns what it printed, and its record.
    """
    words = ["reproduce", name, "--quick", "--jobs", "1", "--out", str(folder / "quick")]
    started, left = time.process_time(), folder / "quick" / name
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0 and time.process_time() - started < seconds
    assert "too small to decide" in result.stdout
    found = read_record(left)
    rows = found["results"]["rows"]
    assert judged(name, rows) == found["verdicts"]
    for path in draw(name, rows, found["results"]["data"], folder / "again"):
        assert path.read_bytes() == (left / path.name).read_bytes()
        assert path.stat().st_size > 5_000
    assert page.document(left).startswith("# ") and "nan" not in page.document(left)
    parts = {p: p.stat().st_mtime_ns for p in (folder / "quick/parts").rglob("*.json")}
    assert len(parts) == found["record"]["spent"]["parts"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert {p: p.stat().st_mtime_ns for p in parts} == parts  # nothing is computed twice
    return result, found


def check_committed(name, page, document):
    """The committed page and verdicts follow from the committed record."""
    folder = ROOT / "results" / name
    found = read_record(folder)
    assert (ROOT / "docs" / document).read_text("utf-8") == page.document(folder)
    assert judged(name, found["results"]["rows"]) == found["verdicts"]
    assert found["record"]["command"].startswith(f"fmrl reproduce {name}")
    assert sum(p.stat().st_size for p in folder.glob("*.json")) < 1 << 20

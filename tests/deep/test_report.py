"""The deep half of the reproduction page says what the records say."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from fmrl.deep.claims import Point, level, reached, rises
from fmrl.deep.report import document, draw, read
from fmrl.deep.settings import compare

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "deep"


def test_the_page_is_written_from_the_records():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page.endswith("\n" + document(RECORDS))


def test_at_least_29_runs_within_and_none_invented(tmp_path):
    results = read(RECORDS)["omniglot-record"]["runs"]
    rows = compare(results)
    assert len(results) == 32 and sum(r["within"] for r in rows) >= 29
    assert len(rows) == sum("final" in r for r in results.values())  # unfinished runs are not counted
    assert all(path.stat().st_size > 20_000 for path in draw(results, tmp_path))


def test_rules_of_the_verdicts():
    low, high = Point(0.90, 0.005, [(1000, 0.8)]), Point(0.95, 0.005, [(1000, 0.85), (2000, 0.91)])
    assert rises([low, high]) and not rises([high, low]) and not rises([low, Point(0.91, 0.005, [])])
    assert level([low, Point(0.91, 0.0, [])]) and not level([low, high])
    assert reached([low, high]) == 2000 and reached([high, low]) is None
    assert rises([low, None]) is None

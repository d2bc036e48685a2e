"""The committed page says what the committed records say."""

import json
from pathlib import Path

import pytest

from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.document import FIGURES, document

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "convex"


def test_the_page_is_what_the_records_give():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page.startswith(
        document(RECORDS) + "\n# Reproduction of the deep figures"
    )  # its second half: tests/deep/test_report.py


@pytest.mark.parametrize("figure", FIGURES)
def test_verdicts_follow_from_the_rows(figure):
    rows = json.loads((RECORDS / figure / "results.json").read_text(encoding="utf-8"))["rows"]
    assert [v.plain() for v in judge(figure, rows)] == json.loads(
        (RECORDS / figure / "verdicts.json").read_text(encoding="utf-8")
    )


def test_stand_in_data_is_called_by_its_own_name():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert "Data: **Mini-Wiki (rebuilt)**" in page


def test_records_are_small():
    assert sum(p.stat().st_size for p in RECORDS.rglob("*.json")) < 1 << 20

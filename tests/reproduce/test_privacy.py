"""The study of privacy: the command, small; its page and verdicts follow from the record."""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reproduction import privacy  # noqa: E402
from reproduction.markdown import read_record  # noqa: E402

from fmrl.cli.main import app  # noqa: E402
from fmrl.reproduce.figures import draw  # noqa: E402
from fmrl.reproduce.privacy import claims, runs  # noqa: E402

RECORDS = ROOT / "results" / "privacy"


def test_quick(tmp_path):
    """One test, because one run serves all checks and xdist shares no fixture between workers."""
    pytest.importorskip("dp_accounting")
    words = ["reproduce", "privacy", "--quick", "--jobs", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0 and "too small to decide" in result.stdout
    assert "epsilon 16.0: of the gain stays" in result.stdout
    folder = tmp_path / "privacy"
    found = read_record(folder)
    for path in draw("privacy", found["results"]["rows"], "any", tmp_path / "again"):
        assert path.read_bytes() == (folder / path.name).read_bytes()
    page = privacy.document(folder)
    assert page.startswith("# What does privacy cost?") and "nan" not in page
    parts = {p: p.stat().st_mtime_ns for p in (tmp_path / "parts").rglob("*.json")}
    assert len(parts) == found["record"]["spent"]["parts"] == 4
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert {p: p.stat().st_mtime_ns for p in parts} == parts  # nothing is computed twice


def test_tasks_lie_where_the_page_says():
    tasks = runs.regressions(300, 4, 40, seed=1)
    slopes = [np.linalg.lstsq(t.X, t.open().target[:, 0], rcond=None)[0] for t in tasks]
    far = np.linalg.norm(slopes - np.mean(slopes, axis=0), axis=1)
    assert np.sqrt(np.mean(far**2)) == pytest.approx(runs.SPREAD, rel=0.1)
    assert np.linalg.norm(np.mean(slopes, axis=0)) == pytest.approx(runs.CENTRE, rel=0.05)


def test_the_page_and_the_verdicts_follow_from_the_record():
    found = read_record(RECORDS)
    page = (ROOT / "docs" / "privacy-price.md").read_text("utf-8")
    assert page == privacy.document(RECORDS)
    rows = found["results"]["rows"]
    assert [asdict(v) for v in claims.judge(rows)] == found["verdicts"]
    assert found["record"]["command"].startswith("fmrl reproduce privacy")
    assert sum(p.stat().st_size for p in RECORDS.glob("*.json")) < 1 << 20


def test_verdicts_change_with_the_numbers():
    rows = read_record(RECORDS)["results"]["rows"]
    before = {v.id: v.passed for v in claims.judge(rows)}
    worse = [
        r | {"mean": r["mean"] * 1e3, "low": r["low"] * 1e3}
        if r["method"] not in (runs.FAL, runs.SINGLE)
        else r
        for r in rows
    ]
    after = {v.id: v.passed for v in claims.judge(worse)}
    assert before["privacy.bound"] and not after["privacy.bound"]
    assert before["privacy.price"] and not after["privacy.price"]
    assert not after["privacy.kept"]

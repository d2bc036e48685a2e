"""The study of privacy: the command, small; its page and verdicts follow from the record."""

import numpy as np
import pytest
from reproduction import privacy
from reproduction.markdown import read_record

from fmrl.reproduce.privacy import claims, runs

from .records import ROOT, check_committed, check_quick


def test_quick(tmp_path):
    pytest.importorskip("dp_accounting")
    result, found = check_quick("privacy", privacy, tmp_path)
    assert "epsilon 16.0: of the gain stays" in result.stdout
    assert found["record"]["spent"]["parts"] == 4


def test_tasks_lie_where_the_page_says():
    tasks = runs.regressions(300, 4, 40, seed=1)
    slopes = [np.linalg.lstsq(t.X, t.open().target[:, 0], rcond=None)[0] for t in tasks]
    far = np.linalg.norm(slopes - np.mean(slopes, axis=0), axis=1)
    assert np.sqrt(np.mean(far**2)) == pytest.approx(runs.SPREAD, rel=0.1)
    assert np.linalg.norm(np.mean(slopes, axis=0)) == pytest.approx(runs.CENTRE, rel=0.05)


def test_the_page_and_the_verdicts_follow_from_the_record():
    check_committed("privacy", privacy, "privacy-price.md")


def test_verdicts_change_with_the_numbers():
    rows = read_record(ROOT / "results" / "privacy")["results"]["rows"]
    before = {v.id: v.passed for v in claims.judge(rows)}
    factor = {runs.FAL: 1.0, runs.SINGLE: 1.0}
    worse = [
        r | {end: r[end] * factor.get(r["method"], 1e3) for end in ("mean", "low")} for r in rows
    ]
    after = {v.id: v.passed for v in claims.judge(worse)}
    assert before["privacy.bound"] and not after["privacy.bound"]
    assert before["privacy.price"] and not after["privacy.price"]
    assert not after["privacy.kept"]

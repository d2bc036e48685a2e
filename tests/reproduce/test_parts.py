"""Parts of a run: computed once, found again, computed anew when what they rest on changes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fmrl
from fmrl.core.rules.similarity import Doubling
from fmrl.core.rules.update import FLIBatch
from fmrl.errors import FMRLError
from fmrl.reproduce.convex import compositions
from fmrl.reproduce.convex.data import Config, synthetic
from fmrl.reproduce.convex.study import plan
from fmrl.reproduce.parts import Part, run_parts, sources, stored


@pytest.fixture(scope="module")
def data():
    return synthetic(tasks=20)


CALLS = []


def double(data, value):
    CALLS.append(value)
    if value < 0:
        raise RuntimeError("stopped")
    return {"double": np.array([2 * value])}


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def parts(*values):
    return [Part(f"probe/{v}", double, {"value": v}, cost=v) for v in values]


def results(*args, **options):
    return {name: left["result"] for name, left in run_parts(*args, **options).items()}


def result(part, folder, data):
    found = stored(part, folder, data)
    return found and found["result"]


def test_nothing_is_computed_twice(tmp_path, data):
    seen = []
    first = results(parts(1, 3, 2), data, tmp_path, 1, lambda name, cost: seen.append(name))
    assert first == {f"probe/{k}": {"double": [2 * k]} for k in (1, 2, 3)}
    assert seen == ["probe/3", "probe/2", "probe/1"]  # the dearest first
    assert results(parts(1, 2, 3, 4), data, tmp_path, 1)["probe/4"] == {"double": [8]}
    assert CALLS == [3, 2, 1, 4]


def test_processes_give_what_one_gives(tmp_path, data):
    asked = plan(["similarity"], Config(shots=(1,)))
    alone = results(asked, data, tmp_path / "one", 1)
    assert results(asked, data, tmp_path / "two", 2) == alone and len(alone) == 3


def test_a_failure_keeps_what_was_finished(tmp_path, data):
    with pytest.raises(RuntimeError):
        run_parts(parts(5, -1), data, tmp_path, 1)
    run_parts(parts(5), data, tmp_path, 1)
    assert CALLS == [5, -1]


def test_other_arguments_or_data_are_other_parts(tmp_path, data):
    (part,) = parts(1)
    run_parts([part], data, tmp_path, 1)
    assert result(part, tmp_path, data.sha256) == {"double": [2]}
    assert result(part, tmp_path, "another checksum") is None
    assert result(Part("probe/1", double, {"value": 7}), tmp_path, data.sha256) is None
    part.path(tmp_path).write_text('{"key": ')  # a truncated file is no result
    assert result(part, tmp_path, data.sha256) is None


@pytest.mark.parametrize("lost", ["result", "sha256", "cpu_seconds"])
def test_a_file_that_lost_something_is_no_result(tmp_path, data, lost):
    (part,) = parts(1)
    run_parts([part], data, tmp_path, 1)
    found = json.loads(part.path(tmp_path).read_text())
    part.path(tmp_path).write_text(json.dumps({k: v for k, v in found.items() if k != lost}))
    assert result(part, tmp_path, data.sha256) is None
    part.path(tmp_path).write_text(json.dumps(found | {"result": {}}))
    assert result(part, tmp_path, data.sha256) is None
    run_parts([part], data, tmp_path, 1)
    assert CALLS == [1, 1] and result(part, tmp_path, data.sha256) == {"double": [2]}


def keys(figure="samples"):
    return {part.name: part.key("data") for part in plan([figure], Config())}


def test_an_edited_composition_is_another_part(monkeypatch):
    before = keys()
    edited, old = list(compositions.TABLE), compositions.find("OGD", "FAL")
    edited[edited.index(old)] = replace(old, build=compositions.learning(FLIBatch()))
    monkeypatch.setattr(compositions, "TABLE", tuple(edited))
    changed = {name for name, key in keys().items() if key != before[name]}
    both, shots = ("paper", "released"), Config().shots
    assert changed == {f"samples/{p}/OGD/FAL-{m}" for p in both for m in shots}


@pytest.mark.parametrize("figure", ["samples", "batch"])
def test_an_edited_preset_is_another_part(monkeypatch, figure):
    before = keys(figure)
    edited = replace(compositions.PRESETS["paper"], similarity=Doubling(0.2, 1.1))
    monkeypatch.setitem(compositions.PRESETS, "paper", edited)
    changed = {name for name, key in keys(figure).items() if key != before[name]}
    assert changed == {name for name in before if f"{figure}/paper" in name}


def test_keys_are_the_same_in_every_process():
    assert "0x" not in json.dumps(keys())  # no address of a function in memory


@pytest.mark.parametrize(
    ("edited", "same"),
    [
        ("reproduce/convex/panels.py", False),
        ("core/run.py", False),
        ("theory/growth/__init__.py", False),
        ("stats.py", False),
        ("reproduce/convex/claims.py", True),
        ("reproduce/figures.py", True),
        ("reproduce/geometry/runs.py", True),
        ("deep/__init__.py", True),
    ],
)
def test_edited_sources_make_other_parts(monkeypatch, tmp_path, edited, same):
    before = sources("convex")
    copy = tmp_path / "fmrl"
    shutil.copytree(Path(fmrl.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fmrl, "__file__", str(copy / "__init__.py"))
    assert sources.__wrapped__("convex") == before and (copy / edited).is_file()
    with open(copy / edited, "a") as file:
        file.write("# another line\n")
    assert (sources.__wrapped__("convex") == before) is same


def test_resume_after_kill(tmp_path):
    """Killed in the middle, the command goes on where it stopped and touches no finished part."""
    command = [sys.executable, "-c", "from fmrl.cli import run; run()", "reproduce", "similarity"]
    command += ["--quick", "--dataset", "synthetic", "--jobs", "1", "--out", str(tmp_path)]
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen(command, env=env, **quiet)
    folder, deadline = tmp_path / "parts" / "similarity", time.monotonic() + 60
    while len(list(folder.glob("[!.]*.json"))) < 2 and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = {p.name: p.stat().st_mtime_ns for p in folder.glob("[!.]*.json")}
    assert before
    subprocess.run(command, env=env, check=True, capture_output=True)
    after = {p.name: p.stat().st_mtime_ns for p in folder.glob("[!.]*.json")}
    assert len(after) == len(plan(["similarity"], Config().quick()))
    assert {name: after[name] for name in before} == before
    assert json.loads((tmp_path / "similarity" / "verdicts.json").read_text())


def test_config_says_what_is_wrong():
    with pytest.raises(FMRLError, match="preset"):
        Config(presets=("papier",))
    with pytest.raises(FMRLError, match="orders"):
        Config(orders=1)

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fmrl
from fmrl.core.rules.similarity import Doubling
from fmrl.core.rules.update import FLIBatch
from fmrl.errors import FMRLError
from fmrl.reproduce.convex import table
from fmrl.reproduce.convex.config import Config
from fmrl.reproduce.convex.parts import Part, run_parts, sources, stored
from fmrl.reproduce.convex.reproduce import plan
from fmrl.reproduce.convex.sets import synthetic


@pytest.fixture(scope="module")
def data():
    return synthetic(tasks=20)


@pytest.fixture
def probe(monkeypatch):
    module = types.ModuleType("fmrl.reproduce.convex._probe")
    module.calls = []

    def work(data, value):
        module.calls.append(value)
        if value < 0:
            raise RuntimeError("stopped")
        return {"double": np.array([2 * value])}

    module.work = work
    monkeypatch.setitem(sys.modules, "fmrl.reproduce.convex._probe", module)
    return module


def parts(*values):
    return [Part(f"probe/{v}", "_probe:work", {"value": v}, cost=v) for v in values]


def test_nothing_is_computed_twice(tmp_path, data, probe):
    seen = []
    first = run_parts(parts(1, 3, 2), data, tmp_path, 1, lambda name, cost: seen.append(name))
    assert first == {
        "probe/1": {"double": [2]},
        "probe/3": {"double": [6]},
        "probe/2": {"double": [4]},
    }
    assert seen == ["probe/3", "probe/2", "probe/1"]  # the dearest first
    assert run_parts(parts(1, 2, 3, 4), data, tmp_path, 1)["probe/4"] == {"double": [8]}
    assert probe.calls == [3, 2, 1, 4]


def test_a_failure_keeps_what_was_finished(tmp_path, data, probe):
    with pytest.raises(RuntimeError):
        run_parts(parts(5, -1), data, tmp_path, 1)
    run_parts(parts(5), data, tmp_path, 1)
    assert probe.calls == [5, -1]


def test_other_arguments_or_data_are_other_parts(tmp_path, data, probe):
    (part,) = parts(1)
    run_parts([part], data, tmp_path, 1)
    assert stored(part, tmp_path, data.sha256) == {"double": [2]}
    assert stored(part, tmp_path, "another checksum") is None
    assert stored(Part("probe/1", "_probe:work", {"value": 7}), tmp_path, data.sha256) is None
    part.path(tmp_path).write_text('{"key": ')  # a truncated file is no result
    assert stored(part, tmp_path, data.sha256) is None


@pytest.mark.parametrize("lost", ["result", "sha256", "cpu_seconds"])
def test_a_file_that_lost_something_is_no_result(tmp_path, data, probe, lost):
    (part,) = parts(1)
    run_parts([part], data, tmp_path, 1)
    found = json.loads(part.path(tmp_path).read_text())
    part.path(tmp_path).write_text(json.dumps({k: v for k, v in found.items() if k != lost}))
    assert stored(part, tmp_path, data.sha256) is None
    part.path(tmp_path).write_text(json.dumps(found | {"result": {}}))
    assert stored(part, tmp_path, data.sha256) is None
    run_parts([part], data, tmp_path, 1)
    assert probe.calls == [1, 1] and stored(part, tmp_path, data.sha256) == {"double": [2]}


def keys(figure="samples"):
    return {part.name: part.key("data") for part in plan([figure], Config())}


def test_an_edited_composition_is_another_part(monkeypatch):
    before = keys()
    edited = [
        replace(c, build=table.learning(FLIBatch()))
        if (c.within, c.method) == ("OGD", "FAL")
        else c
        for c in table.TABLE
    ]
    monkeypatch.setattr(table, "TABLE", tuple(edited))
    changed = {name for name, key in keys().items() if key != before[name]}
    assert changed == {
        f"samples/{p}/OGD/FAL-{m}" for p in ("paper", "released") for m in Config().shots
    }


@pytest.mark.parametrize("figure", ["samples", "batch"])
def test_an_edited_preset_is_another_part(monkeypatch, figure):
    before = keys(figure)
    monkeypatch.setitem(
        table.PRESETS, "paper", replace(table.PRESETS["paper"], similarity=Doubling(0.2, 1.1))
    )
    changed = {name for name, key in keys(figure).items() if key != before[name]}
    assert changed == {name for name in before if f"{figure}/paper" in name}


def test_keys_are_the_same_in_every_process():
    assert "0x" not in json.dumps(keys())  # no address of a function in memory


@pytest.mark.parametrize(
    ("edited", "same"),
    [
        ("study/samples.py", False),
        ("core/run.py", False),
        ("growth/__init__.py", False),
        ("study/prose.py", True),
    ],
)
def test_edited_sources_make_other_parts(monkeypatch, tmp_path, edited, same):
    before = sources()
    copy = tmp_path / "fmrl"
    shutil.copytree(Path(fmrl.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fmrl, "__file__", str(copy / "__init__.py"))
    assert sources.__wrapped__() == before
    with open(copy / edited, "a") as file:
        file.write("# another line\n")
    assert (sources.__wrapped__() == before) is same


def test_resume_after_kill(tmp_path):
    """Killed in the middle, the command goes on where it stopped and touches no finished part."""
    command = [
        sys.executable,
        "-c",
        "from fmrl.cli.main import run; run()",
        "reproduce",
        "similarity",
    ]
    command += ["--quick", "--dataset", "synthetic", "--jobs", "1", "--out", str(tmp_path)]
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    running = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "parts" / "similarity"
    deadline = time.monotonic() + 60
    while (
        len(list(folder.glob("[!.]*.json"))) < 2
        and running.poll() is None
        and time.monotonic() < deadline
    ):
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

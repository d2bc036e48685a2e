import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from fmrl.core.errors import FMRLError
from fmrl.study.config import Config
from fmrl.study.parts import Part, run_parts, stored
from fmrl.study.reproduce import plan
from fmrl.study.sets import synthetic


@pytest.fixture(scope="module")
def data():
    return synthetic(tasks=20)


@pytest.fixture
def probe(monkeypatch):
    module = types.ModuleType("fmrl.study._probe")
    module.calls = []

    def work(data, value):
        module.calls.append(value)
        if value < 0:
            raise RuntimeError("stopped")
        return {"double": np.array([2 * value])}

    module.work = work
    monkeypatch.setitem(sys.modules, "fmrl.study._probe", module)
    return module


def parts(*values):
    return [Part(f"probe/{v}", "_probe:work", {"value": v}, cost=v) for v in values]


def test_nothing_is_computed_twice(tmp_path, data, probe):
    seen = []
    first = run_parts(parts(1, 3, 2), data, tmp_path, 1, lambda name, cost: seen.append(name))
    assert first == {"probe/1": {"double": [2]}, "probe/3": {"double": [6]}, "probe/2": {"double": [4]}}
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


def test_resume_after_kill(tmp_path):
    """Killed in the middle, the command goes on where it stopped and touches no finished part."""
    command = [sys.executable, "-c", "from fmrl.cli.main import run; run()", "reproduce", "similarity"]
    command += ["--quick", "--dataset", "synthetic", "--jobs", "1", "--out", str(tmp_path)]
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    running = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = tmp_path / "parts" / "similarity"
    deadline = time.monotonic() + 60
    while len(list(folder.glob("[!.]*.json"))) < 2 and running.poll() is None and time.monotonic() < deadline:
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

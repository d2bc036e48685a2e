"""Flower itself: its simulation runtime with many clients, and a SuperLink with SuperNodes as
processes of their own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fmrl[federated]'")

import fmrl

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "federated"
SIMULATE = """
import sys
from flwr.simulation import run_simulation
from linear_clients import client_app, server_app
from linear_clients.task import ALGO
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from fmrl.federated import FedFMRL

clients, rounds, out, fraction = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
app = ServerApp()

@app.main()
def main(grid, context):
    size = int(clients * fraction)
    strategy = FedFMRL(
        ALGO, folder=out, fraction_train=fraction, fraction_evaluate=0.2 if fraction == 1 else 0.0,
        min_available_nodes=clients, min_train_nodes=size, min_evaluate_nodes=2,
    )
    result = strategy.start(grid, ArrayRecord({"phi": Array(np.zeros(8))}), rounds)
    told = result.train_metrics_clientapp[rounds]
    assert (told["clients"], told["refused"]) == (size, 0), told
    if fraction == 1:
        scores = result.evaluate_metrics_clientapp[rounds]
        assert scores["loss-mean"] < scores["unadapted-loss-mean"], scores
        assert scores["loss-worst-decile"] > scores["loss-mean"], scores

run_simulation(app, client_app.app, clients, backend_config={
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 10**8},
})
"""


def example(name):
    """A module of the example, by its file."""
    place = EXAMPLE / "linear_clients" / f"{name}.py" if name == "task" else EXAMPLE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(clients, rounds):
    task = example("task")
    tasks = [task.rows(k, 20, part=0) for k in range(clients)]
    return fmrl.run(task.ALGO, tasks * rounds, np.zeros(8), meta_batch=clients).state


def alive(group):
    """Whether a process of the group runs; those that ended and wait to be counted do not."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, own = place.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(own) == group and state not in "ZX":
            return True
    return False


def simulate(*words):
    env = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"PYTHONPATH": f"{EXAMPLE}{os.pathsep}{ROOT / 'src'}", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SIMULATE, *map(str, words)], env=env, text=True,
        capture_output=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_simulation_runtime_with_120_clients_gives_the_numbers_of_run(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fmrl[federated]'")
    simulate(120, 2, tmp_path / "all", 1.0)
    found = fmrl.load_state(tmp_path / "all" / "round-000002.npz")
    wanted = expected(120, 2)
    assert np.abs(found.phi - wanted.phi).max() < 1e-10
    assert np.abs(found.guess.steps - wanted.guess.steps).max() < 1e-10
    simulate(120, 2, tmp_path / "some", 0.25)
    assert fmrl.load_state(tmp_path / "some" / "round-000002.npz").tasks == 2 * 30


def test_a_superlink_with_supernodes_of_their_own_gives_the_numbers_of_run(tmp_path):
    clients, rounds, report = 2, 2, tmp_path / "report.json"
    with example("loopback").Loopback(clients, tmp_path) as there:
        options = {"clients": clients, "rounds": rounds}
        there.run(**options, folder=str(tmp_path / "state"), report=str(report))
        there.wait_for(report, 300)
        processes = [p.pid for p in (*there.nodes.values(), there.link)]
    told = json.loads(report.read_text())
    assert np.abs(np.array(told["phi"]) - expected(clients, rounds).phi).max() < 1e-10
    assert told["train"]["2"]["refused"] == 0
    assert not [pid for pid in processes if alive(pid)]  # nor what they had started

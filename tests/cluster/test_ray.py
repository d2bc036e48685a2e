"""A Ray cluster of three nodes on this machine: the same numbers as one process, through lost
workers, nodes and drivers.
"""
# ruff: noqa: E402

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fmrl[ray]'")
from chaos import Killer
from folders import make, write
from instances import same
from ray.cluster_utils import Cluster

import fmrl
from fmrl.cluster import Ray, Tables, play

SHAPE = fmrl.PerCoordinate(0.3)
SCRIPT = """
import sys, fmrl
from fmrl.cluster import play
play(fmrl.FMRL(), sys.argv[2], out=sys.argv[3], address=sys.argv[1], block=10)
"""


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    memory = 80 * 2**20
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": memory}
    made = Cluster(True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=memory)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


def test_three_nodes(cluster, tmp_path):
    """One test, because starting a cluster takes longer than everything it is used for."""
    tasks, table = make(400)
    folder = write(tmp_path / "data", table, (1000, 1003, 2500), rows=500)
    algo = fmrl.FMRL()
    expected = fmrl.run(algo, tasks)

    same(fmrl.run(algo, folder, engine="ray"), expected)  # whole row groups
    seen = []
    same(fmrl.run(algo, iter(tasks), engine=Ray(block=101), progress=seen.append), expected)
    assert sum(seen) == 400 and len(seen) == 4
    some = tasks[:90]
    cases = [(fmrl.FLIBatch(), 40, 1, fmrl.Doubling(0.1, 1.1)), (fmrl.FAL(), 20, 60, SHAPE)]
    for update, block, size, rule in [*cases, (fmrl.FAL(), 40, 1, SHAPE)]:
        other = fmrl.FMRL(update=update, similarity=rule)
        found = fmrl.run(other, some, meta_batch=size, engine=Ray(block=block))
        same(found, fmrl.run(other, some, meta_batch=size))
    for other in (fmrl.Hedge([algo, fmrl.FMRL(similarity=SHAPE)]), fmrl.Centres(2, algo)):
        same(fmrl.run(other, some, engine=Ray(block=40)), fmrl.run(other, some))
    prior = Ray(block=40).estimate_prior(some, steps=5)
    expected_prior = fmrl.estimate_prior(some, steps=5).covariance
    np.testing.assert_allclose(prior.covariance, expected_prior, rtol=1e-10, atol=1e-12)
    dataset = ray.data.from_arrow([table.slice(0, 1500), table.slice(1500)])
    same(fmrl.run(algo, Tables(dataset, loss=fmrl.Squared()), engine=Ray(block=100)), expected)

    killer = Killer(cluster, 3)
    killer.start()
    played = play(algo, folder, out=tmp_path / "killed", block=10, keep="all")
    killer.over.set()
    killer.join()
    assert killer.killed >= 2
    same(played.history(), expected)
    assert not list((tmp_path / "killed").glob("*/.*"))  # nothing half-written stays

    _the_driver_dies(cluster, folder, tmp_path, expected)

    view = []
    lost = next(iter(cluster.worker_nodes))

    def lose(_, gone=[]):  # noqa: B006
        if not gone:
            gone.append(cluster.remove_node(lost, allow_graceful=False))

    options = {"progress": lose, "view": lambda ledger: view.append(ledger.line())}
    played = play(algo, folder, out=tmp_path / "lost", block=20, keep="all", **options)
    same(played.history(), expected)
    assert lost not in cluster.worker_nodes and len(cluster.worker_nodes) == 1
    assert any("solve" in line for line in view)

    (folder / "part-001.parquet").write_bytes(b"torn")
    with pytest.raises(fmrl.FMRLError, match=r"part-001\.parquet cannot be read"):
        fmrl.run(algo, folder, engine="ray")
    with pytest.warns(UserWarning, match="part-001"):
        fmrl.run(algo, folder, engine=Ray(skip_bad_tasks=True), keep="totals")


def _the_driver_dies(cluster, folder, tmp_path, expected):
    out = tmp_path / "driver"
    driver = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, cluster.address, str(folder), str(out)]
    )
    while len(list(out.glob("optima/[0-9]*.parquet"))) < 8 and driver.poll() is None:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    finished = {f: f.stat().st_mtime_ns for f in Path(out).glob("*/[0-9]*.parquet")}
    assert 8 <= len(finished) < 80
    played = play(fmrl.FMRL(), folder, out=out, block=10)
    assert played.ledger.reused >= len(finished)
    assert {f: f.stat().st_mtime_ns for f in finished} == finished
    np.testing.assert_allclose(played.history("scalars").regret, expected.regret, atol=1e-10)
    np.testing.assert_allclose(played.state.phi, expected.state.phi, atol=1e-10)

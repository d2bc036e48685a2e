"""Federated runs on Flower: 1,000 simulated clients, and processes that are killed.

    python benchmarks/federated.py speed            1,000 clients × 50 rounds, ten clients a node
    python benchmarks/federated.py speed --alone    the same, every client a node of its own
    python benchmarks/federated.py kills            20 SuperNodes and 2 servers are killed

Both end with the same phi as `fmrl.run` on the same tasks, or say what was refused.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "federated"
sys.path.insert(0, str(EXAMPLE))
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's workers import the example and this library too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLE), str(ROOT / "src")])

from linear_clients.task import ALGO, FEATURES, rows

import fmrl
from fmrl.records import record, write_json


def expected(clients: int, rounds: int) -> np.ndarray:
    tasks = [rows(k, 20, part=0) for k in range(clients)]
    state = None
    for _ in range(rounds):
        start = {"phi": np.zeros(FEATURES)} if state is None else {"state": state}
        state = fmrl.run(ALGO, tasks, meta_batch=clients, keep="totals", **start).state
    return state.phi


def speed(clients: int, rounds: int, at_once: int, alone: bool, out: Path | None) -> None:
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation
    from linear_clients import client_app, hosting_app

    from fmrl.federated import FedFMRL

    client, hosted = (client_app.app, 1) if alone else (hosting_app.app, hosting_app.HOSTED)
    nodes = clients // hosted

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, found = ServerApp(), {}

    @server.main()
    def main(grid, context):
        strategy = FedFMRL(
            ALGO, min_available_nodes=nodes, fraction_evaluate=0.0, min_replies=clients,
            folder=out / "state" if out else None, at_once=at_once,
        )  # fmt: skip
        asked = strategy.aggregate_train
        started = time.perf_counter()

        def told(number, replies):
            left = (time.perf_counter() - started) / number * (rounds - number)
            print(f"round {number}/{rounds}, about {left:.0f} s left", file=sys.stderr)
            return asked(number, replies)

        strategy.aggregate_train = told
        grid.pull_interval = 0.02  # seconds between looks for replies; Flower's default is 0.1
        phi = ArrayRecord({"phi": Array(np.zeros(FEATURES))})
        found["result"] = strategy.start(grid, phi, rounds)

    sizes = {"clients": clients, "nodes": nodes, "rounds": rounds, "at_once": at_once}
    with record("federated speed", **sizes) as entry:
        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        backend["init_args"] = {"num_cpus": 2, "include_dashboard": False, "logging_level": "error"}
        run_simulation(server, client, nodes, backend_config=backend)
    result = found["result"]
    told = result.train_metrics_clientapp
    far = np.abs(result.arrays["phi"].numpy() - expected(clients, rounds)).max()
    busy = [metrics["server-seconds"] for metrics in told.values()]
    entry |= {"server seconds a round": float(np.mean(busy)), "distance from fmrl.run": float(far)}
    entry |= {"refused": sum(metrics["refused"] for metrics in told.values())}
    spent = sum(os.times()[:2])
    entry["processor seconds of this process"] = spent
    size = f"{clients} clients on {nodes} nodes x {rounds} rounds"
    print(f"{size}: {entry['seconds']:.0f} s with Ray's start")
    print(f"processor time of the server and Flower's engine: {spent:.0f} s")
    print(f"server, a round: {1000 * np.mean(busy):.0f} ms (median {1000 * np.median(busy):.0f})")
    print(f"largest difference from fmrl.run: {far:.1e}")
    if out:
        entry["command"] = "python benchmarks/federated.py speed" + (" --alone" if alone else "")
        write_json(out / f"federated-{'speed' if alone else 'hosted'}.json", entry)


def kills(clients: int, rounds: int, count: int, servers: int, seed: int, out: Path) -> None:
    import psutil
    from loopback import Loopback

    rng, started = random.Random(seed), time.perf_counter()
    report, state = out / "report.json", out / "state"

    def done() -> int:
        found = [int(p.stem.partition("-")[2]) for p in state.glob("round-*.npz")]
        return max(found, default=0)

    def server_processes() -> list[psutil.Process]:
        link = psutil.Process(there.link.pid)
        return [
            p for p in link.children(recursive=True) if any("serverapp" in w for w in p.cmdline())
        ]

    options = {"clients": clients, "rounds": rounds, "timeout": 20.0, "pause": 1.0}
    sizes = {"seed": seed, "kills": count, "servers": servers} | options
    options |= {"folder": str(state), "report": str(report)}
    ended, killed = {"clients": 0, "servers": 0}, []
    with record("federated kills", **sizes) as entry, Loopback(clients, out) as there:
        there.run(**options)
        victims = ["clients"] * count + ["servers"] * servers
        rng.shuffle(victims)
        for number, victim in enumerate(victims):
            # Evenly over the rounds, at a random time in each.
            due = 1 + number * max(1, rounds - 2) // len(victims)
            while done() < due and not report.exists():
                time.sleep(0.2)
            time.sleep(rng.uniform(0.0, 3.0))
            if report.exists():
                break
            if victim == "clients":
                k = rng.randrange(clients)
                there.kill_node(k)
                there.start_node(k)
            else:
                for process in server_processes():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                time.sleep(1.0)
                there.run(**options)
            ended[victim] += 1
            killed.append((victim, done()))
            print(f"{time.perf_counter() - started:4.0f} s: killed {victim}, after round {done()}")
        found = there.wait_for(report, 60.0 * rounds)
    far = float(np.abs(np.array(found["phi"]) - expected(clients, rounds)).max())
    refused = sum(metrics["refused"] for metrics in found["train"].values())
    entry |= {"killed": ended, "when": killed, "distance from fmrl.run": far, "refused": refused}
    print(f"killed {ended['clients']} clients and {ended['servers']} servers in {rounds} rounds")
    print(f"largest difference from fmrl.run: {far:.1e}")
    print(f"replies refused since the last server began: {refused}")
    entry["command"] = f"python benchmarks/federated.py kills --clients {clients} --rounds {rounds}"
    write_json(out / "federated-kills.json", entry)
    if far > 1e-10:
        raise SystemExit("the result is another than without the kills")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("what", choices=("speed", "kills"))
    words.add_argument("--clients", type=int, help="default: 1,000 (speed) or 4 (kills)")
    words.add_argument("--rounds", type=int, help="default: 50 (speed) or 24 (kills)")
    words.add_argument("--at-once", type=int, default=64, help="clients asked at one time (speed)")
    words.add_argument("--alone", action="store_true", help="a node for every client (speed)")
    words.add_argument("--kills", type=int, default=20, help="SuperNodes that are killed")
    words.add_argument("--servers", type=int, default=2, help="servers that are killed")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=Path, help="a folder for the record")
    asked = words.parse_args()
    if asked.what == "speed":
        speed(asked.clients or 1000, asked.rounds or 50, asked.at_once, asked.alone, asked.out)
        return
    with tempfile.TemporaryDirectory() as spare:
        sizes = asked.clients or 4, asked.rounds or 24
        kills(*sizes, asked.kills, asked.servers, asked.seed, (asked.out or Path(spare)).resolve())


if __name__ == "__main__":
    main()

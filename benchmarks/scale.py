"""Tasks on a local Ray cluster of three nodes: parity at size, workers killed, two workers
against one, Ray's own cost.

    # 10^6 tasks × 20 samples × 20 features, one process against three nodes
    python benchmarks/scale.py parity
    # a worker killed at 20 random moments, the driver once, the head once
    python benchmarks/scale.py kills
    # two workers against one, and Ray's overhead a task
    python benchmarks/scale.py speed
    # what docs/scale.md plans with: time and bytes a task, the scan, a block
    python benchmarks/scale.py costs
    # what meta-batches do to TAR; draws docs/img/scale-meta-batch.png
    python benchmarks/scale.py batch
    python benchmarks/scale.py parity --tasks 20000    # a small one

Each writes results/scale/NAME.json (--out for another folder). Times are wall times of this
machine; the load average is beside them."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import numpy as np

import fmrl
from fmrl.records import record, write_json

SAMPLES, FEATURES, GROUP, FILE = 20, 20, 5_000, 25_000  # tasks in a row group, in a file
# What is measured, and the tasks of each.
SIZES = {"parity": 10**6, "kills": 50_000, "speed": 100_000, "costs": 20_000, "batch": 2_000}
TURNS = 3
HELPERS = Path(__file__).parents[1] / "tests" / "cluster"
LOSS = fmrl.Logistic((0, 1))
DRIVER = """
import sys
from pathlib import Path

sys.path.insert(0, {here!r})
import ray
import scale

ray.init(address={address!r}, log_to_driver=False)
scale.play(Path({folder!r}), Path({out!r}), block=500)
"""


def make(folder: Path, tasks: int, features: int = FEATURES) -> Path:
    """Logistic tasks whose optima lie around one point, in Parquet files of whole row groups;
    float32, as tables often are.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    centre = rng.normal(size=features) / np.sqrt(features)
    numbers = [(f"x{k}", pa.float32()) for k in range(features)]
    schema = pa.schema([("task", pa.int64()), ("target", pa.int8()), *numbers])
    for first in range(0, tasks, FILE):
        path = folder / f"part-{first // FILE:05d}.parquet"
        with pq.ParquetWriter(path, schema, compression="none") as writer:
            for start in range(first, min(first + FILE, tasks), GROUP):
                n = min(GROUP, tasks - start)
                X = rng.standard_normal((n, SAMPLES, features), dtype=np.float32)
                X /= np.float32(np.sqrt(features))
                truth = 4 * (centre + 0.3 * rng.normal(size=(n, features)) / np.sqrt(features))
                y = rng.random((n, SAMPLES)) < 1 / (1 + np.exp(-np.einsum("tmf,tf->tm", X, truth)))
                ids = np.repeat(np.arange(start, start + n), SAMPLES)
                columns = [ids, y.ravel().astype(np.int8)]
                columns += [X[..., k].ravel() for k in range(features)]
                writer.write_table(pa.table(columns, schema=schema))
    return folder


class Nodes:
    """Ray's own test cluster: a head without CPUs and ``workers`` nodes of one CPU."""

    def __init__(self, workers: int = 2):
        import ray
        from ray.cluster_utils import Cluster

        memory, self.ray = {"object_store_memory": 200 * 2**20}, ray
        head = {"num_cpus": 0, "include_dashboard": False} | memory
        self.cluster = Cluster(True, head_node_args=head)
        for _ in range(workers):
            self.cluster.add_node(num_cpus=1, **memory)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")

    def __enter__(self):
        return self.cluster

    def __exit__(self, *_):
        self.ray.shutdown()
        self.cluster.shutdown()


def cpu_of(cluster) -> float:
    """Seconds of CPU that the cluster's processes have used: workers, raylets, control store."""
    import psutil

    total = 0.0
    for node in cluster.list_all_nodes():
        for listed in node.all_processes.values():
            for info in listed:
                root = psutil.Process(info.process.pid)
                for process in (root, *root.children(recursive=True)):
                    try:
                        times = process.cpu_times()
                    except psutil.Error:
                        continue
                    total += times.user + times.system
    return total


def play(folder: Path, out: Path, mapper=None, **options):
    """The folder played by FAL, on the cluster this process is connected to or by ``mapper``."""
    from fmrl.cluster import Ray, Tables

    tables = Tables(str(folder), loss=LOSS, one_class="keep")
    return Ray(out=out, **options).play(fmrl.presets.paper(), tables, keep="scalars", mapper=mapper)


def differences(played, reference: dict) -> dict:
    """Largest differences from the single-machine run."""
    history = played.history("scalars")
    own = _vectors(history)
    found = {name: float(np.abs(own[name] - reference[name]).max()) for name in own}
    return found | {"tasks": len(history), "tar": float(history.tar)}


def _vectors(history) -> dict:
    found = {name: getattr(history, name) for name in ("regret", "guess", "deviation")}
    return found | {"phi": history.state.phi}


def alone(folder: Path) -> dict:
    """fmrl.run over the same files, task by task in this process."""
    given = {"task": "task", "target": "target", "one_class": "keep", "apart": "split"}
    tasks = fmrl.tasks_from_frame(str(folder / "*.parquet"), loss=LOSS, **given)
    return _vectors(fmrl.run(fmrl.presets.paper(), tasks, keep="scalars"))


def parity(entry: dict, work: Path, tasks: int) -> None:
    folder = make(_new(work / "data"), tasks)
    entry["bytes"] = sum(f.stat().st_size for f in folder.iterdir())
    started = time.perf_counter()
    reference = alone(folder)
    entry["one process"] = {"seconds": time.perf_counter() - started}
    with Nodes(2):
        started = time.perf_counter()
        played = play(folder, work / "out")
        entry["three nodes"] = {"seconds": time.perf_counter() - started}
    entry["three nodes"]["progress"] = played.ledger.to_dict()
    entry["difference"] = differences(played, reference)


def kills(entry: dict, work: Path, tasks: int, seed: int = 0) -> None:
    sys.path.insert(0, str(HELPERS))
    from chaos import Killer

    folder = make(_new(work / "data"), tasks)
    reference = alone(folder)
    with Nodes(2) as cluster:
        killer = Killer(cluster, 20, most=4.0, seed=seed)
        killer.start()
        played = play(folder, work / "killed", block=500)
        runs = 1
        while killer.killed < killer.count:  # more moments than one run has: go on in the next
            off = differences(played, reference)
            assert all(off[name] < 1e-10 for name in reference)
            played, runs = play(folder, work / f"killed-{runs}", block=500), runs + 1
        entry["workers"] = {"killed": killer.killed, "runs": runs}
        entry["workers"]["difference"] = differences(played, reference)
        driver = _driver(cluster.address, folder, work / "driver", "rounds")
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        entry["driver"] = _resumed(folder, work / "driver", reference)
    _head_is_lost(entry, work, folder, reference)


def _driver(address: str, folder: Path, out: Path, kind: str) -> subprocess.Popen:
    """A process that plays, once it has finished five blocks of a kind."""
    names = {"address": address, "folder": str(folder), "out": str(out)}
    code = DRIVER.format(here=str(Path(__file__).parent), **names)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    driver = subprocess.Popen([sys.executable, "-c", code], **quiet)
    while len(list(out.glob(f"{kind}/[0-9]*.parquet"))) < 5 and driver.poll() is None:
        time.sleep(0.05)
    return driver


def _resumed(folder: Path, out: Path, reference: dict) -> dict:
    """The run in a folder taken up again, and how much of it was there."""
    found = {"blocks finished": len(list(out.glob("*/[0-9]*.parquet")))}
    again = play(folder, out, block=500)
    return found | {"blocks reused": again.ledger.reused} | differences(again, reference)


def _head_is_lost(entry: dict, work: Path, folder: Path, reference: dict) -> None:
    """Kill the control store of a cluster while a run is under way; go on with that run on
    another cluster.
    """
    nodes = Nodes(1)
    nodes.ray.shutdown()  # only the driver is connected
    driver = _driver(nodes.cluster.address, folder, work / "head", "optima")
    os.kill(nodes.cluster.head_node.all_processes["gcs_server"][0].process.pid, signal.SIGKILL)
    started = time.perf_counter()
    entry["head"] = {"driver's exit code": driver.wait(timeout=300)}
    entry["head"]["seconds until it gave up"] = time.perf_counter() - started
    nodes.cluster.shutdown()
    with Nodes(1):
        entry["head"] |= _resumed(folder, work / "head", reference)


def speed(entry: dict, work: Path, tasks: int) -> None:
    """One node, two nodes and no Ray at all, in turn, three times over the same files; warm
    workers.
    """
    from fmrl.cluster.workers import Here

    folder, warm = make(_new(work / "data"), tasks), make(_new(work / "warm"), 1000)
    rows = []
    for turn in range(TURNS):
        started = time.perf_counter()
        played = play(folder, work / f"here-{turn}", mapper=Here())
        rows.append({"workers": 0, "seconds": time.perf_counter() - started} | _phases(played))
        for workers in (1, 2):
            with Nodes(workers) as cluster:
                play(warm, work / f"warm-{turn}-{workers}", block=100)  # starts the workers
                before, started, mine = cpu_of(cluster), time.perf_counter(), time.process_time()
                played = play(folder, work / f"ray-{turn}-{workers}")
                row = {"workers": workers, "seconds": time.perf_counter() - started}
                spent = cpu_of(cluster) - before + time.process_time() - mine
                row["cpu beside work"] = spent - sum(played.ledger.cpu.values())
                rows.append(row | _phases(played) | {"load": os.getloadavg()[0]})
    entry["runs"] = rows
    by = {w: [r for r in rows if r["workers"] == w] for w in (0, 1, 2)}
    ratios = [a["maps"] / b["maps"] for a, b in zip(by[1], by[2], strict=True)]
    cost = [1e6 * (a["seconds"] - b["seconds"]) / tasks for a, b in zip(by[1], by[0], strict=True)]
    idle = [1e6 * (a["seconds"] - a["work"]) / tasks for a in by[1]]
    median = float(np.median(ratios))
    entry["two workers against one, map phases"] = {"each": ratios, "median": median}
    # What other programs do not change: how much of two workers' time had a block in it, and the
    # CPU their blocks took.
    entry["two workers"] = {
        "share of their time with a block in work": [r["work"] / (2 * r["seconds"]) for r in by[2]],
        "the same of one worker": [r["work"] / r["seconds"] for r in by[1]],
        "CPU of the blocks against one worker": [
            a["cpu"] / b["cpu"] for a, b in zip(by[2], by[1], strict=True)
        ],
    }
    beside = [1e6 * a["cpu beside work"] / tasks for a in by[1]]
    entry["overhead of one worker, us a task"] = {
        "wall time against no Ray": cost,
        "wall time without a block in work": idle,
        "CPU beside the blocks' work": beside,
        "CPU, median": float(np.median(beside)),
    }


def _phases(played) -> dict:
    found = played.ledger.to_dict()
    # "play" pulls "deviate" along, so its wall time holds both.
    maps = found["seconds"]["solve"] + found["seconds"]["play"]
    work, cpu = (sum(found[f"{name}_seconds"].values()) for name in ("work", "cpu"))
    return {"phases": found["seconds"], "maps": maps, "work": work, "cpu": cpu}


def costs(entry: dict, work: Path, tasks: int) -> None:
    """Time and bytes a task of every phase in one process, the scan's time, and what a block
    costs beside its work.
    """
    from fmrl.cluster.workers import Here

    for features in (20, 50):
        folder = make(_new(work / f"data-{features}"), tasks, features)
        found = play(folder, work / f"out-{features}", mapper=Here()).ledger.to_dict()
        cpu = {phase: 1e6 * s / tasks for phase, s in found["cpu_seconds"].items()}
        size = {name: size / tasks for name, size in found["bytes"].items()}
        entry[f"{SAMPLES} x {features}"] = {"us of CPU a task": cpu, "bytes a task": size}
    far = np.random.default_rng(0).random(1_000_000) * 0.02
    for rule in (fmrl.Doubling(0.001, 1.1), fmrl.AverageDeviation(first=1.0)):
        guess, memory = rule.init(fmrl.Ball(1.0), np.zeros(2))
        started = time.process_time()
        for _ in range(10):
            rule.follow(guess, memory, far, np.ones_like(far))
        spent = time.process_time() - started
        entry.setdefault("scan, ns of CPU a task", {})[type(rule).__name__] = 1e2 * spent
    small = make(_new(work / "small"), 1000)
    with Nodes(1) as cluster:
        play(small, work / "small-warm", block=100)
        before, mine = cpu_of(cluster), time.process_time()
        played = play(small, work / "small-ray", block=2)
        mine = time.process_time() - mine
        theirs = cpu_of(cluster) - before - sum(played.ledger.cpu.values())
        # Three Ray tasks a block: solve, deviate, play.
        found = {"driver": 2 * mine, "Ray": 2 * theirs, "blocks": 500}
        entry["ms of CPU a block beside its work"] = found


def batch(entry: dict, work: Path, tasks: int) -> None:
    """TAR of the FLI variants against the size of the meta-batch, on tasks whose optima lie 0.1
    apart.
    """
    from fmrl.datasets import linear_regressions

    set_ = linear_regressions(tasks, SAMPLES, dim=FEATURES, spread=0.1, noise=0.05, seed=0)
    listed = list(set_.tasks)
    rows = []
    for name in ("fal", "fli-online", "fli-batch"):
        for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
            if size <= tasks:
                history = fmrl.run(
                    fmrl.presets.paper(update=name), listed, meta_batch=size, keep="scalars"
                )
                assert history.meta_batch == size
                rows.append({"update": name, "meta_batch": size, "tar": float(history.tar)})
    single = float(fmrl.run(fmrl.presets.single_task(), listed, keep="scalars").tar)
    entry |= {"rows": rows, "single-task": single}


def draw(path: Path, figure: Path) -> None:
    """The figure, from the record alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    entry = json.loads(path.read_text(encoding="utf-8"))
    fig, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name in dict.fromkeys(r["update"] for r in entry["rows"]):
        points = [(r["meta_batch"], r["tar"]) for r in entry["rows"] if r["update"] == name]
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.axhline(entry["single-task"], color="grey", ls=":", label="single-task")
    told = f"TAR over {entry['configuration']['tasks']} tasks"
    axes.set(xscale="log", yscale="log", xlabel="tasks in a meta-batch, B", ylabel=told)
    axes.legend()
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, dpi=150)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=SIZES)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    given = parser.parse_args()
    tasks, measure = given.tasks or SIZES[given.what], globals()[given.what]
    measure = partial(kills, seed=given.seed) if given.what == "kills" else measure
    about = {"tasks": tasks, "samples": SAMPLES, "features": FEATURES, "cores": os.cpu_count()}
    with (
        tempfile.TemporaryDirectory(prefix="fmrl-scale-") as work,
        record(f"scale {given.what}", **about) as entry,
    ):
        entry["load before"] = os.getloadavg()[0]
        measure(entry, Path(work), tasks)
        entry["load after"] = os.getloadavg()[0]
    path = write_json(given.out / f"{given.what}.json", entry)
    if given.what == "batch":
        draw(path, Path(__file__).parents[1] / "docs" / "img" / "scale-meta-batch.png")
    long = ("versions", "rows", "runs")
    told = {k: v for k, v in json.loads(path.read_text()).items() if k not in long}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()

"""How fast the convex core is, against the way the authors ran it, and how it grows. One thread,
one run.

(a) FAL+FTRL against one cvxpy/SCS solve a round, (b) FAL+OGD against scikit-learn's logistic
regression with root-finding on C and a round-by-round loop, (c) cost and memory per task of a
stream, (d) cost of OMD against the dimension. Peers play the first few tasks only (they take
hours for all) and their numbers must agree with ours, or the comparison counts as failed. Times
are CPU seconds of the one thread, so that other work on the machine disturbs them little.

    python benchmarks/convex.py --out bench.json   12 minutes on 2 busy cores; --quick 20 s
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is imported

import contextlib
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import typer
from data import peak_mb
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fmrl
from fmrl.records import record, write_json

CLASSES, FEATURES, TASKS = 4, 50, 812
EPSILON, GAMMA = 0.1, 1.1
Arrays = tuple[np.ndarray, np.ndarray]
app = typer.Typer(add_completion=False)


@dataclass
class Row:
    """One line of the table: what was measured, what was promised, and whether it holds."""

    part: str
    what: str
    value: float
    target: str
    passed: bool | None
    unit: str = ""
    note: str = ""
    raw: dict[str, Any] = field(default_factory=dict)


def text_like(count: int, rounds: int, seed: int) -> list[Arrays]:
    """Tasks that look like Mini-Wiki: unit rows around one common direction, classes that differ
    a little from task to task.
    """
    rng = np.random.default_rng(seed)
    common = rng.normal(size=FEATURES)
    common /= np.linalg.norm(common)
    # Word vectors vary more along some axes than others.
    spread = np.exp(rng.normal(size=FEATURES) / 2) / np.sqrt(FEATURES)
    classes = 0.5 * rng.normal(size=(CLASSES, FEATURES)) * spread
    tasks = []
    for _ in range(count):
        centres = common + classes + 0.5 * rng.normal(size=classes.shape) * spread
        y = rng.permutation(np.arange(rounds) % CLASSES)
        X = centres[y] + 0.6 * rng.normal(size=(rounds, FEATURES)) * spread
        tasks.append((X / np.linalg.norm(X, axis=1, keepdims=True), y))
    return tasks


# --- the peers: Algorithm 2 with FAL, written independently of fmrl


@dataclass
class Peer:
    """A way to the optimum in hindsight and a way to play a task; the meta-level around them is
    the same for all.
    """

    optimum: Callable[[np.ndarray, np.ndarray], np.ndarray]  # X, signs -> W [classes, features]
    play: Callable[..., tuple[np.ndarray, list]]  # X, signs, phi, eta -> losses, actions

    def run(self, tasks: list[Arrays]) -> dict[str, np.ndarray]:
        phi, D, violations = np.zeros((CLASSES, FEATURES)), 1 / np.sqrt(2) + EPSILON, 0
        out: dict[str, list] = {"regret": [], "optimum": [], "actions": [], "seconds": []}
        for t, (X, y) in enumerate(tasks):
            start = time.process_time()
            signs = np.where(np.arange(CLASSES) == y[:, None], 1.0, -1.0)
            best = self.optimum(X, signs)
            losses, actions = self.play(X, signs, phi, D / (np.sqrt(CLASSES) * np.sqrt(len(X))))
            out["regret"].append(losses.sum() - np.logaddexp(0, -signs * (X @ best.T)).sum())
            violations += np.linalg.norm(best - phi) / np.sqrt(2) > D
            D, phi = EPSILON * GAMMA**violations, phi + (best - phi) / (t + 1)
            out["seconds"].append(time.process_time() - start)
            out["optimum"].append(best.ravel())
            out["actions"].append(np.stack(actions).reshape(len(X), -1))
        return {name: np.asarray(values) for name, values in out.items()}


@dataclass
class Cvxpy:
    """One SCS solve a round. Which is faster, a new problem every round or one whose rounds are a
    parameter, depends on the number of rounds, so both are timed and the faster counts.
    """

    parametrised: bool

    def _problem(self, X, signs, phi, regularised=True):
        import cvxpy as cp

        W, seen = cp.Variable(phi.shape), cp.Parameter(len(X), nonneg=True)
        losses = seen @ cp.sum(cp.logistic(cp.multiply(-signs, X @ W.T)), axis=1)
        # eta·Σ losses + ½‖W − phi‖² has the same minimiser and needs no second parameter.
        objective = losses + cp.sum_squares(W - phi) / 2 if regularised else losses
        return W, seen, cp.Problem(cp.Minimize(objective), [cp.norm(W, "fro") <= 1])

    def optimum(self, X, signs):
        W, seen, problem = self._problem(X, signs, np.zeros((CLASSES, FEATURES)), regularised=False)
        seen.value = np.ones(len(X))
        problem.solve(solver="SCS")
        return W.value

    def play(self, X, signs, phi, eta):
        theta, suffered, actions, built = phi, [], [], None
        for i in range(len(X)):
            actions.append(theta)
            suffered.append(np.logaddexp(0, -signs[i] * (theta @ X[i])).sum())
            if i + 1 < len(X):
                rows = len(X) if self.parametrised else i + 1
                if built is None or not self.parametrised:
                    built = self._problem(X[:rows], signs[:rows], phi)
                W, seen, problem = built
                seen.value = eta * (np.arange(rows) <= i)
                problem.solve(solver="SCS", warm_start=True)
                theta = W.value
        return np.array(suffered), actions


class Sklearn:
    """LogisticRegression one-vs-rest; Brent's method finds the C whose W has norm 1. OGD as a
    plain loop over the rounds.
    """

    def optimum(self, X, signs):
        from scipy.optimize import brentq
        from sklearn.linear_model import LogisticRegression

        def fit(log_C: float) -> np.ndarray:
            # liblinear is the fastest of scikit-learn's solvers here.
            how = {"solver": "liblinear", "tol": 1e-6, "max_iter": 1000}
            model = LogisticRegression(C=np.exp(log_C), fit_intercept=False, **how)
            return np.vstack([model.fit(X, signs[:, c]).coef_ for c in range(CLASSES)])

        return fit(brentq(lambda log_C: np.linalg.norm(fit(log_C)) - 1, -9, 9, xtol=1e-5))

    def play(self, X, signs, phi, eta):
        theta, suffered, actions = phi, [], []
        for x, s in zip(X, signs, strict=True):
            actions.append(theta)
            z = s * (theta @ x)
            suffered.append(np.logaddexp(0, -z).sum())
            theta = theta + eta * np.outer(s / (1 + np.exp(z)), x)
            theta = theta / max(1.0, np.linalg.norm(theta))
        return np.array(suffered), actions


# --- (a) and (b)


def versus(
    part: str, within: str, peers: list[Peer], rounds: int, count: int, repeats: int, seed: int,
    total: int,
) -> Row:  # fmt: skip
    """Ours on all tasks against the peer on the first ``count``, interleaved; medians, and the
    numbers compared.
    """
    data = text_like(total, rounds, seed)
    tasks = [fmrl.Task(X, y, loss=fmrl.OneVsAll(CLASSES)) for X, y in data]
    algo = fmrl.presets.paper(within, "fal", epsilon=EPSILON, gamma=GAMMA)
    fmrl.run(algo, tasks[:2])
    for peer in peers:
        peer.run(text_like(1, CLASSES, seed))  # imports and first calls are not timed
    ours, times, found = [], [[] for _ in peers], {}
    for _ in range(repeats):
        start = time.process_time()
        history = fmrl.run(algo, tasks)
        ours.append((time.process_time() - start) / total)
        for peer, taken in zip(peers, times, strict=True):
            # The peer's longest tasks once: they take minutes.
            if not taken or within != "ftrl" or rounds < 64:
                found = peer.run(data[:count])
                taken.extend(found["seconds"].tolist())
    theirs = min(times, key=median)
    off = {
        "optimum": float(abs(history.optimum[:count] - found["optimum"]).max()),
        "actions": float(abs(played(algo, tasks[:count]) - found["actions"]).max()),
        "tar": float(abs(history.regret[:count].mean() - found["regret"].mean())),
    }
    agree = max(off["optimum"], off["actions"]) < 2e-4 and off["tar"] < 1e-3 * rounds**0.5
    ratio = median(theirs) / median(ours)
    goal = {"a": 300, "b": 80}[part] if rounds == 128 else 0
    peer_name = {"ftrl": "cvxpy/SCS", "ogd": "scikit-learn + loop"}[within]
    what = f"FAL+{within.upper()}, {total} tasks, {rounds} rounds, v. {peer_name}"
    note = f"{1e3 * median(ours):.3g} ms a task v. {1e3 * median(theirs):.4g} ms (peer: {count} "
    note += f"tasks, extrapolated); {'same numbers' if agree else 'NUMBERS DIFFER'}: "
    note += f"θ* {off['optimum']:.0e}, θ_i {off['actions']:.0e}, TAR {off['tar']:.0e}"
    raw = {"ours_s_per_task": ours, "peer_s_per_task": times, "peer_tasks": count}
    raw |= {"errors": off, "tar": float(history.tar)}
    target = f"≥ {goal}×" if goal else ""
    return Row(part, what, ratio, target, agree and ratio >= goal, "×", note, raw)


def played(algo: fmrl.FMRL, tasks: list[fmrl.Task]) -> np.ndarray:
    """Every action of our run, [tasks, rounds, d]."""
    state, out = algo.init(np.zeros(tasks[0].dim)), []
    for task in tasks:
        new, happened = algo.step(state, task)
        given = algo.within, task.open(), algo.domain, state.phi, happened.eta
        out.append(fmrl.play(*given, record=True).actions)
        state = new
    return np.stack(out)


# --- (c)


def stream(count: int, seed: int) -> Iterator[fmrl.Task]:
    """Small tasks made one by one, as a generator would that reads them from somewhere."""
    rng = np.random.default_rng(seed)
    pool = [(rng.normal(size=(8, 10)), np.arange(8) % 2) for _ in range(256)]
    for t in range(count):
        X, y = pool[t % len(pool)]
        yield fmrl.Task(X, y, loss=fmrl.Logistic())


@app.command(hidden=True)
def streaming(count: int, seed: int) -> None:
    """One measurement of (c), in a process of its own: CPU seconds a task and peak resident
    memory.
    """
    algo = fmrl.presets.paper("omd", "fal")
    fmrl.run(algo, stream(2000, seed), keep="totals")  # caches and allocator warm
    start = time.process_time()
    history = fmrl.run(algo, stream(count, seed), keep="totals")
    seconds = time.process_time() - start
    found = {"tasks": len(history), "us_per_task": 1e6 * seconds / count, "peak_mb": peak_mb()}
    print(json.dumps(found | {"tar": float(history.tar)}))


def flatness(sizes: list[int], repeats: int, seed: int, tick: Callable[[], None]) -> list[Row]:
    measured: dict[int, list[dict]] = {n: [] for n in sizes}
    for _ in range(repeats):
        for n in sizes:
            command = [sys.executable, __file__, "streaming", str(n), str(seed)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            measured[n].append(json.loads(answer))
            tick()
    # What a repeat loses, it loses to neighbours.
    cost = {n: min(m["us_per_task"] for m in ms) for n, ms in measured.items()}
    memory = {n: median(m["peak_mb"] for m in ms) for n, ms in measured.items()}
    raw = {str(n): ms for n, ms in measured.items()}
    span = f"T = {sizes[0]:,} to {sizes[-1]:,}, keep='totals'"
    rows, kinds = [], (("cost a task", cost, "µs", 20), ("peak resident memory", memory, "MB", 5))
    for what, found, unit, most in kinds:
        growth = 100 * (max(found.values()) / min(found.values()) - 1)
        note = ", ".join(f"{n:,}: {v:.1f} {unit}" for n, v in found.items())
        if found is memory:
            grown = (memory[sizes[-1]] - memory[sizes[0]]) * 2**20 / (sizes[-1] - sizes[0])
            note += f"; {grown:.0f} bytes a task"
        told = f"{what}, {span}", growth, f"within {most} %", growth <= most, "%", note, raw
        rows.append(Row("c", *told))
    return rows


# --- (d)


def growth(kind: str, sizes: list[int], repeats: int, seed: int, tick: Callable[[], None]) -> Row:
    """µs a round of OMD against d, and the slope of log time over log d from 10⁴ on, where
    overheads no longer count.
    """
    rng, rounds = np.random.default_rng(seed), 4
    domain = fmrl.Ball(1.0) if kind == "Ball" else fmrl.Simplex()
    cost = {}
    for d in sizes:
        task = fmrl.Task(rng.normal(size=(rounds, d)) / np.sqrt(d), loss=fmrl.Linear())
        game, phi, eta = task.open(), domain.middle(np.zeros(d)), np.asarray(0.1)
        inner = max(1, 20_000 // d)
        times = []
        for _ in range(repeats):
            gc.collect()
            start = time.process_time()
            for _ in range(inner):
                fmrl.play(fmrl.OMD(), game, domain, phi, eta)
            times.append((time.process_time() - start) / inner / rounds)
        cost[d] = min(times)
        tick()
    large = [d for d in sizes if d >= 10_000]
    slope = float(np.polyfit(np.log(large), np.log([cost[d] for d in large]), 1)[0])
    worst = max(np.log(cost[b] / cost[a]) / np.log(b / a) for a, b in pairwise(large))
    each = ((d, f"{1e6 * c:.4g} µs ({1e9 * c / d:.2g} ns a coordinate)") for d, c in cost.items())
    note = ", ".join(f"d={d:,}: {said}" for d, said in each)
    raw = {"s_per_round": {str(d): c for d, c in cost.items()}, "steepest": float(worst)}
    what = f"OMD on {kind}, d = {sizes[0]:,} to {sizes[-1]:,}: slope of log time"
    return Row("d", what, slope, "≤ 1.15", slope <= 1.15, "", note, raw)


# --- the report


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":")[1].strip() for line in lines if "model name" in line)
    return next(named, platform.processor())


def show(rows: list[Row], console: Console) -> None:
    caption = "peers play a few tasks; their time for all is extrapolated"
    table = Table(title="FMRL, convex core: CPU time of one thread", caption=caption)
    for column, side in zip(("", "what", "measured", "target", ""), "llrrl", strict=True):
        table.add_column(column, justify={"l": "left", "r": "right"}[side])
    for row in rows:
        verdict = "[green]pass[/]" if row.passed else "[red]FAIL[/]"
        value, what = f"{row.value:.3g} {row.unit}", f"{row.what}\n[dim]{row.note}[/]"
        table.add_row(row.part, what, value, row.target, verdict)
    console.print(table)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    quick: bool = typer.Option(
        False, help="Fewer tasks, rounds and repeats; targets are then only indicative."
    ),
    parts: str = typer.Option("abcd", help="Which parts to run."),
    out: Path = typer.Option(Path("bench-convex.json"), help="Where the JSON record goes."),
    seed: int = typer.Option(0, help="Seed of the synthetic tasks."),
) -> None:
    """Time the convex core against its peers and its targets."""
    if context.invoked_subcommand:
        return
    rounds = [4, 16] if quick else [4, 8, 16, 32, 64, 128]
    total = 100 if quick else TASKS
    sizes = [1000, 10_000] if quick else [1000, 10_000, 100_000]
    dims = [100, 10_000, 100_000] if quick else [100, 1000, 10_000, 100_000, 1_000_000]
    repeats, rows, console = (2 if quick else 3), [], Console()
    name, done = TextColumn("{task.description}"), MofNCompleteColumn()
    columns = name, BarColumn(), done, TimeElapsedColumn()
    steps = {"a": len(rounds), "b": len(rounds), "c": repeats * len(sizes), "d": 2 * len(dims)}
    about = {"seed": seed, "quick": quick, "cpu": processor(), "cores": os.cpu_count()}
    for package in ("scipy", "cvxpy", "scs"):
        with contextlib.suppress(PackageNotFoundError):
            about[package] = version(package)
    with record("convex", **about) as entry, Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=sum(steps[p] for p in parts))
        peers = {"a": ("ftrl", [Cvxpy(True), Cvxpy(False)], 2), "b": ("ogd", [Sklearn()], 5)}
        for part in (p for p in "ab" if p in parts):
            within, ways, count = peers[part]
            for m in rounds:
                progress.update(bar, description=f"({part}) {within}, {m} rounds")
                made = [Peer(way.optimum, way.play) for way in ways]
                rows.append(versus(part, within, made, m, count, repeats, seed, total))
                progress.advance(bar)
        if "c" in parts:
            progress.update(bar, description="(c) streaming")
            rows.extend(flatness(sizes, repeats, seed, lambda: progress.advance(bar)))
        if "d" in parts:
            progress.update(bar, description="(d) dimension")
            for kind in ("Ball", "Simplex"):
                tick = partial(progress.advance, bar)
                rows.append(growth(kind, dims, 3 * repeats, seed, tick))
    show(rows, console)
    write_json(out, entry | {"rows": [asdict(row) for row in rows]})
    console.print(f"{out} written; {sum(bool(r.passed) for r in rows)} of {len(rows)} rows pass")
    raise typer.Exit(0 if all(r.passed for r in rows) else 1)


if __name__ == "__main__":
    app()

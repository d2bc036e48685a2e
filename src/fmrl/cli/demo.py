"""``fmrl demo``: five compositions on handwritten digits and on synthetic streams of tasks that are
more or less alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fmrl.cli.guard import bar
from fmrl.core import presets
from fmrl.core.algorithm import FMRL
from fmrl.core.checkpoint import save_history
from fmrl.core.domains import Ball
from fmrl.core.losses import OneVsAll
from fmrl.core.rules.update import FAL, FLIBatch
from fmrl.core.run import run
from fmrl.core.tasks import Task
from fmrl.datasets.synthetic import linear_regressions
from fmrl.records import checksum, plain, record, write_json

DOMAIN = Ball(1.0)
SPREADS = (0.02, 0.05, 0.1, 0.2, 0.4)
DIGITS, STREAM = 74, 300  # tasks of a set


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the record and the figures.")] = Path(
        "fmrl-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record instead of the table.")
    ] = False,
):
    """Compare five compositions on two embedded sets.

    Sets: scikit-learn's handwritten digits in consecutive blocks of 24 (74 ten-class
    tasks), and a synthetic stream of 300 regression tasks whose optima lie
    [italic]spread[/italic] apart. Compositions: every task on its own (single-task),
    starting from the last optimum (strawman), Algorithm 2 with exact and with
    average-iterate updates (FAL, FLI-Batch), and one that was told the answer
    (omniscient). Printed: the task-averaged regret TAR and, in brackets, the proved
    bound on it.

    Examples:

        fmrl demo

        fmrl demo --seed 7 --out somewhere --json > record.json
    """
    with bar("tasks") as show:
        done, total = 0, (DIGITS + STREAM * len(SPREADS)) * 5

        def progress(tasks: int) -> None:
            nonlocal done
            done += tasks
            show("playing", done, total)

        entry = demo(out, seed, progress)
    if as_json:
        typer.echo(json.dumps(plain(entry)))
        return
    table = Table("", title="TAR (and the bound on it)", title_justify="left")
    shown = {(row["method"], row["data"]): row for row in entry["rows"]}
    sets = list(dict.fromkeys(data for _, data in shown))
    sets = [sets[0], *sets[1::2]]  # every other similarity: the figure has them all
    for name in sets:
        table.add_column(name.replace("synthetic, ", "synthetic\n"), justify="right", no_wrap=True)
    for method in dict.fromkeys(method for method, _ in shown):
        cells = [shown[method, name] for name in sets]
        table.add_row(method, *(f"{c['tar']:.3g} ({c['bound']:.3g})" for c in cells))
    Console(width=max(80, Console().width)).print(table)
    typer.echo(f"{out}: record.json and {len(entry['figures'])} figures, {entry['seconds']:.0f} s")


def compositions(tasks: list[Task]) -> dict[str, FMRL]:
    """What is compared. The omniscient one is told the mean and the deviation of the optima, which
    nobody knows in advance.
    """
    seen = run(presets.paper(update=FAL(), domain=DOMAIN), tasks)
    sigma = (seen.lipschitz * np.sqrt(seen.rounds))[:, None]
    mean = (sigma * seen.optimum).sum(0) / sigma.sum()
    deviation = np.sqrt((sigma[:, 0] * DOMAIN.divergence(seen.optimum, mean)).sum() / sigma.sum())
    return {
        "single-task": presets.single_task(domain=DOMAIN),
        "strawman": presets.strawman(domain=DOMAIN),
        "FAL": presets.paper(update=FAL(), domain=DOMAIN),
        "FLI-Batch": presets.paper(update=FLIBatch(), domain=DOMAIN),
        "omniscient": presets.omniscient(mean, float(deviation), domain=DOMAIN),
    }


def digits(rounds: int = 24) -> list[Task]:
    """scikit-learn's 1,797 handwritten digits, unit rows, in consecutive blocks of ``rounds``
    samples: 74 ten-class tasks.
    """
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    blocks = range(0, len(y) - rounds + 1, rounds)
    return [
        Task(X[i : i + rounds], y[i : i + rounds], loss=OneVsAll(10), name=f"digits {i}")
        for i in blocks
    ]


def demo(out: Path, seed: int, progress: Callable[[int], Any]) -> dict[str, Any]:
    """Run everything, write the record and the figures under ``out``, and return the record.

    ``progress`` is called with the number of tasks just played.
    """
    sets: dict[str, list[Task]] = {"digits": digits()}
    given = {"dim": 10, "noise": 0.05, "radius": 0.5, "seed": seed}
    for spread in SPREADS:
        made = linear_regressions(STREAM, 20, spread=spread, **given)
        sets[f"synthetic, spread {spread:g}"] = list(made)
    out.mkdir(parents=True, exist_ok=True)
    with record("demo", seed=seed, domain=DOMAIN, spreads=SPREADS) as entry:
        entry["data"] = {
            name: {"tasks": len(tasks), "sha256": checksum(*(t.X for t in tasks))}
            for name, tasks in sets.items()
        }
        entry["rows"] = [
            _row(data, method, algo, tasks, out, progress)
            for data, tasks in sets.items()
            for method, algo in compositions(tasks).items()
        ]
    write_json(out / "record.json", entry)
    entry["figures"] = [str(path) for path in draw(entry, out)]
    return entry


def _row(data: str, method: str, algo: FMRL, tasks: list, out: Path, progress) -> dict[str, Any]:
    history = run(algo, tasks, progress=progress)
    if data == "digits":  # so that there is something to certify
        save_history(history, out / f"digits-{method}.npz")
    low, high = history.interval
    return {
        "data": data,
        "method": method,
        "composition": repr(algo),
        "tar": float(low),
        "tar_at_most": float(high),
        "bound": float(np.mean(history.bound)),
        "violations": int(np.sum(history.violations)),
        "running_tar": history.running_tar(),
        "guess": history.guess,
    }


def draw(entry: dict[str, Any], out: Path) -> list[Path]:
    """Three figures from the record: TAR and the guess against tasks seen, TAR against spread."""
    from matplotlib.figure import Figure

    from fmrl.reproduce.figures import save

    rows, pictures = entry["rows"], {}
    for name, key, label in (("tar", "running_tar", "TAR"), ("guess", "guess", "guess $D_t$")):
        pictures[name] = Figure(figsize=(9, 3.4), layout="tight")
        axes = pictures[name].subplots(1, 2)
        for axis, data in zip(axes, ("digits", f"synthetic, spread {SPREADS[1]:g}"), strict=True):
            for row in (r for r in rows if r["data"] == data):
                axis.plot(np.arange(1, len(row[key]) + 1), row[key], label=row["method"])
            axis.set(title=data, xlabel="tasks seen", ylabel=label, xscale="log", yscale="log")
        axes[0].legend(fontsize=8)
    pictures["similarity"] = Figure(figsize=(5, 3.6), layout="tight")
    axis = pictures["similarity"].subplots()
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {r["data"]: r["tar"] for r in rows if r["method"] == method}
        tar = [mine[f"synthetic, spread {spread:g}"] for spread in SPREADS]
        axis.plot(SPREADS, tar, marker="o", label=method)
    axis.set(xlabel="spread of the optima", ylabel="TAR", xscale="log", yscale="log")
    axis.set_xticks(SPREADS, [f"{s:g}" for s in SPREADS])
    axis.minorticks_off()
    axis.legend(fontsize=8)
    return save(pictures, out, ("png", "svg"), 150)

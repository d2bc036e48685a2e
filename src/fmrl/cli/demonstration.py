"""The demonstration: five compositions on handwritten digits and on a synthetic stream whose
similarity is a knob.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core import presets
from fmrl.core.algorithm import FMRL
from fmrl.core.checkpoint import save_history
from fmrl.core.domains import Ball
from fmrl.core.losses import OneVsAll
from fmrl.core.rules.update import FAL, FLIBatch
from fmrl.core.run import run
from fmrl.core.tasks import Task
from fmrl.datasets.synthetic import linear_regressions
from fmrl.records import checksum, record, write_json

DOMAIN = Ball(1.0)
SPREADS = (0.02, 0.05, 0.1, 0.2, 0.4)


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


def demo(
    out: str | Path, seed: int = 0, progress: Callable[[str, int], Any] = lambda name, done: None
) -> dict[str, Any]:
    """Run everything, write the record and the figures under ``out``, and return the record.

    ``progress`` is called with a label and the number of tasks just played.
    """
    sets: dict[str, list[Task]] = {"digits": digits()}
    for spread in SPREADS:
        made = linear_regressions(300, 20, dim=10, spread=spread, noise=0.05, radius=0.5, seed=seed)
        sets[f"synthetic, spread {spread:g}"] = list(made)
    out = Path(out)
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


def _row(
    data: str, method: str, algo: FMRL, tasks: list[Task], out: Path, progress
) -> dict[str, Any]:
    history = run(algo, tasks, progress=lambda done: progress(f"{data}: {method}", done))
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
    """Three figures from the record: TAR against tasks seen, the guess D_t, TAR against similarity."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows, paths = entry["rows"], []

    def save(name: str, figure) -> None:
        figure.tight_layout()
        for suffix in ("png", "svg"):
            paths.append(out / f"{name}.{suffix}")
            figure.savefig(paths[-1], dpi=150)
        plt.close(figure)

    for name, key, label in (("tar", "running_tar", "TAR"), ("guess", "guess", "guess $D_t$")):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
        for axis, data in zip(axes, ("digits", f"synthetic, spread {SPREADS[1]:g}"), strict=True):
            for row in (r for r in rows if r["data"] == data):
                axis.plot(np.arange(1, len(row[key]) + 1), row[key], label=row["method"])
            axis.set(title=data, xlabel="tasks seen", ylabel=label, xscale="log", yscale="log")
        axes[0].legend(fontsize=8)
        save(name, figure)
    figure, axis = plt.subplots(figsize=(5, 3.6))
    for method in dict.fromkeys(row["method"] for row in rows):
        tar = [
            r["tar"]
            for s in SPREADS
            for r in rows
            if r["method"] == method and r["data"] == f"synthetic, spread {s:g}"
        ]
        axis.plot(SPREADS, tar, marker="o", label=method)
    axis.set(xlabel="spread of the optima", ylabel="TAR", xscale="log", yscale="log")
    axis.set_xticks(SPREADS, [f"{s:g}" for s in SPREADS])
    axis.minorticks_off()
    axis.legend(fontsize=8)
    save("similarity", figure)
    return paths

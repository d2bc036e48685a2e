"""The authors' 48 Reptile runs: their settings and logged accuracies, from ``reference/deep_runs.json``, and ours beside them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources

SWEEPS = {"shots": "train-shots", "iterations": "inner-iters"}


@dataclass(frozen=True)
class Run:
    """One of the authors' runs, at one seed."""

    name: str
    dataset: str
    sweep: str
    ways: int
    shots: int
    train_shots: int
    batch: int
    steps: int
    rate: float
    meta_batch: int
    iterations: int
    eval_batch: int
    eval_steps: int
    seed: int = 0

    @property
    def key(self) -> str:
        """Name with the seed."""
        return self.name if self.seed == 0 else f"{self.name}@{self.seed}"

    @property
    def shape(self) -> tuple:
        """Runs of equal shape are trained side by side."""
        return self.dataset, self.ways, self.batch, self.steps, self.meta_batch, self.iterations


def reference() -> dict[str, dict]:
    """The authors' runs by name."""
    text = resources.files("fmrl.deep").joinpath("reference/deep_runs.json").read_text(encoding="utf-8")
    return json.loads(text)["runs"]


def runs(dataset: str = "Omniglot", sweep: str | None = None, seeds: dict[str, int] | None = None) -> list[Run]:
    """The runs of one data set, of one sweep ("shots" or "iterations") or of both. seeds: more seeds for some, {name: how many}.

    >>> len(runs()), len(runs(sweep="shots")), len(runs("Mini-ImageNet"))
    (32, 20, 16)
    """
    found = []
    for name, r in reference().items():
        if r["dataset"] != dataset or (sweep and SWEEPS[sweep] != r["sweep"] and not _shared(name, sweep)):
            continue
        for seed in range((seeds or {}).get(name, 1)):
            found.append(
                Run(
                    name, dataset, r["sweep"], r["classes"], r["shots"], r["train_shots"], r["inner_batch"], r["inner_iters"],
                    r["learning_rate"], r["meta_batch"], r["meta_iters"], r["eval_batch"], r["eval_iters"], seed,
                )
            )  # fmt: skip
    return found


def family(name: str, sweep: str) -> dict[int, Run]:
    """One curve a run: the runs of a family ("o15": Omniglot, 1 shot, 5 ways) in one sweep, by samples a class or by inner steps.

    >>> {samples: run.name for samples, run in family("m15", "shots").items()}
    {5: 'm15_s5', 10: 'm15_s10', 15: 'm15_i8', 20: 'm15_s20', 25: 'm15_s25'}
    """
    dataset = "Omniglot" if name.startswith("o") else "Mini-ImageNet"
    found = {r.train_shots if sweep == "shots" else r.steps: r for r in runs(dataset, sweep) if r.name.startswith(f"{name}_")}
    return dict(sorted(found.items()))


def _shared(name: str, sweep: str) -> bool:
    """The run at both sweeps' crossing is logged under the sweep over inner steps."""
    r = reference()[name]
    middle = {("Omniglot", 5): 5, ("Omniglot", 20): 10, ("Mini-ImageNet", 5): 8}[r["dataset"], r["classes"]]
    return sweep == "shots" and r["inner_iters"] == middle


def compare(results: dict[str, dict]) -> list[dict]:
    """Run by run: ours, theirs, the allowed difference max(2 standard errors of both, 1.5 points), and whether it is kept."""
    rows = []
    for key, ours in results.items():
        name, _, seed = key.partition("@")
        if "final" not in ours:
            continue
        theirs = reference()[name]
        mine = ours["final"]["transductive"]
        allowed = max(2 * theirs["test_se"], 2 * math.hypot(theirs["test_se"], mine["error"]) if seed else 0.0, 0.015)
        difference = mine["accuracy"] - theirs["accuracy"]["test"]
        rows.append({
            "run": name, "seed": int(seed or 0), "ours": mine["accuracy"], "error": mine["error"],
            "inductive": ours["final"]["inductive"]["accuracy"], "theirs": theirs["accuracy"]["test"], "their error": theirs["test_se"],
            "difference": round(difference, 5), "allowed": round(allowed, 5), "within": abs(difference) <= allowed,
        })  # fmt: skip
    return rows

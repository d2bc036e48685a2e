"""The authors' 48 Reptile runs: their settings and logged accuracies, from
``reference/deep_runs.json``, and ours beside them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

SWEEPS = {"shots": "train-shots", "iterations": "inner-iters"}
FAMILIES = {
    "o15": "5-way 1-shot", "o55": "5-way 5-shot", "o120": "20-way 1-shot", "o520": "20-way 5-shot",
    "m15": "5-way 1-shot", "m55": "5-way 5-shot",
}  # fmt: skip
FEWEST = 100  # test tasks below which an accuracy decides nothing: its standard error is points


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
    text = (
        resources.files("fmrl.reproduce.deep")
        .joinpath("reference/deep_runs.json")
        .read_text(encoding="utf-8")
    )
    return json.loads(text)["runs"]


def runs(
    dataset: str = "Omniglot", sweep: str | None = None, seeds: dict[str, int] | None = None
) -> list[Run]:
    """The runs of one data set, of one sweep ("shots" or "iterations") or of both. seeds: more
    seeds for some, {name: how many}.

    >>> len(runs()), len(runs(sweep="shots")), len(runs("Mini-ImageNet"))
    (32, 20, 16)
    """
    found = []
    for name, r in reference().items():
        if r["dataset"] != dataset or (
            sweep and SWEEPS[sweep] != r["sweep"] and not _shared(name, sweep)
        ):
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
    """One curve a run: the runs of a family ("o15": Omniglot, 1 shot, 5 ways) in one sweep, by
    samples a class or by inner steps.

    >>> {samples: run.name for samples, run in family("m15", "shots").items()}
    {5: 'm15_s5', 10: 'm15_s10', 15: 'm15_i8', 20: 'm15_s20', 25: 'm15_s25'}
    """
    dataset = "Omniglot" if name.startswith("o") else "Mini-ImageNet"
    found = {
        r.train_shots if sweep == "shots" else r.steps: r
        for r in runs(dataset, sweep)
        if r.name.startswith(f"{name}_")
    }
    return dict(sorted(found.items()))


def crossing(dataset: str = "Omniglot") -> list[str]:
    """The run of every family that both sweeps share.

    >>> crossing()
    ['o15_i5', 'o55_i5', 'o120_i10', 'o520_i10']
    """
    found = (r for f in _families(dataset) for r in family(f, "shots").values())
    return [r.name for r in found if r.sweep == SWEEPS["iterations"]]


def smallest(dataset: str = "Omniglot", sweep: str | None = None, keep: int = 2) -> list[Run]:
    """The first ``keep`` settings of every family, in one sweep or in both: for a look at whether
    everything works.

    >>> [r.name for r in smallest("Mini-ImageNet", "iterations")]
    ['m15_i4', 'm15_i8', 'm55_i4', 'm55_i8']
    """
    sweeps = [sweep] if sweep else list(SWEEPS)
    found = [
        r for f in _families(dataset) for s in sweeps for r in list(family(f, s).values())[:keep]
    ]
    return list(dict.fromkeys(found))


def _families(dataset: str) -> list[str]:
    return [f for f in FAMILIES if reference()[f"{f}_s5"]["dataset"] == dataset]


def _shared(name: str, sweep: str) -> bool:
    """The run at both sweeps' crossing is logged under the sweep over inner steps."""
    r = reference()[name]
    middle = {("Omniglot", 5): 5, ("Omniglot", 20): 10, ("Mini-ImageNet", 5): 8}[
        r["dataset"], r["classes"]
    ]
    return sweep == "shots" and r["inner_iters"] == middle


def compare(results: dict[str, dict]) -> list[dict]:
    """Run by run: ours, theirs, the allowed difference max(2 standard errors of theirs, 1.5
    points), and whether it is kept.

    Whether it is kept is None where ours rests on fewer than FEWEST test tasks.
    """
    rows = []
    for key, ours in results.items():
        name, _, seed = key.partition("@")
        if "final" not in ours:
            continue
        theirs = reference()[name]
        mine = ours["final"]["transductive"]
        allowed = max(2 * theirs["test_se"], 0.015)
        difference = mine["accuracy"] - theirs["accuracy"]["test"]
        rows.append({
            "run": name, "seed": int(seed or 0), "ours": mine["accuracy"], "error": mine["error"], "tasks": mine["tasks"],
            "inductive": ours["final"]["inductive"]["accuracy"], "theirs": theirs["accuracy"]["test"], "their error": theirs["test_se"],
            "difference": round(difference, 5), "allowed": round(allowed, 5),
            "within": None if mine["tasks"] < FEWEST else abs(difference) <= allowed,
        })  # fmt: skip
    return rows


def alone(results: dict[str, dict]) -> list[dict]:
    """Run by run, with nothing beside it: both protocols' accuracies and standard errors, test
    tasks, meta-iterations.
    """
    rows = []
    for key, r in results.items():
        if "final" in r:
            name, _, seed = key.partition("@")
            row: dict = {"run": name, "seed": int(seed or 0)}
            for protocol, end in r["final"].items():
                row |= {
                    protocol: end["accuracy"],
                    f"{protocol} error": end["error"],
                    f"{protocol} tasks": end["tasks"],
                }
            rows.append(row | {"meta-iterations": r["curve"][-1][0]})
    return rows

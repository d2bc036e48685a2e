"""The authors' 48 Reptile runs: their settings and logged accuracies, from
``reference/deep_runs.json``, what of them is run, and ours beside them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources

from fmrl.reproduce.verdict import LEVEL

SWEEPS = {"shots": "train-shots", "iterations": "inner-iters"}
FAMILIES = {
    "o15": "5-way 1-shot",
    "o55": "5-way 5-shot",
    "o120": "20-way 1-shot",
    "o520": "20-way 5-shot",
    "m15": "5-way 1-shot",
    "m55": "5-way 5-shot",
}
TINY = "Tiny ImageNet-100"
FEWEST = 100  # test tasks below which an accuracy decides nothing: its standard error is points


class DataSet(StrEnum):
    """Data the settings are run on."""

    omniglot = "omniglot"
    tiny = "tiny-imagenet-100"
    mini = "mini-imagenet"

    @property
    def settings(self) -> str:
        """Whose settings they are."""
        return "Omniglot" if self is DataSet.omniglot else "Mini-ImageNet"

    @property
    def title(self) -> str:
        """The data by its own name."""
        return TINY if self is DataSet.tiny else self.settings


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
        return self.name if self.seed == 0 else f"{self.name}@{self.seed}"

    @property
    def shape(self) -> tuple:
        """Runs of equal shape are trained side by side."""
        return self.dataset, self.ways, self.batch, self.steps, self.meta_batch, self.iterations


_LOGGED_AS = (  # the fields of a Run, but the last, in the authors' log
    *("dataset", "sweep", "classes", "shots", "train_shots", "inner_batch", "inner_iters"),
    *("learning_rate", "meta_batch", "meta_iters", "eval_batch", "eval_iters"),
)


@dataclass(frozen=True)
class Plan:
    """How much of a study is done.

    Args:
        every: Meta-iterations between looks at the test tasks.
        curve: Test tasks of such a look.
        final: Test tasks at the end, transductive.
        inductive: Test tasks at the end, inductive.
        iterations: Meta-iterations (None: as many as the authors).
        precision: Of the kernels on CUDA: "bf16", "tf32" or "ieee".
    """

    every: int = 2000
    curve: int = 200
    final: int = 1000
    inductive: int = 500
    iterations: int | None = None
    precision: str = "bf16"

    def quick(self, on: DataSet) -> Plan:
        """A few meta-iterations and test tasks; the network of Mini-ImageNet is slower."""
        short = self.iterations or (3 if on is DataSet.omniglot else 1)
        return replace(self, every=10**6, curve=2, final=4, inductive=2, iterations=short)


@cache
def reference() -> dict[str, dict]:
    """The authors' runs by name."""
    file = resources.files("fmrl.reproduce.deep").joinpath("reference/deep_runs.json")
    return json.loads(file.read_text(encoding="utf-8"))["runs"]


def runs(
    dataset: str = "Omniglot", sweep: str | None = None, seeds: dict[str, int] | None = None
) -> list[Run]:
    """The runs of one data set, of one sweep ("shots" or "iterations") or of both. seeds: more
    seeds for some, {name: how many}.

    >>> len(runs()), len(runs(sweep="shots")), len(runs("Mini-ImageNet"))
    (32, 20, 16)
    """
    chosen = {
        name: r
        for name, r in reference().items()
        if r["dataset"] == dataset
        and (sweep is None or SWEEPS[sweep] == r["sweep"] or (sweep == "shots" and _shared(r)))
    }
    return [
        Run(name, *(r[field] for field in _LOGGED_AS), seed)
        for name, r in chosen.items()
        for seed in range((seeds or {}).get(name, 1))
    ]


def _shared(run: dict) -> bool:
    """Whether both sweeps share a run; it is logged under the sweep over inner steps."""
    middle = {("Omniglot", 5): 5, ("Omniglot", 20): 10, ("Mini-ImageNet", 5): 8}
    return run["inner_iters"] == middle[run["dataset"], run["classes"]]


def families(dataset: str) -> list[str]:
    """The families of a data set's settings."""
    return [f for f in FAMILIES if reference()[f"{f}_s5"]["dataset"] == dataset]


def family(name: str, sweep: str) -> dict[int, Run]:
    """The runs of a family ("o15": Omniglot, 1 shot, 5 ways) in one sweep, by samples a class or by
    inner steps.

    >>> {samples: run.name for samples, run in family("m15", "shots").items()}
    {5: 'm15_s5', 10: 'm15_s10', 15: 'm15_i8', 20: 'm15_s20', 25: 'm15_s25'}
    """
    here = runs(reference()[f"{name}_s5"]["dataset"], sweep)
    here = [r for r in here if r.name.startswith(f"{name}_")]
    return dict(sorted((r.train_shots if sweep == "shots" else r.steps, r) for r in here))


def crossing(dataset: str = "Omniglot") -> list[str]:
    """The run of every family that both sweeps share.

    >>> crossing()
    ['o15_i5', 'o55_i5', 'o120_i10', 'o520_i10']
    """
    found = (r for f in families(dataset) for r in family(f, "shots").values())
    return [r.name for r in found if r.sweep == SWEEPS["iterations"]]


def smallest(dataset: str = "Omniglot", sweep: str | None = None, keep: int = 2) -> list[Run]:
    """The first ``keep`` settings of every family, in one sweep or in both: for a look at whether
    everything works.

    >>> [r.name for r in smallest("Mini-ImageNet", "iterations")]
    ['m15_i4', 'm15_i8', 'm55_i4', 'm55_i8']
    """
    each = [family(f, s) for f in families(dataset) for s in ([sweep] if sweep else SWEEPS)]
    return list(dict.fromkeys(r for runs in each for r in list(runs.values())[:keep]))


def asked_for(on: DataSet, sweep: str | None, quick: bool, seeds: int | None) -> list[Run]:
    """The runs of a command: the smallest ones with few evaluation steps, or all of them, with
    further seeds (default: 3 for both sweeps on Omniglot) of the run that both sweeps share.
    """
    if quick:
        few = smallest(on.settings, sweep, 2 if on is DataSet.omniglot else 1)
        return [replace(r, eval_steps=5) for r in few]
    count = seeds or (3 if sweep is None and on is DataSet.omniglot else 1)
    return runs(on.settings, sweep, dict.fromkeys(crossing(on.settings), count))


def compare(results: dict[str, dict]) -> list[dict]:
    """Run by run: ours, theirs, the allowed difference max(2 standard errors of theirs, 1.5
    points), and whether it is kept (None where ours rests on fewer than FEWEST test tasks).
    """
    rows = []
    for where, run in _finished(results):
        logged, mine = reference()[where["run"]], run["final"]["transductive"]
        theirs, error = logged["accuracy"]["test"], logged["test_se"]
        difference, allowed = mine["accuracy"] - theirs, max(2 * error, LEVEL)
        within = None if mine["tasks"] < FEWEST else abs(difference) <= allowed
        ours = {"ours": mine["accuracy"], "error": mine["error"], "tasks": mine["tasks"]}
        ours["inductive"] = run["final"]["inductive"]["accuracy"]
        beside = {"theirs": theirs, "their error": error, "difference": round(difference, 5)}
        rows.append(where | ours | beside | {"allowed": round(allowed, 5), "within": within})
    return rows


def alone(results: dict[str, dict]) -> list[dict]:
    """Run by run, with nothing beside it: both protocols' accuracies and standard errors."""
    rows = []
    for where, run in _finished(results):
        for protocol, end in run["final"].items():
            error, tasks = f"{protocol} error", f"{protocol} tasks"
            where |= {protocol: end["accuracy"], error: end["error"], tasks: end["tasks"]}
        rows.append(where | {"meta-iterations": run["curve"][-1][0]})
    return rows


def _finished(results: dict[str, dict]) -> list[tuple[dict, dict]]:
    """Name and seed of every finished run, and what it has left."""
    found = ((key.partition("@"), run) for key, run in results.items() if "final" in run)
    return [({"run": name, "seed": int(seed or 0)}, run) for (name, _, seed), run in found]

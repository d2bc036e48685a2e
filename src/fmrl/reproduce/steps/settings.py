"""What is run: data sets with settings taken from the authors' runs, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmrl.reproduce.deep.settings import DataSet, Run, runs


@dataclass(frozen=True)
class Environment:
    """Settings that are trained alike and differ in the shots of a test task.

    Args:
        name: For files.
        on: The data.
        settings: The authors' runs it takes its sizes from.
        step: The first step of plain gradients.
    """

    name: str
    on: DataSet
    settings: tuple[str, ...]
    step: float

    def run(self, setting: str, seed: int, plan: Plan) -> Run:
        """One of the settings at a seed."""
        found = next(r for r in runs(self.on.settings) if r.name == setting)
        return replace(found, seed=seed, eval_steps=plan.steps or found.eval_steps)

    def title(self, run: Run) -> str:
        """The setting in words."""
        return f"{self.on.title} {run.ways}-way {run.shots}-shot"


ENVIRONMENTS = (
    Environment("omniglot-5-way", DataSet.omniglot, ("o15_i5", "o55_i5"), 0.3),
    Environment("omniglot-20-way", DataSet.omniglot, ("o120_i10", "o520_i10"), 0.3),
    Environment("tiny-imagenet-100", DataSet.tiny, ("m15_i8", "m55_i8"), 0.01),
)


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Args:
        iterations: Meta-iterations on Omniglot; a third of them on the larger pictures.
        tasks: Test tasks of a seed.
        seeds: Seeds.
        search: Tasks of training classes on which ARUBA++ chooses its weight.
        steps: Inner steps on a test task (None: the authors' 50).
        precision: Of the kernels on CUDA.
    """

    iterations: int = 3000
    tasks: int = 200
    seeds: int = 3
    search: int = 50
    steps: int | None = None
    precision: str = "bf16"

    def quick(self) -> Plan:
        """A few meta-iterations and test tasks: it shows that everything works."""
        return replace(self, iterations=3, tasks=2, seeds=2, search=2, steps=2)

    def length(self, on: DataSet) -> int:
        """Meta-iterations on a data set."""
        return self.iterations if on is DataSet.omniglot else max(1, self.iterations // 3)

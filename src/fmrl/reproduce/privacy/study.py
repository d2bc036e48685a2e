"""Which parts the study of privacy runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmrl.core.rules.private import Tree
from fmrl.reproduce.parts import Part
from fmrl.reproduce.privacy import runs
from fmrl.reproduce.privacy.claims import judge, rows
from fmrl.reproduce.study import Study

NAME, TITLE = "privacy", "linear regressions around one centre, drawn"


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that takes seconds and decides nothing."""

    seed: int = 0
    seeds: int = 5
    tasks: tuple[int, ...] = (100, 1000, 10_000)
    dims: tuple[int, ...] = (2, 8)
    rounds: tuple[int, ...] = (8, 32)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)

    def quick(self) -> Config:
        """The same study, small."""
        small = {"seeds": 2, "tasks": (20, 60), "dims": (2,), "rounds": (8,)}
        return replace(self, **small, epsilons=(1.0, 4.0, 16.0))


def study(config: Config) -> Study:
    """The study of privacy, ready to run."""
    _ = Tree(1.0, runs.DELTA, 2).noise  # says at once if the extra is missing
    parts = [
        Part(
            f"{NAME}/tasks-{tasks}-dim-{dim}-rounds-{rounds}-{seed}",
            runs.draw,
            {"tasks": tasks, "dim": dim, "rounds": rounds, "epsilons": config.epsilons}
            | {"seed": seed},
            tasks / 1000,
        )
        for tasks in config.tasks
        for dim in config.dims
        for rounds in config.rounds
        for seed in range(config.seed, config.seed + config.seeds)
    ]
    return Study(NAME, TITLE, config, runs.Nothing(), parts, rows, judge)

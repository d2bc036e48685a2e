"""The engine 'ray', and `play`: a table too large for one machine, played on a cluster, resumed
where it stopped.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.cluster import store
from fmrl.cluster.driver import Driver
from fmrl.cluster.groups import Block
from fmrl.cluster.mapping import OnRay
from fmrl.cluster.plan import Plan, plan_tables, plan_tasks, settle
from fmrl.cluster.progress import Ledger
from fmrl.cluster.tables import Skipped, Tables
from fmrl.cluster.work import Job
from fmrl.core.algorithm import FMRL, Round
from fmrl.core.arrays import Array
from fmrl.core.history import KEEP, History
from fmrl.core.losses import Loss
from fmrl.core.meta_level import State
from fmrl.errors import FMRLError
from fmrl.files import sweep
from fmrl.records import record, write_json
from fmrl.tables.encoder import Encoder


@dataclass(frozen=True)
class Played:
    """A finished run on a cluster. Its rounds lie in ``out``/rounds as Parquet, one file a block."""

    algo: FMRL
    start: State
    state: State
    meta_batch: int
    regret: float  # Σ regret
    gap: float
    out: Path
    blocks: tuple[Block, ...] = field(repr=False)
    exact: bool = field(repr=False)
    skipped: tuple[Skipped, ...] = ()
    ledger: Ledger = field(default_factory=Ledger, repr=False)

    @property
    def tasks(self) -> int:
        """T."""
        return self.state.tasks - self.start.tasks

    @property
    def tar(self) -> float:
        """Task-averaged regret."""
        return self.regret / self.tasks

    def history(self, keep: str = "all") -> History:
        """The run as `fmrl.run` returns it, read from the rounds. keep="totals" reads nothing."""
        history = History(self.algo, self.start, keep, self.meta_batch)
        if keep == "totals":
            none = dict.fromkeys(Round._fields)
            history.append(
                Round(**none | {"regret": np.array([self.regret]), "gap": np.array([self.gap])}),
                self.state,
            )
            return history
        names = [
            n for n in KEEP[keep] if n != "theta" or not self.exact
        ]  # of an exact rule, theta is the optimum
        for block in self.blocks:
            path = self.out / "rounds" / f"{block.number:08d}.parquet"
            columns = store.read(path, names)
            if columns is None:
                raise FMRLError(
                    f"{path} is gone or damaged",
                    fix="run it again with resume: only that block is played",
                )
            losses = columns.pop("losses", None)
            columns |= {
                "losses": None if losses is None else _padded(*losses),
                "optimum": columns.get("optimum"),
            }
            columns["theta"] = columns.get("theta", columns["optimum"])
            history.append(Round(**columns), self.state)
        return history


def play(
    algo: FMRL, source: Any, *, task: str = "task", target: str | None = "target", features: Iterable[str] | None = None,
    loss: Loss | None = None, encoder: Encoder | None = None, one_class: str = "error", out: str | Path, phi: Array | None = None,
    state: State | None = None, meta_batch: int = 1, address: str | None = None, block: int | None = None, keep: str = "scalars",
    resume: bool = True, skip_bad_tasks: bool = False, progress: Callable[[int], None] | None = None,
    view: Callable[[Ledger], None] | None = None,
) -> Played:  # fmt: skip
    """Play the tasks of ``source`` on a Ray cluster: a folder of Parquet files, a list of them, or
    a ray.data.Dataset.

    out: a folder that every machine of the cluster sees; optima, rounds and record.json go there,
    and a run that was stopped goes on from the blocks that are finished (resume=False starts
    again). block: tasks in one block (default: whole row groups).
    skip_bad_tasks: leave out what cannot be read or used, and say so in ``.skipped``; by default
    the first such thing stops the run.
    progress: called with the number of tasks just played. view: called with the `Ledger` twice a
    second or so."""
    tables = Tables(
        source,
        task,
        target,
        None if features is None else tuple(features),
        loss,
        encoder,
        one_class,
    )
    engine = Ray(address, out, block, resume, skip_bad_tasks, view)
    return engine.play(
        algo, tables, phi, state=state, meta_batch=meta_batch, keep=keep, progress=progress
    )


@dataclass(frozen=True)
class Ray:
    """The engine ``fmrl.run(algo, dataset, engine="ray")``; the arguments are those of
    `fmrl.cluster.play`.

    dataset: Task values, a folder of Parquet files with columns task, target and features, or
    `Tables` to name other columns.
    guest: ``out`` is the folder of something larger, which writes its own record.
    """

    address: str | None = None
    out: str | Path | None = None
    block: int | None = None
    resume: bool = True
    skip_bad_tasks: bool = False
    view: Callable[[Ledger], None] | None = None
    guest: bool = False

    def run(
        self, algo, tasks, phi=None, *, state=None, meta_batch=1, keep="all", progress=None
    ) -> History:
        """As `fmrl.run`: the history, read back from the rounds."""
        if self.out is not None:
            return self._history(algo, tasks, phi, state, meta_batch, keep, progress)
        with tempfile.TemporaryDirectory(prefix="fmrl-ray-") as folder:
            here = Ray(
                self.address, folder, self.block, self.resume, self.skip_bad_tasks, self.view
            )
            return here._history(algo, tasks, phi, state, meta_batch, keep, progress, alone=True)

    def _history(
        self, algo, tasks, phi, state, meta_batch, keep, progress, alone: bool = False
    ) -> History:
        played = self.play(
            algo,
            tasks,
            phi,
            state=state,
            meta_batch=meta_batch,
            keep=keep,
            progress=progress,
            alone=alone,
        )
        if played.skipped:
            what = "; ".join(f"{s.where}: {s.what}" for s in played.skipped[:3])
            warnings.warn(f"{len(played.skipped)} places were skipped: {what}", stacklevel=4)
        return played.history(keep)

    def play(
        self,
        algo,
        tasks,
        phi=None,
        *,
        state=None,
        meta_batch=1,
        keep="all",
        progress=None,
        mapper: Any = None,
        alone: bool = False,
    ) -> Played:
        """The run without its history. mapper: another way to map than Ray; alone: ``out`` is seen
        by this machine only.
        """
        files = (
            isinstance(tasks, (list, tuple))
            and bool(tasks)
            and all(isinstance(t, (str, Path)) for t in tasks)
        )
        if files or isinstance(tasks, (str, Path)) or type(tasks).__module__.startswith("ray.data"):
            tasks = Tables(tasks)
        own, mapper = mapper is None, mapper or OnRay(self.address, view=self.view)
        try:
            if alone and len(getattr(mapper, "hosts", "1")) > 1:
                raise FMRLError(
                    "the cluster has several machines",
                    fix="give Ray(out=…), a folder that all of them see",
                )
            return self._play(algo, tasks, phi, state, meta_batch, keep, progress, mapper)
        finally:
            if own:
                mapper.close()

    def _play(self, algo, tasks, phi, state, meta_batch, keep, progress, mapper) -> Played:
        out = Path(self.out).absolute()  # type: ignore[arg-type]
        with record(
            "scale", algo=algo, meta_batch=meta_batch, keep=keep, skip_bad_tasks=self.skip_bad_tasks
        ) as entry:
            job = Job(algo, str(out), meta_batch=meta_batch, keep=keep, skip=self.skip_bad_tasks)
            make = plan_tables if isinstance(tasks, Tables) else plan_tasks
            plan: Plan = make(job, tasks, self.block, mapper)
            start = state or algo.init(
                algo.domain.middle(np.zeros(plan.dim, plan.dtype))
                if phi is None
                else np.asarray(phi)
            )
            job = settle(plan, start, out, self.resume, self.guest)
            driver = Driver(job, plan.blocks, plan.held, mapper, progress)
            driver.skipped += plan.skipped
            driver.solve()
            totals = driver.run(start)
            ledger = mapper.ledger
            played = Played(
                algo, start, totals.state, meta_batch, totals.regret, totals.gap, out, tuple(driver.blocks), algo.update.exact,
                tuple(driver.skipped), ledger,
            )  # fmt: skip
            entry |= {
                "tasks": played.tasks,
                "tar": played.tar,
                "gap": totals.gap / played.tasks,
                "meta_batch": meta_batch,
            }
            entry |= {"skipped": [vars(s) for s in played.skipped], "progress": ledger.to_dict()}
        for folder in filter(Path.is_dir, out.iterdir()):  # of workers that died while they wrote
            sweep(folder, older=0)
        if not self.guest:
            write_json(out / "record.json", entry)
        return played


def _padded(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    lengths = np.diff(offsets)
    counts = np.arange(lengths.max()) < lengths[:, None]
    out = np.zeros(counts.shape, values.dtype)
    out[counts] = values[offsets[0] : offsets[-1]]
    return out

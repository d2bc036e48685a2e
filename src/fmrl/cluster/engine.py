"""The engine 'ray', and `play`: a table too large for one machine, played on a cluster, resumed
where it stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.cluster.columns import read_block
from fmrl.cluster.groups import Block
from fmrl.cluster.plan import Driver, plan_of, settle
from fmrl.cluster.tables import Skipped, Tables
from fmrl.cluster.work import Job
from fmrl.cluster.workers import Ledger, OnRay
from fmrl.core.algorithm import FMRL, Round
from fmrl.core.arrays import Array
from fmrl.core.history import KEEP, OBSERVED, History
from fmrl.core.losses import Loss, Squared
from fmrl.core.meta_level import State
from fmrl.core.prior.gaussian import Gaussian
from fmrl.core.prior.marginal import estimate_prior
from fmrl.core.prior.statistics import Moments, TaskStatistics
from fmrl.core.rules.observe import records
from fmrl.errors import FMRLError
from fmrl.files import scratch, sweep
from fmrl.records import record, write_json
from fmrl.tables.encoder import Encoder

GATHERED = 1 << 26  # numbers of statistics that the driver holds, half a gigabyte


@dataclass(frozen=True)
class Played:
    """A finished run on a cluster, its rounds in ``out``/rounds as Parquet, one file a block."""

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
            totals = {"regret": np.array([self.regret]), "gap": np.array([self.gap])}
            history.append(Round(**none | totals), self.state)
            return history
        # Of an exact rule, theta is the optimum.
        names = [n for n in KEEP[keep] if n != "theta" or not self.exact]
        names += OBSERVED if records(self.algo.similarity) else ()
        for block in self.blocks:
            path = self.out / "rounds" / f"{block.number:08d}.parquet"
            columns = read_block(path, names)
            if columns is None:
                fix = "run it again with resume: only that block is played"
                raise FMRLError(f"{path} is gone or damaged", fix=fix)
            losses = columns.pop("losses", None)
            columns["losses"] = None if losses is None else _padded(*losses)
            columns["optimum"] = columns.get("optimum")
            columns["theta"] = columns.get("theta", columns["optimum"])
            history.append(Round(**columns), self.state)
        return history


def play(
    algo: FMRL, source: Any, *, task: str = "task", target: str | None = "target",
    features: Iterable[str] | None = None, loss: Loss | None = None,
    encoder: Encoder | None = None, one_class: str = "error", out: str | Path,
    phi: Array | None = None, state: State | None = None, meta_batch: int = 1,
    address: str | None = None, block: int | None = None, keep: str = "scalars",
    resume: bool = True, skip_bad_tasks: bool = False,
    progress: Callable[[int], None] | None = None, view: Callable[[Ledger], None] | None = None,
) -> Played:  # fmt: skip
    """Play the tasks of a table on a Ray cluster.

    Args:
        algo: The composition.
        source: A folder of Parquet files, a list of them, or a ray.data.Dataset.
        task: The column of task ids.
        target: The column of labels or numbers.
        features: The other columns (default: all but task and target).
        loss: As `fmrl.tasks_from_frame` finds it, if left out.
        encoder: The same.
        one_class: What to do with tasks of one class: 'error', 'keep' or 'drop'.
        out: A folder that every machine of the cluster sees. Optima, rounds and record.json go
            there, and a run that was stopped goes on from the blocks that are finished.
        phi: Where to start (default: the middle of the domain).
        state: Resume from a saved State instead.
        meta_batch: As in `fmrl.run`.
        address: Of a running cluster (default: one is found or started).
        block: Tasks in one block (default: whole row groups).
        keep: As in `fmrl.run`.
        resume: False starts again.
        skip_bad_tasks: Leave out what cannot be read or used, and list it in ``.skipped``; by
            default the first such thing stops the run.
        progress: Called with the number of tasks just played.
        view: Called with the `Ledger` twice a second or so.
    """
    chosen = None if features is None else tuple(features)
    tables = Tables(source, task, target, chosen, loss, encoder, one_class)
    engine = Ray(address, out, block, resume, skip_bad_tasks, view)
    options = {"state": state, "meta_batch": meta_batch, "keep": keep, "progress": progress}
    return engine.play(algo, tables, phi, **options)


@dataclass(frozen=True)
class Ray:
    """The engine of ``fmrl.run(algo, dataset, engine="ray")``.

    The dataset is Task values, a folder of Parquet files with columns task, target and features,
    or `Tables` to name other columns.

    Args:
        address: Of a running cluster (default: one is found or started).
        out: As in `play`; by default a temporary folder, on one machine only.
        block: As in `play`.
        resume: As in `play`.
        skip_bad_tasks: As in `play`.
        view: As in `play`.
        alone: Whether ``out`` is this run's own, with a record of its own, or the folder of
            something larger.
    """

    address: str | None = None
    out: str | Path | None = None
    block: int | None = None
    resume: bool = True
    skip_bad_tasks: bool = False
    view: Callable[[Ledger], None] | None = None
    alone: bool = True

    def run(self, algo: FMRL, tasks: Any, phi: Array | None = None, **options: Any) -> History:
        """As `fmrl.run`: the history, read back from the rounds."""
        keep = options.setdefault("keep", "all")
        with ExitStack() as stack:
            engine = self
            if self.out is None:
                folder = stack.enter_context(scratch("fmrl-ray-"))
                engine, options["local"] = replace(self, out=str(folder / "run")), True
            played = engine.play(algo, tasks, phi, **options)
            if played.skipped:
                what = "; ".join(f"{s.where}: {s.what}" for s in played.skipped[:3])
                warnings.warn(f"{len(played.skipped)} places were skipped: {what}", stacklevel=3)
            return played.history(keep)

    def play(
        self, algo: FMRL, tasks: Any, phi: Array | None = None, *, state: State | None = None,
        meta_batch: int = 1, keep: str = "all", progress: Callable[[int], None] | None = None,
        mapper: Any = None, local: bool = False,
    ) -> Played:  # fmt: skip
        """The run without its history.

        Args:
            algo, tasks, phi, state, meta_batch, keep, progress: As in `fmrl.run`.
            mapper: Another way to map than Ray.
            local: Whether ``out`` is seen by this machine only.
        """
        with self._workers(mapper) as mapper:
            if local and len(getattr(mapper, "hosts", "1")) > 1:
                fix = "give Ray(out=…), a folder that all of them see"
                raise FMRLError("the cluster has several machines", fix=fix)
            out = str(Path(self.out).absolute())  # type: ignore[arg-type]
            job = Job(algo, out, meta_batch=meta_batch, keep=keep, skip=self.skip_bad_tasks)
            return self._play(job, tasks, phi, state, progress, mapper)

    def estimate_prior(
        self, tasks: Any, family: str | int = "full", *, mapper: Any = None, **options: Any
    ) -> Gaussian:
        """`fmrl.estimate_prior` of tasks on a cluster.

        Of squared losses the blocks are read once, for their sufficient statistics. Of others, and
        of too many numbers for one machine, every step is a map over the blocks, whose sums are
        added in their order. Nothing is written, and what cannot be read stops it.

        Args:
            tasks: As in `run`.
            family: As in `fmrl.estimate_prior`.
            mapper: Another way to map than Ray.
            options: As in `fmrl.estimate_prior`: method, noise, steps, …
        """
        with self._workers(mapper) as mapper:
            plan = plan_of(Job(FMRL(), ""), tasks, self.block, mapper)

            def each(kind: str, about: Any) -> Iterator[Any]:
                mapper.ledger.begin(kind, len(plan.blocks))
                items = ((b, plan.held(b), about) for b in plan.blocks)
                return (done.value for done in mapper.map(kind, plan.job, items, ordered=True))

            def sums(_: Any, gaussian: Gaussian) -> Moments:
                return reduce(add, each("moments", gaussian))

            numbers = sum(b.tasks for b in plan.blocks) * (plan.kind.dim + 1) ** 2
            if isinstance(plan.kind.loss, Squared) and numbers <= GATHERED:
                statistics = TaskStatistics.join(list(each("statistics", None)))
                return estimate_prior(statistics, family, **options)
            return estimate_prior(plan.kind, family, sums=sums, **options)

    @contextmanager
    def _workers(self, mapper: Any) -> Iterator[Any]:
        """Those given, or Ray's for as long as they are needed."""
        found = mapper or OnRay(self.address, view=self.view)
        try:
            yield found
        finally:
            if mapper is None:
                found.close()

    def _play(
        self, job: Job, tasks: Any, phi: Any, state: Any, progress: Any, mapper: Any
    ) -> Played:
        algo, out = job.algo, Path(job.out)
        about = {"meta_batch": job.meta_batch, "keep": job.keep, "skip_bad_tasks": job.skip}
        with record("scale", algo=algo, **about) as entry:
            plan = plan_of(job, tasks, self.block, mapper)
            middle = algo.domain.middle(np.zeros(plan.dim, plan.dtype))
            start = state or algo.init(middle if phi is None else np.asarray(phi))
            job = settle(plan, start, out, self.resume, self.alone)
            driver = Driver(job, plan.blocks, plan.held, mapper, progress)
            driver.skipped += plan.skipped
            driver.solve()
            totals = driver.run(start)
            played = Played(
                algo, start, totals.state, job.meta_batch, totals.regret, totals.gap, out,
                tuple(driver.blocks), algo.exact, tuple(driver.skipped), mapper.ledger,
            )  # fmt: skip
            entry |= {"tasks": played.tasks, "tar": played.tar, "gap": totals.gap / played.tasks}
            entry |= {"meta_batch": job.meta_batch, "progress": mapper.ledger.to_dict()}
            entry["skipped"] = [vars(s) for s in played.skipped]
        for folder in filter(Path.is_dir, out.iterdir()):  # of workers that died while they wrote
            sweep(folder, older=0)
        if self.alone:
            write_json(out / "record.json", entry)
        return played


def _padded(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    lengths = np.diff(offsets)
    counts = np.arange(lengths.max()) < lengths[:, None]
    out = np.zeros(counts.shape, values.dtype)
    out[counts] = values[offsets[0] : offsets[-1]]
    return out

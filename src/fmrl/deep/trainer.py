"""MetaTrainer: Algorithm 2 on the parameters of a network, many tasks and many runs at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fmrl.core.rules.meta import Interpolate
from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known
from fmrl.core.rules.update import FLIBatch, FLIOnline
from fmrl.deep.batches import whole
from fmrl.deep.checks import extent, sequence
from fmrl.deep.engines.inner import InnerLoop, Loss, cross_entropy
from fmrl.deep.engines.iteration import STRETCH, MetaIteration
from fmrl.deep.layout import Layout
from fmrl.deep.meta_level import LongRun, MetaLevel
from fmrl.deep.ranks import Ranks, shared
from fmrl.deep.stacked_runs import settings, side_by_side
from fmrl.deep.tasks import Tasks
from fmrl.deep.within import Adam
from fmrl.errors import FMRLError

SLICE = 32  # meta-iterations between looks at the clock on a GPU
Each = Callable[["MetaTrainer"], Any]


class MetaTrainer:
    """Meta-train ``module``: play each task from phi with ``within``, take ``update`` of it, move
    phi by ``meta``.

    theta_t = within(phi_t; task t) · phi_{t+1} = meta({theta_s}_{s≤t}) · eta_t = D_t/(G·√m) where
    ``similarity`` guesses D_t. Reptile is ``MetaTrainer(net, Adam(1e-3), FLIOnline(),
    Interpolate(1.0, 0.0, 20_000), meta_batch=5)``.

    module: one network, or a list of R of them with one architecture: then R independent runs are
    trained side by side.
    within: `SGD` or `Adam`, or a list of R that differ in ``step`` alone. update: FLIOnline (last
    iterate), FLIBatch (average) or LongRun(steps). meta: Interpolate, FollowLeader, AdaptiveOGD or
    any meta-update of the core. similarity: None for the fixed step of ``within``, else Doubling,
    AverageDeviation or Known. runs: R copies of one module. path: "auto", "fused" (Triton kernels),
    "by hand" (no autograd), "stacked" (batched products) or "functional" (torch.func, any module).
    precision on CUDA: of the kernels "bf16", "tf32" or "ieee" (float32), of other products tf32
    unless "ieee".
    piece: tasks that go through the network at once (default all; halved when memory runs out).
    seed: which stretch of a task sequence is played; runs that share a sequence play seed, seed +
    1, …, so that they are independent. ranks: `Ranks.start()` under torchrun, to share every
    meta-batch among processes.

    >>> from fmrl.deep import Arrays, SGD
    >>> tasks = Arrays([(torch.eye(2), [0, 1]), (torch.eye(2), [1, 0])], batch=2, steps=5)
    >>> trainer = MetaTrainer(nn.Linear(2, 2), SGD(0.5), meta=Interpolate(1.0, 0.0, 10), meta_batch=2)
    >>> trainer.fit(tasks, 10).iteration
    10
    """

    def __init__(
        self, module: nn.Module | Sequence[nn.Module], within: Any = None, update: Any = None, meta: Any = None,
        similarity: Any = None, *, meta_batch: int = 5, runs: int | None = None, seed: int = 0, device: Any = None,
        loss: Loss = cross_entropy, path: str = "auto", precision: str = "bf16", piece: int | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        settings(path, precision, seed, meta_batch=meta_batch, runs=runs, piece=piece)
        modules, withins, device = side_by_side(module, within or Adam(), runs, device)
        self.module, self.layout = modules[0], Layout.of(modules[0])
        self.within, self.update, self.meta = (
            withins[0],
            update or FLIOnline(),
            meta or Interpolate(1.0, 0.0, 20_000),
        )
        if not hasattr(self.meta, "update"):
            raise FMRLError(
                f"meta={self.meta!r} is not a meta-update",
                fix="give Interpolate, FollowLeader or AdaptiveOGD",
            )
        self.similarity, self.meta_batch, self.runs, self.seed = (
            similarity,
            meta_batch,
            len(modules),
            int(seed),
        )
        self.device, self.loss, self.path, self.precision, self.piece = (
            device,
            loss,
            path,
            precision,
            piece,
        )
        flat = torch.stack([self.layout.flat(m) for m in modules]).to(device)
        self.ranks, (_, self.own) = ranks, shared(ranks, meta_batch)
        if ranks is not None:
            ranks.same(flat)
            if ranks.world > 1 and type(similarity) not in (
                type(None),
                Known,
                Doubling,
                AverageDeviation,
            ):
                raise FMRLError(
                    f"ranks know how far tasks ended from phi, not where, and {similarity!r} may ask",
                    fix="use one of the library's",
                )
            if ranks.world > 1 and isinstance(self.within, Adam) and self.within.carry == "in turn":
                raise FMRLError(
                    f"{self.within!r}: moments that pass from task to task cannot be shared",
                    fix="use carry=True",
                )
        self.level = MetaLevel(self.within, self.update, self.meta, similarity)
        self.state = self.level.init(flat)
        self.rates = torch.tensor([w.step or 1.0 for w in withins], dtype=flat.dtype, device=device)
        self.losses: list[torch.Tensor] = []  # [iterations, R] per chunk
        self.loop: InnerLoop | None = None
        self.engine: MetaIteration | None = None
        self.order: torch.Tensor | None = None  # of state's parameters: None is the module's
        self._shape: tuple = ()

    def __repr__(self):
        values = ", ".join(
            f"{n}={getattr(self, n)!r}"
            for n in ("within", "update", "meta", "similarity", "meta_batch", "runs", "seed")
        )
        return f"MetaTrainer({type(self.module).__name__} of {self.layout.size:,} parameters, {values}, iteration={self.iteration})"

    @property
    def iteration(self) -> int:
        """Meta-iterations done."""
        return self.state.iteration

    @property
    def phi(self) -> torch.Tensor:
        """The initialisation in the module's own order, [R, P]."""
        return self._from_loop(self.state.phi)

    @property
    def second(self) -> torch.Tensor | None:
        """Adam's carried second moments in the module's own order, [R, P]; None when nothing is
        carried.
        """
        carried = isinstance(self.within, Adam) and self.within.carry
        return self._from_loop(self.state.second) if carried else None

    @property
    def count(self) -> int:
        """Inner steps behind the carried moments."""
        return self.state.taken if self.second is not None else 0

    @property
    def eta(self) -> torch.Tensor:
        """Inner step of the next task, [R]."""
        return self.level.eta(self.state.guess, self.layout.size, self.rates)

    def trained(self, run: int = 0) -> nn.Module:
        """A plain module that starts at run ``run``'s phi."""
        if not 0 <= run < self.runs:
            raise FMRLError(f"run={run}: there are {self.runs} runs, counted from 0")
        return self.layout.module(self.module, self.phi[run])

    def fit(
        self, tasks: Tasks | Sequence[Tasks], iterations: int, *, each: Each | Sequence[Each] | None = None,
        every: int | None = None, seconds: float | None = None,
    ) -> MetaTrainer:  # fmt: skip
        """Go on until ``iterations`` meta-iterations are done in all, or ``seconds`` are over; task
        numbers continue where they were.

        tasks: one sequence, or one for each run (over one table). each: called with the trainer
        after every ``every`` meta-iterations (counted from the first one ever) and when it stops:
        to log, evaluate or checkpoint; one function or several. Ctrl-C leaves the trainer as it was
        after the last whole meta-iteration (on a GPU, of the last few), ready to be saved."""
        sources = list(tasks) if isinstance(tasks, (list, tuple)) else [tasks] * self.runs
        if not all(hasattr(s, "draw") and hasattr(s, "inputs") for s in sources):
            raise FMRLError(
                "tasks must be drawn by number",
                fix="give pool.tasks(…), or Arrays([(X, y), …], batch=…, steps=…)",
            )
        whole(0, iterations=iterations)
        whole(1, every=1 if every is None else every)
        calls = list(each) if isinstance(each, (list, tuple)) else [] if each is None else [each]
        for source in sources:
            sequence(source, self.module, self.loop)
        if len(sources) != self.runs or any(s.inputs is not sources[0].inputs for s in sources):
            raise FMRLError(
                f"{self.runs} runs need {self.runs} task sequences over one table of inputs"
            )
        if len({(s.steps, s.batch) for s in sources}) > 1:
            raise FMRLError(
                "runs side by side need tasks with the same steps and batch",
                fix="train them one after the other",
            )
        rounds, targets = sources[0].steps, sources[0].draw(0, 1)[1]
        kind = targets.dtype, targets.shape[3:]
        sources = self.update.longer(sources) if isinstance(self.update, LongRun) else sources
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.iteration < iterations:
            self._prepare(sources, rounds, kind)
            stop = (
                iterations
                if every is None
                else min(iterations, (self.iteration // every + 1) * every)
            )
            late = False
            while self.iteration < stop and not late:
                late = self._chunk(sources, min(self.engine.chunk, stop - self.iteration), deadline)
            if calls and (late or self.iteration == stop):
                self._finite(-1)
                for call in calls:
                    call(self)
            if late:
                break
        if self.losses:
            self._finite(-1)
        return self

    def _late(self, deadline: float | None) -> bool:
        late = deadline is not None and time.monotonic() > deadline
        return late if deadline is None or self.ranks is None else self.ranks.agree(late)

    def _chunk(self, sources: Sequence[Tasks], count: int, deadline: float | None = None) -> bool:
        """Up to ``count`` meta-iterations: draw their tasks in bulk, then replay, until time is
        over. Whether it is.
        """
        self.engine.load(sources, self.firsts(sources), count)
        size, first, late = (
            count if deadline is None else SLICE if self.device.type == "cuda" else 1,
            self.iteration,
            False,
        )
        try:
            while self.iteration < first + count and not late:
                self.engine.replay(min(size, first + count - self.iteration))
                if deadline is not None and self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                late = self._late(deadline)
        finally:
            self.losses.append(self.engine.losses[: self.iteration - first].clone())
        if len(self.losses) > 1:  # the chunk before, so that the device is not waited for
            self._finite(-2)
        return late

    def _finite(self, chunk: int) -> None:
        """Refuse to go on once a loss is no number."""
        bad = (~torch.isfinite(self.losses[chunk])).nonzero()
        if len(bad):
            first = self.iteration - sum(map(len, self.losses[chunk:]))
            raise FMRLError(
                f"the loss of run {int(bad[0, 1])} is no number at meta-iteration {first + int(bad[0, 0]) + 1}",
                fix="take a smaller step (or first guess), and look for NaN among the inputs",
            )

    def firsts(self, sources: Sequence[Tasks]) -> list[int]:
        """Each run's first task number: runs that share one sequence play different stretches of
        it.
        """
        shared = len({id(s) for s in sources}) == 1
        return [(self.seed + (r if shared else 0)) * STRETCH for r in range(self.runs)]

    def _prepare(
        self, sources: Sequence[Tasks], rounds: int | None = None, kind: Any = None
    ) -> None:
        """Buffers and the captured meta-iteration, unless those at hand fit; half as many tasks at
        once where memory runs out.
        """
        source = sources[0]
        steps, rounds = source.steps, rounds or source.steps
        object.__setattr__(self.level, "rounds", rounds)
        shape = (steps, rounds, source.batch, id(source.inputs), kind, self.piece)
        if self._shape == shape:
            return
        in_turn = isinstance(self.within, Adam) and self.within.carry == "in turn"
        self._put(None)
        self.loop = self.engine = None
        try:
            self.loop = InnerLoop(
                self.module, self.within, source.inputs, tasks=self.runs * (1 if in_turn else self.own), steps=steps,
                batch=source.batch, path=self.path, precision=self.precision, loss=self.loss, piece=self.piece,
                average=isinstance(self.update, FLIBatch), targets=source.draw(0, 1)[1],
            )  # fmt: skip
            for each in {id(s): s for s in sources}.values():
                self.loop.check(extent(each))
            self._put(self.loop.order)
            self.engine = MetaIteration(
                self.level, self.state, self.loop, self.meta_batch, self.rates, self.ranks
            )
        except torch.OutOfMemoryError:
            tasks = self.piece or (
                self.loop.piece if self.loop is not None else self.runs * self.own
            )
            if tasks == 1:
                raise
            self.piece, self._shape, self.loop = (tasks + 1) // 2, (), None
        if self.engine is None:  # outside the handler, whose traceback would hold the memory
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return self._prepare(sources, rounds, kind)
        self._shape = (*shape[:-1], self.piece)

    def _from_loop(self, values: torch.Tensor) -> torch.Tensor:
        if self.order is None:
            return values.clone()
        out = torch.empty_like(values)
        out[:, self.order] = values
        return out

    def _put(self, order: torch.Tensor | None) -> None:
        """Keep the state's parameters in ``order`` from now on."""
        for name in ("phi", "second"):
            values = getattr(self.state, name)
            if values is not None:
                values = self._from_loop(values)
                setattr(
                    self.state, name, values if order is None else values[:, order].contiguous()
                )
        self.order = order

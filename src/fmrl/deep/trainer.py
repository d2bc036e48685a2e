"""MetaTrainer: Algorithm 2 on the parameters of a network, many tasks and many runs at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fmrl.core.errors import FMRLError
from fmrl.core.meta import Interpolate
from fmrl.core.similarity import AverageDeviation, Doubling, Known
from fmrl.core.update import FLIBatch, FLIOnline
from fmrl.deep.checks import extent, sequence
from fmrl.deep.inner import InnerLoop, Loss, cross_entropy
from fmrl.deep.iteration import CHUNK, STRETCH, MetaIteration
from fmrl.deep.layout import Layout
from fmrl.deep.ranks import Ranks, shared
from fmrl.deep.state import LongRun, MetaLevel
from fmrl.deep.tasks import Tasks
from fmrl.deep.within import Adam


class MetaTrainer:
    """Meta-train ``module``: play each task from phi with ``within``, take ``update`` of it, move phi by ``meta``.

    theta_t = within(phi_t; task t) · phi_{t+1} = meta({theta_s}_{s≤t}) · eta_t = D_t/(G·√m) where ``similarity`` guesses D_t.
    Reptile is ``MetaTrainer(net, Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 20_000), meta_batch=5)``.

    module: one network, or a list of R of them with one architecture: then R independent runs are trained side by side.
    within: `SGD` or `Adam`, or a list of R that differ in ``step`` alone. update: FLIOnline (last iterate), FLIBatch (average) or
    LongRun(steps). meta: Interpolate, FollowLeader, AdaptiveOGD or any meta-update of the core. similarity: None for the fixed step
    of ``within``, else Doubling, AverageDeviation or Known. runs: R copies of one module. path: "auto", "fused" (Triton kernels),
    "by hand" (no autograd), "stacked" (batched products) or "functional" (torch.func, any module). precision on CUDA: of the kernels
    "bf16", "tf32" or "ieee" (float32), of other products tf32 unless "ieee".
    piece: tasks that go through the network at once (default all; halved when memory runs out). seed: which stretch of a task
    sequence is played; runs that share a sequence play seed, seed + 1, …, so that they are independent. ranks: `Ranks.start()` under
    torchrun, to share every meta-batch among processes.

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
        modules = [module] if isinstance(module, nn.Module) else list(module)
        device = torch.device(device or next(modules[0].parameters()).device)
        modules = [m.to(device) for m in modules] * (runs or 1 if len(modules) == 1 else 1)
        withins = list(within) if isinstance(within, (list, tuple)) else [within or Adam()] * len(modules)
        if meta_batch < 1 or len(withins) != len(modules) or (runs and runs != len(modules)):
            raise FMRLError("there must be one module and one within for every run, and a task in every meta-batch")
        self.module, self.layout = modules[0], Layout.of(modules[0])
        if any(Layout.of(m) != self.layout for m in modules):
            raise FMRLError("runs side by side need one architecture")
        self.within, self.update, self.meta = withins[0], update or FLIOnline(), meta or Interpolate(1.0, 0.0, 20_000)
        self.similarity, self.meta_batch, self.runs, self.seed = similarity, meta_batch, len(modules), seed
        self.device, self.loss, self.path, self.precision, self.piece = device, loss, path, precision, piece
        flat = torch.stack([self.layout.flat(m) for m in modules]).to(device)
        self.ranks, (_, self.own) = ranks, shared(ranks, meta_batch)
        if ranks is not None:
            ranks.same(flat)
            if ranks.world > 1 and type(similarity) not in (type(None), Known, Doubling, AverageDeviation):
                raise FMRLError(
                    f"ranks know how far tasks ended from phi, not where, and {similarity!r} may ask",
                    fix="use one of the library's",
                )
            if ranks.world > 1 and isinstance(self.within, Adam) and self.within.carry == "in turn":
                raise FMRLError(f"{self.within!r}: moments that pass from task to task cannot be shared", fix="use carry=True")
        self.level = MetaLevel(self.within, self.update, self.meta, similarity)
        self.state = self.level.init(flat)
        self.rates = torch.tensor([w.step or 1.0 for w in withins], dtype=flat.dtype, device=device)
        self.losses: list[torch.Tensor] = []  # [iterations, R] per chunk
        self.loop: InnerLoop | None = None
        self.engine: MetaIteration | None = None
        self.order: torch.Tensor | None = None  # of state's parameters: None is the module's
        self._shape: tuple = ()

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
        """Adam's carried second moments in the module's own order, [R, P]; None when nothing is carried."""
        carried = isinstance(self.within, Adam) and self.within.carry
        return self._from_loop(self.state.second) if carried else None

    @property
    def count(self) -> int:
        """Inner steps behind the carried moments."""
        steps = self.update.steps if isinstance(self.update, LongRun) else self.level.rounds
        return self.iteration * self.meta_batch * steps if self.second is not None else 0

    @property
    def eta(self) -> torch.Tensor:
        """Inner step of the next task, [R]."""
        return self.level.eta(self.state.guess, self.layout.size, self.rates)

    def trained(self, run: int = 0) -> nn.Module:
        """A plain module that starts at run ``run``'s phi."""
        return self.layout.module(self.module, self.phi[run])

    def fit(
        self, tasks: Tasks | Sequence[Tasks], iterations: int, *, each: Callable[[MetaTrainer], None] | None = None,
        every: int | None = None, seconds: float | None = None,
    ) -> MetaTrainer:  # fmt: skip
        """Go on until ``iterations`` meta-iterations are done in all, or ``seconds`` are over; task numbers continue where they were.

        tasks: one sequence, or one for each run (over one table). each: called with the trainer after every ``every``
        meta-iterations (counted from the first one ever) and at the end: to log, evaluate or checkpoint.
        """
        sources = list(tasks) if isinstance(tasks, (list, tuple)) else [tasks] * self.runs
        for source in sources:
            sequence(source, self.module)
        if len(sources) != self.runs or any(s.inputs is not sources[0].inputs for s in sources):
            raise FMRLError(f"{self.runs} runs need {self.runs} task sequences over one table of inputs")
        if len({(s.steps, s.batch) for s in sources}) > 1:
            raise FMRLError("runs side by side need tasks with the same steps and batch", fix="train them one after the other")
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.iteration < iterations:
            self._prepare(sources)
            stop = iterations if every is None else min(iterations, (self.iteration // every + 1) * every)
            while self.iteration < stop:
                self._chunk(sources, min(CHUNK, stop - self.iteration))
                if self._late(deadline):
                    break
            if each is not None and (self.iteration == iterations or (every and self.iteration % every == 0)):
                each(self)
            if self._late(deadline):
                break
        return self

    def _late(self, deadline: float | None) -> bool:
        late = deadline is not None and time.monotonic() > deadline
        return late if deadline is None or self.ranks is None else self.ranks.agree(late)

    def _chunk(self, sources: Sequence[Tasks], count: int) -> None:
        """``count`` meta-iterations: draw their tasks in bulk, then replay."""
        self.engine.load(sources, self.firsts(sources), count)
        self.engine.replay(count)
        self.losses.append(self.engine.losses[:count].clone())

    def firsts(self, sources: Sequence[Tasks]) -> list[int]:
        """Each run's first task number: runs that share one sequence play different stretches of it."""
        shared = len({id(s) for s in sources}) == 1
        return [(self.seed + (r if shared else 0)) * STRETCH for r in range(self.runs)]

    def _prepare(self, sources: Sequence[Tasks]) -> None:
        """Buffers and the captured meta-iteration, unless those at hand fit; half as many tasks at once where memory runs out."""
        source = sources[0]
        steps = self.update.steps if isinstance(self.update, LongRun) else source.steps
        shape = (steps, source.batch, id(source.inputs), self.piece)
        if self._shape == shape:
            return
        if isinstance(self.update, LongRun) and source.steps != steps:
            raise FMRLError(f"{self.update!r} needs tasks drawn with steps={steps}, not {source.steps}")
        object.__setattr__(self.level, "rounds", source.steps)
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
            self.engine = MetaIteration(self.level, self.state, self.loop, self.meta_batch, self.rates, self.ranks)
        except torch.OutOfMemoryError:
            tasks = self.piece or (self.loop.piece if self.loop is not None else self.runs * self.own)
            if tasks == 1:
                raise
            self.piece, self._shape, self.loop = (tasks + 1) // 2, (), None
        if self.engine is None:  # outside the handler, whose traceback would hold the memory
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return self._prepare(sources)
        self._shape = (*shape[:3], self.piece)

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
                setattr(self.state, name, values if order is None else values[:, order].contiguous())
        self.order = order

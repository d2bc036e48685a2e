"""MetaTrainer: Algorithm 2 on the parameters of a network, many tasks and many runs at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fmrl.core.errors import FMRLError
from fmrl.core.meta import Interpolate
from fmrl.core.update import FLIBatch, FLIOnline
from fmrl.deep.inner import InnerLoop, Loss, capture, cross_entropy
from fmrl.deep.layout import Layout
from fmrl.deep.ranks import Ranks, shared
from fmrl.deep.state import LongRun, MetaLevel
from fmrl.deep.tasks import Tasks
from fmrl.deep.within import Adam

CHUNK = 256  # meta-iterations whose tasks are drawn at once


class MetaTrainer:
    """Meta-train ``module``: play each task from phi with ``within``, take ``update`` of it, move phi by ``meta``.

    theta_t = within(phi_t; task t) · phi_{t+1} = meta({theta_s}_{s≤t}) · eta_t = D_t/(G·√m) where ``similarity`` guesses D_t.
    Reptile is ``MetaTrainer(net, Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 20_000), meta_batch=5)``.

    module: one network, or a list of R of them with one architecture: then R independent runs are trained side by side.
    within: `SGD` or `Adam`, or a list of R that differ in ``step`` alone. update: FLIOnline (last iterate), FLIBatch (average) or
    LongRun(steps). meta: Interpolate, FollowLeader, AdaptiveOGD or any meta-update of the core. similarity: None for the fixed step
    of ``within``, else Doubling, AverageDeviation or Known. runs: R copies of one module. path: "auto", "fused" (Triton kernels),
    "stacked" (batched products) or "functional" (torch.func, any module). precision of the kernels: "bf16", "tf32" or "ieee" (float32).
    piece: tasks that go through the network at once (default all; halved when memory runs out). ranks: `Ranks.start()` under
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
        self.ranks, (self.mine, self.own) = ranks, shared(ranks, meta_batch)
        if ranks is not None:
            ranks.same(flat)
        self.level = MetaLevel(self.within, self.update, self.meta, similarity)
        self.state = self.level.init(flat)
        self.rates = torch.tensor([w.step or 1.0 for w in withins], dtype=flat.dtype, device=device)
        self.losses: list[torch.Tensor] = []  # [iterations, R] per chunk
        self.loop: InnerLoop | None = None
        self.order: torch.Tensor | None = None  # of state's parameters: None is the module's
        self._shape: tuple = ()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

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
        self._load(sources, count)
        self._replay(count)
        self.losses.append(self._losses[:count].clone())

    def _replay(self, count: int) -> None:
        for _ in range(count):
            self._iterate()
        self.state.iteration += count

    def _load(self, sources: Sequence[Tasks], count: int) -> None:
        """Draw the tasks of the next ``count`` meta-iterations. Nothing here waits for the device."""
        level, K, steps = self.level, self.meta_batch, self.loop.steps
        with self._aside():
            drawn = [s.draw(self.iteration * K, count * K) for s in sources]
        for table, parts in zip((self._index, self._label), zip(*drawn, strict=True), strict=True):
            stacked = torch.stack([p.unflatten(0, (count, K))[:, self.mine] for p in parts], 1)  # [count, R, K, steps, batch]
            table[:count].copy_(stacked.flatten(1, 2).transpose(1, 2))
        if self._side is not None:  # the next draw may use this memory again once it has been copied
            self._side.wait_stream(torch.cuda.current_stream(self.device))
        if isinstance(self.state.meta, int):
            fractions = []
            for _ in range(count):
                fraction, self.state.meta = level.fraction(self.state.meta, K)
                fractions.append(fraction)
            self._send(self._fraction, torch.tensor(fractions, dtype=torch.float64)[:, None].expand(-1, self.runs))
        before = torch.arange(self.iteration, self.iteration + count) * (K * steps if self.second is not None else 0)
        self._send(self._bias, self.loop.bias_at(before[:, None]))
        self._at.zero_()

    def _send(self, table: torch.Tensor, values: torch.Tensor) -> None:
        values = values.to(table.dtype).contiguous()
        table[: len(values)].copy_(values.pin_memory() if table.is_cuda else values, non_blocking=True)

    @contextmanager
    def _aside(self):
        """A stream of its own for drawing tasks, which copies small tables from the host and would wait for the training."""
        if self.device.type != "cuda":
            yield
            return
        main = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._side):
            yield
        main.wait_stream(self._side)

    def _prepare(self, sources: Sequence[Tasks]) -> None:
        """Buffers and the captured meta-iteration, unless those at hand fit."""
        source = sources[0]
        steps = self.update.steps if isinstance(self.update, LongRun) else source.steps
        shape = (steps, source.batch, id(source.inputs), self.piece)
        if self._shape == shape:
            return
        if isinstance(self.update, LongRun) and source.steps != steps:
            raise FMRLError(f"{self.update!r} needs tasks drawn with steps={steps}, not {source.steps}")
        object.__setattr__(self.level, "rounds", source.steps)
        self._put(None)
        targets = sources[0].draw(0, 1)[1].dtype
        self.loop = InnerLoop(
            self.module, self.within, source.inputs, tasks=self.runs * self.own, steps=steps, batch=source.batch,
            path=self.path, precision=self.precision, loss=self.loss, average=isinstance(self.update, FLIBatch), piece=self.piece,
            targets=targets,
        )  # fmt: skip
        self._put(self.loop.order)
        loop, R = self.loop, self.runs
        dtype, device = loop.theta.dtype, self.device
        self._index = torch.zeros(CHUNK, *loop.index.shape, dtype=torch.int64, device=device)
        self._label = torch.zeros(CHUNK, *loop.label.shape, dtype=targets, device=device)
        self._bias = torch.ones(CHUNK, steps, dtype=dtype, device=device)
        self._fraction = torch.zeros(CHUNK, R, dtype=dtype, device=device)
        self._losses = torch.zeros(CHUNK, R, dtype=dtype, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        kept = [t.clone() for t in self._tensors()]
        try:
            self._iterate = capture(self._body, device)
        except torch.cuda.OutOfMemoryError:
            if loop.piece == 1:
                raise
            self.piece, self._shape, self.loop = (loop.piece + 1) // 2, (), None
            del loop
            torch.cuda.empty_cache()
            for tensor, value in zip(self._tensors(), kept, strict=True):
                tensor.copy_(value)
            return self._prepare(sources)
        for tensor, value in zip(self._tensors(), kept, strict=True):  # capturing moved them
            tensor.copy_(value)
        self._shape = shape

    def _body(self) -> None:
        """One meta-iteration, on buffers alone, so that it can be captured."""
        loop, state, level, R, K = self.loop, self.state, self.level, self.runs, self.own
        loop.index.copy_(self._index.index_select(0, self._at)[0])
        loop.label.copy_(self._label.index_select(0, self._at)[0])
        loop.bias.copy_(self._bias.index_select(0, self._at)[0])
        loop.theta.view(R, K, -1).copy_(state.phi[:, None].expand(-1, K, -1))
        loop.eta.view(R, K).copy_(level.eta(state.guess, self.layout.size, self.rates)[:, None].expand(-1, K))
        carried = isinstance(self.within, Adam) and self.within.carry
        if carried:
            loop.second.view(R, K, -1).copy_(state.second[:, None].expand(-1, K, -1))
        elif loop.second is not None:
            loop.second.zero_()
        if loop.average is not None:
            loop.average.zero_()
        loop.play()
        ends = loop.theta if loop.average is None else loop.average / loop.steps
        fraction = self._fraction.index_select(0, self._at)[0] if isinstance(state.meta, int) else None
        losses = loop.losses.view(loop.steps, R, K).mean((0, 2))
        if self.ranks is not None:
            second = loop.second.view(R, K, -1) if carried else None
            losses = self.ranks.meet(
                level, state, ends.view(R, K, -1), second, K * losses, self.meta_batch, loop.steps, fraction
            )
        else:
            level.advance(state, ends.view(R, K, -1), fraction)
            if carried:
                level.carry(state.second, loop.second.view(R, K, -1), loop.steps)
        self._losses.index_copy_(0, self._at, losses[None])
        self._at += 1

    def _tensors(self) -> list[torch.Tensor]:
        """Every tensor of the state."""
        found: list[torch.Tensor] = []

        def collect(value):
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif isinstance(value, tuple):
                for v in value:
                    collect(v)

        for name in ("phi", "second", "guess", "meta", "similarity"):
            collect(getattr(self.state, name))
        return found

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

"""MetaTrainer: Algorithm 2 on a network's parameters, and callbacks that watch its `fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fmrl.core.rules.meta import Interpolate
from fmrl.core.rules.update import FLIOnline
from fmrl.deep.checks import extent, sequence, side_by_side, whole
from fmrl.deep.engines.fused import PRECISIONS
from fmrl.deep.engines.inner import PATHS, InnerLoop, in_module_order
from fmrl.deep.engines.iteration import STRETCH, MetaIteration
from fmrl.deep.evaluation import Variety
from fmrl.deep.losses import Loss, ask_finite, cross_entropy
from fmrl.deep.meta_level import MetaLevel, mapped
from fmrl.deep.networks import Layout, present
from fmrl.deep.ranks import Ranks, shared
from fmrl.deep.tasks import Tasks
from fmrl.deep.within import Adam, warn_unused
from fmrl.errors import FMRLError

SLICE = 32  # meta-iterations between looks at the clock on a GPU
SHOWN = ("within", "update", "meta", "similarity", "meta_batch", "runs", "seed")
Each = Callable[["MetaTrainer"], Any]


class MetaTrainer:
    """Meta-train a network: Algorithm 2 with its parameters as one flat vector.

    theta_t = within(phi_t; task t) · phi_{t+1} = meta({theta_s}_{s≤t}) · eta_t = D_t/(G·√m) where
    ``similarity`` guesses D_t, or the step itself where the rule learns that. Reptile is
    ``MetaTrainer(net, Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 20_000), meta_batch=5)``.

    Args:
        module: One network, or a list of R of them with one architecture: then R independent runs
            are trained side by side.
        within: `SGD` or `Adam`, or a list of R that differ in ``step`` alone. Default ``Adam()``.
        update: FLIOnline (last iterate, the default), FLIBatch (average), LongRun(steps), or any
            update rule of the core that does not need the optimum.
        meta: Interpolate (the default), FollowLeader, AdaptiveOGD or any meta-update of the core.
        similarity: None for the fixed step of ``within``, or a similarity rule of the core:
            Doubling, AverageDeviation, Known; with `SGD` also Isotropic, and PerCoordinate, which
            learns a step for every parameter (ARUBA). It sets the step from the first task on: one
            given to ``within`` too is not used, and a warning says so.
        meta_batch: Tasks of a meta-iteration, which all start from the same phi.
        runs: R copies of one module.
        seed: Which stretch of a task sequence is played. Runs that share a sequence play seed,
            seed + 1, …, so that they are independent.
        device: Where to train. Default: where the module is.
        loss: Of outputs [T, B, ...] and targets [T, B, ...]; returns [T].
        path: "auto", "fused" (Triton kernels), "by hand" (no autograd), "stacked" (batched
            products) or "functional" (torch.func, any module).
        precision: On CUDA. Of the kernels "bf16", "tf32" or "ieee" (float32); of other products
            tf32 unless "ieee".
        piece: Tasks that go through the network at once (default all; halved when memory runs out).
        ranks: `Ranks.start()` under torchrun, to share every meta-batch among processes.

    >>> from fmrl.deep import Arrays, SGD
    >>> tasks = Arrays([(torch.eye(2), [0, 1]), (torch.eye(2), [1, 0])], batch=2, steps=5)
    >>> meta = Interpolate(1.0, 0.0, 10)
    >>> MetaTrainer(nn.Linear(2, 2), SGD(0.5), meta=meta, meta_batch=2).fit(tasks, 10).iteration
    10
    """

    def __init__(
        self, module: nn.Module | Sequence[nn.Module], within: Any = None, update: Any = None,
        meta: Any = None, similarity: Any = None, *, meta_batch: int = 5, runs: int | None = None,
        seed: int = 0, device: Any = None, loss: Loss = cross_entropy, path: str = "auto",
        precision: str = "bf16", piece: int | None = None, ranks: Ranks | None = None,
    ):  # fmt: skip
        if path not in PATHS or precision not in PRECISIONS:
            fix = f"a path is one of {PATHS}, a precision one of {PRECISIONS}"
            raise FMRLError(f"path={path!r}, precision={precision!r}", fix=fix)
        sizes = {"meta_batch": meta_batch, "runs": runs, "piece": piece}
        whole(1, **{name: size for name, size in sizes.items() if size is not None})
        whole(0, seed=seed)
        if seed >= 2**30:
            raise FMRLError(f"seed={seed!r} must be below 2**30")
        modules, withins, self.device = side_by_side(module, within or Adam(), runs, device)
        self.module, self.layout, self.runs = modules[0], Layout.of(modules[0]), len(modules)
        self.within, self.update, self.similarity = withins[0], update or FLIOnline(), similarity
        self.meta = meta or Interpolate(1.0, 0.0, 20_000)
        self.meta_batch, self.seed, self.loss = meta_batch, int(seed), loss
        self.path, self.precision, self.piece, self.ranks = path, precision, piece, ranks
        self.own = shared(ranks, meta_batch)[1]
        self.level = MetaLevel(self.within, self.update, self.meta, similarity)
        flat = torch.stack([self.layout.flat(m) for m in modules]).to(self.device)
        if ranks is not None:
            ranks.check(self.within, similarity)
            ranks.same(flat)
        self.first, self.variety = flat, None  # where training begins; what it was trained on
        self.state = self.level.init(flat)
        self.rates = flat.new_tensor([w.step or 1.0 for w in withins])
        warn_unused(self.within, similarity)
        self.losses: list[torch.Tensor] = []  # [iterations, R] per chunk
        self.played: dict[int, Tasks] = {}  # sequences from pools that were trained on
        self.loop: InnerLoop | None = None
        self.engine: MetaIteration | None = None
        self.order: torch.Tensor | None = None  # of state's parameters: None is the module's
        self._shape: tuple = ()

    def __repr__(self):
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in SHOWN)
        net = f"{type(self.module).__name__} of {self.layout.size:,} parameters"
        return f"MetaTrainer({net}, {values}, iteration={self.iteration})"

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
        """Adam's carried second moments in the module's own order, [R, P]; None if not carried."""
        return self._from_loop(self.state.second) if self.within.carry else None

    @property
    def count(self) -> int:
        """Inner steps behind the carried moments."""
        return self.state.taken if self.within.carry else 0

    @property
    def eta(self) -> torch.Tensor:
        """Inner step of the next task, [R]; [R, P] in the module's own order where a rule learns
        one for every parameter.
        """
        return self._from_loop(self.level.eta(self.state.guess, self.layout.size, self.rates))

    def trained(self, run: int = 0) -> nn.Module:
        """A plain module that starts at run ``run``'s phi."""
        if not 0 <= run < self.runs:
            raise FMRLError(f"run={run}: there are {self.runs} runs, counted from 0")
        return self.layout.module(self.module, self.phi[run])

    def fit(
        self, tasks: Tasks | Sequence[Tasks], iterations: int, *,
        each: Each | Sequence[Each] | None = None, every: int | None = None,
        seconds: float | None = None,
    ) -> MetaTrainer:  # fmt: skip
        """Go on until ``iterations`` meta-iterations are done in all.

        A second call goes on where the first one stopped; task numbers continue. Ctrl-C leaves the
        trainer as it was after the last whole meta-iteration (on a GPU, of the last few), ready to
        be saved.

        Args:
            tasks: One sequence, or one for each run (over one table).
            iterations: Meta-iterations in all, counted from the first one ever.
            each: One function or several, called with the trainer after every ``every``
                meta-iterations and when it stops: to log, evaluate or checkpoint.
            every: Meta-iterations between two calls of ``each``.
            seconds: Stop when they are over.
        """
        sources = list(tasks) if isinstance(tasks, (list, tuple)) else [tasks] * self.runs
        whole(0, iterations=iterations)
        whole(1, every=1 if every is None else every)
        calls = list(each) if isinstance(each, (list, tuple)) else [] if each is None else [each]
        self._check(sources)
        rounds, targets = sources[0].steps, sources[0].draw(0, 1)[1]
        kind = targets.dtype, targets.shape[3:]
        if hasattr(self.update, "longer"):
            sources = self.update.longer(sources)
        deadline, late = None if seconds is None else time.monotonic() + seconds, False
        asked = None  # whether the last losses are finite
        while self.iteration < iterations and not late:
            self._prepare(sources, rounds, kind)
            due = iterations if every is None else (self.iteration // every + 1) * every
            stop = min(iterations, due)
            while self.iteration < stop and not late:
                late = self._chunk(sources, min(self.engine.chunk, stop - self.iteration), deadline)
                before, asked = asked, ask_finite(self.losses[-1])
                if before is not None and not before():  # meanwhile the device has the next chunk
                    self._finite(-2)
            if calls:
                self._finite(-1)
                for call in calls:
                    call(self)
        if self.losses:
            self._finite(-1)
        return self

    def _check(self, sources: list[Tasks]) -> None:
        """Refuse sequences that are not tasks, or that cannot be played side by side."""
        if not all(hasattr(s, "draw") and hasattr(s, "inputs") for s in sources):
            fix = "give pool.tasks(…), or Arrays([(X, y), …], batch=…, steps=…)"
            raise FMRLError("tasks must be drawn by number", fix=fix)
        for source in sources:
            sequence(source, self.module, self.loop)
        if len(sources) != self.runs or any(s.inputs is not sources[0].inputs for s in sources):
            raise FMRLError(f"{self.runs} runs need as many task sequences over one table")
        if len({(s.steps, s.batch) for s in sources}) > 1:
            what = "runs side by side need tasks with the same steps and batch"
            raise FMRLError(what, fix="train them one after the other")

    def _late(self, deadline: float | None) -> bool:
        late = deadline is not None and time.monotonic() > deadline
        return late if deadline is None or self.ranks is None else self.ranks.agree(late)

    def _chunk(self, sources: Sequence[Tasks], count: int, deadline: float | None = None) -> bool:
        """Draw the tasks of ``count`` meta-iterations and replay them; whether time is over."""
        self.engine.load(sources, self.firsts(sources), count)
        first, late, cuda = self.iteration, False, self.device.type == "cuda"
        size = count if deadline is None else SLICE if cuda else 1
        try:
            while self.iteration < first + count and not late:
                self.engine.replay(min(size, first + count - self.iteration))
                if deadline is not None and cuda:
                    torch.cuda.synchronize(self.device)
                late = self._late(deadline)
        finally:
            self.losses.append(self.engine.losses[: self.iteration - first].clone())
        return late

    def _finite(self, chunk: int) -> None:
        """Refuse to go on once a loss is not a finite number."""
        bad = (~torch.isfinite(self.losses[chunk])).nonzero()
        if len(bad):
            at = self.iteration - sum(map(len, self.losses[chunk:])) + int(bad[0, 0]) + 1
            what = f"the loss of run {int(bad[0, 1])} is not a finite number at meta-iteration {at}"
            fix = "look for NaN among the inputs, or take a smaller step or first guess; begin anew"
            raise FMRLError(what, fix=fix)

    def firsts(self, sources: Sequence[Tasks]) -> list[int]:
        """Each run's first task number: runs that share a sequence play other stretches of it."""
        shared = len({id(s) for s in sources}) == 1
        return [(self.seed + (r if shared else 0)) * STRETCH for r in range(self.runs)]

    def _prepare(
        self, sources: Sequence[Tasks], rounds: int | None = None, kind: Any = None
    ) -> None:
        """Make buffers and the captured meta-iteration, unless those at hand fit.

        Where memory runs out, half as many tasks go through the network at once.
        """
        self.variety = Variety.of(sources)
        self.played |= {id(s.episodes): s for s in sources if hasattr(s, "episodes")}
        source, in_turn = sources[0], self.within.carry == "in turn"
        steps, batch, rounds = source.steps, source.batch, rounds or source.steps
        shape = (steps, rounds, batch, id(source.inputs), kind, present(self.module), self.piece)
        if self._shape == shape:
            return
        self.level = replace(self.level, rounds=rounds)
        self._put(None)
        self.loop = self.engine = None
        tasks = self.runs * (1 if in_turn else self.own)
        try:
            self.loop = InnerLoop(
                self.module, self.within, source.inputs, tasks=tasks, steps=steps, batch=batch,
                path=self.path, precision=self.precision, loss=self.loss, piece=self.piece,
                average=self.level.averages, targets=source.draw(0, 1)[1],
                shaped=self.state.guess.ndim == 2, observe=rounds if self.level.observes else 0,
            )  # fmt: skip
            for each in {id(s): s for s in sources}.values():
                self.loop.check(extent(each))
            self._put(self.loop.order)
            self.engine = MetaIteration(
                self.level, self.state, self.loop, self.meta_batch, self.rates, self.ranks
            )
        except torch.OutOfMemoryError:
            held = self.piece or (self.runs * self.own if self.loop is None else self.loop.piece)
            if held == 1:
                raise
            self.piece, self._shape, self.loop = (held + 1) // 2, (), None
        if self.engine is None:  # outside the handler, whose traceback would hold the memory
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return self._prepare(sources, rounds, kind)
        self._shape = (*shape[:-1], self.piece)

    def _from_loop(self, values: torch.Tensor) -> torch.Tensor:
        """A copy in the module's order; what is not of phi's shape [R, P] has no order."""
        if self.order is None or values.shape != self.state.phi.shape:
            return values.clone()
        return in_module_order(values, self.order)

    def _put(self, order: torch.Tensor | None) -> None:
        """Keep phi, moments and what rules remember of phi's shape in ``order`` from now on."""

        def turned(values: torch.Tensor) -> torch.Tensor:
            own, shaped = self._from_loop(values), values.shape == self.state.phi.shape
            return own[:, order].contiguous() if shaped and order is not None else own

        state, names = self.state, ("meta", "similarity", "guess", "second", "phi")
        for name, value in {n: mapped(getattr(state, n), turned) for n in names}.items():
            setattr(state, name, value)
        self.order = order


class TensorBoard:
    """Write the training loss, the step eta (its mean over parameters), a similarity rule's guess D
    and any metrics.

    Args:
        folder: Where TensorBoard's files go.
        metrics: Called with the trainer, returns {name: number}, e.g. of an evaluation.
    """

    def __init__(self, folder: str | Path, metrics: Any = None):
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.metrics, self.seen = SummaryWriter(str(folder)), metrics, 0

    def __call__(self, trainer: MetaTrainer) -> None:
        scalars = {"eta": trainer.eta.view(trainer.runs, -1).mean(1)}
        if len(trainer.losses) > self.seen:
            scalars["loss"] = torch.cat(trainer.losses[self.seen :]).mean(0)
            self.seen = len(trainer.losses)
        if trainer.similarity is not None and not trainer.level.absolute:  # else none is guessed
            scalars["guess"] = trainer.state.guess
        named = {f"{k}/{run}": v for k, vs in scalars.items() for run, v in enumerate(vs.tolist())}
        for name, value in (named | (self.metrics(trainer) if self.metrics else {})).items():
            self.writer.add_scalar(name, value, trainer.iteration)
        self.writer.flush()


class Progress:
    """Print a line each time: meta-iterations, loss, then task-steps per second and time left.

    Args:
        iterations: Meta-iterations in all.
        out: Called with each line.
    """

    def __init__(self, iterations: int, out: Any = print):
        self.iterations, self.out, self.start = iterations, out, None

    def __call__(self, trainer: MetaTrainer) -> None:
        now, done = time.monotonic(), trainer.iteration
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        line = f"{done:,}/{self.iterations:,}  loss {float(trainer.losses[-1].mean()):.4f}"
        if self.start is None:  # the time before the first call is not known
            self.start = (now, done)
        elif done > self.start[1]:
            speed = (done - self.start[1]) / max(now - self.start[0], 1e-9)
            rate = speed * trainer.runs * trainer.meta_batch * trainer.loop.steps
            line += f"  {rate:,.0f} task-steps/s  {(self.iterations - done) / speed:.0f} s left"
        self.out(line)

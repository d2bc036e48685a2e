"""Adaptation of phi to one task, from a trainer or from any module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from fmrl.core.rules.shape import Isotropic, PerCoordinate
from fmrl.deep.checks import extent, suited, table, whole
from fmrl.deep.engines.inner import InnerLoop, in_module_order
from fmrl.deep.losses import Loss, cross_entropy
from fmrl.deep.networks import Layout
from fmrl.deep.tasks import Arrays
from fmrl.deep.trainer import MetaTrainer
from fmrl.deep.within import Adam, Fading, known
from fmrl.deep.without import drawn_anew
from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False)
class Start:
    """What a test task starts from, for each of R chosen runs."""

    module: nn.Module
    within: Any
    loss: Loss
    phi: torch.Tensor  # [R, P]
    eta: torch.Tensor  # [R], or [R, P]
    second: torch.Tensor | None = None  # [R, P] Adam's carried moments; of `Fading`, g
    taken: int = 0  # steps behind them
    options: dict[str, Any] = field(default_factory=dict)  # path and precision

    @classmethod
    def of(
        cls, learner: MetaTrainer | nn.Module | Start, runs: Sequence[int] | None, within: Any,
        loss: Loss | None,
    ) -> Start:  # fmt: skip
        """The start of a trainer's ``runs`` (None: all), or of a module with a within and loss."""
        if isinstance(learner, Start):
            return learner
        if isinstance(learner, MetaTrainer):
            other = None if isinstance(within, Fading) else within
            for name, value in (("within", other), ("loss", loss)):
                if value is not None:
                    fix = "give trainer.trained() to use another"
                    raise FMRLError(f"a trainer adapts with its own {name}", fix=fix)
            own = range(learner.runs)
            chosen = list(own) if runs is None else list(runs)
            if not chosen or any(isinstance(r, bool) or r not in own for r in chosen):
                fix = f"choose from 0 to {learner.runs - 1}"
                raise FMRLError(f"there is no run {runs!r}", fix=fix)
            return cls.at(learner, chosen, within)
        if not isinstance(learner, nn.Module):
            raise FMRLError(f"{type(learner).__name__} is neither a MetaTrainer nor an nn.Module")
        if runs is not None and list(runs) != [0]:
            raise FMRLError("a module is one run", fix="leave runs out")
        within = known(within or Adam())
        if within.step is None:
            raise FMRLError(f"{within!r} has no step", fix="give step=")
        phi = Layout.of(learner).flat(learner)[None]
        return cls(learner, within, loss or cross_entropy, phi, phi.new_full((1,), within.step))

    @classmethod
    def at(
        cls, trainer: MetaTrainer, runs: Sequence[int], within: Any = None, first: bool = False
    ) -> Start:
        """Where a trainer's runs stand, or stood before any training (``first``).

        With `Fading` eta is √b and ``second`` is g.
        """
        state = trainer.level.init(trainer.first) if first else trainer.state
        own = trainer.level.eta(state.guess, trainer.layout.size, trainer.rates), state.phi

        def rows(values: torch.Tensor) -> torch.Tensor:
            return (values.clone() if first else trainer._from_loop(values))[list(runs)]

        (eta, phi), second, taken = map(rows, own), None, 0
        if isinstance(within, Fading):
            if not isinstance(trainer.similarity, (Isotropic, PerCoordinate)):
                what = f"{within!r} goes on from what Isotropic or PerCoordinate has added up"
                raise FMRLError(what, fix="give a trainer that has learned its step so")
            steep = rows(state.similarity[2]).to(phi.dtype)
            second = steep if steep.ndim == 2 else steep[:, None].expand_as(phi)
            eta = eta * steep.sqrt()
        elif trainer.within.carry and not first:
            second, taken = rows(state.second), trainer.count
        options = {"path": trainer.path, "precision": trainer.precision}
        rules = trainer.module, within or trainer.within, trainer.loss
        return cls(*rules, phi, eta, second, taken, options)

    def untrained(self, learner: Any, runs: Sequence[int] | None) -> Start | None:
        """The same before any training, of a module drawn anew; None where that is not known."""
        if isinstance(learner, MetaTrainer):
            chosen = range(learner.runs) if runs is None else runs
            return Start.at(learner, chosen, self.within, True) if learner.iteration else None
        fresh = drawn_anew(learner) if isinstance(learner, nn.Module) else None
        return None if fresh is None else replace(self, phi=Layout.of(fresh).flat(fresh)[None])

    def put(self, loop: InnerLoop, pick: torch.Tensor) -> None:
        """Set the loop's tasks to begin where runs ``pick`` [T] stand."""
        order = slice(None) if loop.order is None else loop.order
        loop.theta.copy_(self.phi[pick][:, order])
        if loop.second is not None and self.second is None:
            loop.second.zero_()
        elif loop.second is not None:
            loop.second.copy_(self.second[pick][:, order])
        loop.eta.copy_(self.eta[pick] if self.eta.ndim == 1 else self.eta[pick][:, order])
        loop.bias.copy_(loop.bias_at(self.taken))

    def loop(
        self, inputs: torch.Tensor, label: torch.Tensor, tasks: int, piece: int | None = None
    ) -> InnerLoop:
        """An inner loop of tasks whose targets look like ``label`` [·, steps, batch, ...]."""
        sizes = {"tasks": tasks, "steps": label.shape[1], "batch": label.shape[2], "piece": piece}
        options = sizes | self.options | {"shaped": self.eta.ndim == 2}
        return InnerLoop(self.module, self.within, inputs, loss=self.loss, targets=label, **options)


def ends(loop: InnerLoop) -> torch.Tensor:
    """theta [T, P] after the loop's steps, in the module's own order."""
    return in_module_order(loop.theta, loop.order)


def adapt(
    learner: MetaTrainer | nn.Module, X: Any, y: Any, steps: int = 50, *, batch: int | None = None,
    within: Any = None, run: int = 0, seed: int = 0, loss: Loss | None = None,
) -> nn.Module:  # fmt: skip
    """A plain nn.Module adapted to one task by inner steps from phi; the learner is not changed.

    A network whose batch norm uses the batch at hand answers for the batch it is given: for one
    query at a time, put it in one batch with X ("inductive"); all queries together are
    "transductive". The module comes in eval mode: dropout leaves nothing out, and batch norm whose
    running statistics were not used has none.

    Args:
        learner: A trainer (its own within, step, moments, loss, path and precision are used), or a
            module.
        X: [n, ...] inputs; [n, H, W] gets its channel axis where the network has 2-D convolutions.
        y: [n] labels, or [n] or [n, k] numbers.
        steps: Inner steps.
        batch: Samples in a step; None means all.
        within: `SGD`, `Adam` or `DoG`, for a module (default ``Adam()``); `Fading`, for a trainer
            that has learned its step.
        run: Which run of a trainer.
        seed: Of the order of samples, and of dropout's masks.
        loss: For a module. Default `cross_entropy`.

    >>> module = adapt(nn.Linear(2, 2), torch.eye(2), [0, 1], steps=100, within=Adam(0.1))
    >>> module(torch.eye(2)).argmax(1).tolist()
    [0, 1]
    """
    start = Start.of(learner, [run], within, loss)
    whole(0, steps=steps)
    X = table(X, "X")
    n = max(len(X), 1)
    whole(1, batch=n if batch is None else batch)
    if X.ndim == 3 and any(isinstance(m, nn.Conv2d) for m in start.module.modules()):
        X = X[:, None]
    tasks = Arrays([(X, y)], batch=min(batch or n, n), steps=1, seed=seed, device=start.phi.device)
    index, label = tasks.with_steps(steps).draw(0, 1)
    loop = start.loop(tasks.inputs, label, 1)
    loop.check(extent(tasks))
    loop.index.copy_(index.transpose(0, 1))
    loop.label.copy_(label.transpose(0, 1))
    if loop.number is not None:
        loop.number.fill_(seed)
    start.put(loop, torch.zeros(1, dtype=torch.int64, device=start.phi.device))
    loop.play()
    theta = ends(loop)[0]
    if not bool(torch.isfinite(theta).all()):
        fix = "take a smaller step, and look for NaN among X and y"
        raise FMRLError("the adapted network holds numbers that are not finite", fix=fix)
    return _to_predict(Layout.of(start.module).module(start.module, theta))


def _to_predict(module: nn.Module) -> nn.Module:
    """``module`` as `evaluate` judges it: no dropout, and batch norm in training mode uses the
    batch at hand. Its running statistics were never moved, so they are taken away.
    """
    for layer in module.modules():
        if layer.training and getattr(layer, "track_running_stats", False):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return module.eval()


def gradient_norm(
    module: nn.Module, tasks: Any, count: int = 20, loss: Loss = cross_entropy
) -> float:
    """The largest norm of the gradient at ``module`` over tasks: a G for SGD(lipschitz=…).

    Args:
        module: The network, at its present parameters.
        tasks: A sequence of tasks.
        count: Look at the first mini-batches of so many tasks.
        loss: Of outputs [T, B, ...] and targets [T, B, ...]; returns [T].

    >>> tasks = Arrays([(torch.eye(2), [0.0, 0.0])], batch=2, steps=1)
    >>> net = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 3.0)
    >>> from fmrl.deep import squared_error
    >>> round(gradient_norm(net, tasks, loss=squared_error), 4)  # (3, 3)
    4.2426
    """
    whole(1, count=count)
    apply, layout = suited(module, tasks, loss), Layout.of(module)
    phi, frozen = layout.flat(module), layout.mask(tasks.inputs.device)
    index, label = tasks.draw(0, count)
    theta = phi.expand(count, -1).clone().requires_grad_()
    values = loss(apply(theta, tasks.inputs[index[:, 0]]), label[:, 0])
    gradient = torch.autograd.grad(values.sum(), theta)[0]
    return float((gradient if frozen is None else gradient * ~frozen).norm(dim=1).max())

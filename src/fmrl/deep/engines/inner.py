"""The inner loop of a stack of tasks: static buffers, and steps that move theta [T, P] in place.

Every step differentiates one mini-batch and forgets the graph, so memory does not grow with the
number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fmrl.deep.engines import by_hand, fused, on_cpu, pooled
from fmrl.deep.engines.agreement import agrees, descend_error, fused_error, pooled_error
from fmrl.deep.engines.functions import mix
from fmrl.deep.engines.stacked import FORMS, Stacked
from fmrl.deep.engines.threads import available, each_of, spread
from fmrl.deep.losses import (
    CLASSIFIES,
    Loss,
    check_labels,
    check_loss,
    cross_entropy,
    summed_cross_entropy,
)
from fmrl.deep.networks import Layout
from fmrl.errors import FMRLError

PATHS = (*FORMS, "fused", "by hand")
CPU_TASKS = 5  # that the caches hold
PATCHES = 2**30  # numbers that the patches of a piece may take on a GPU


class InnerLoop:
    """``steps`` inner steps of ``tasks`` tasks side by side, with mini-batches of ``batch``.

    Buffers: theta, second, average, squares [T, P] · index, label [steps, T, B] · eta [T] (if
    ``shaped``, [T, P]) · bias [steps] · losses [steps, T]. ``squares`` adds up squared gradients of
    the first ``observe`` steps. ``piece`` tasks go through the network at once. ``order`` is not
    None when theta is kept in another order than the module's. ``frozen`` [P], in that order, is
    True where theta must not move (requires_grad=False), None when all of it may. loss: outputs
    [T, B, ...], targets [T, B, ...] -> [T] (`fmrl.deep.losses`). targets: their dtype, or some of
    them [..., steps, B, ...], which tells also the shape of one."""

    def __init__(
        self, module: nn.Module, within: Any, inputs: torch.Tensor, *, tasks: int, steps: int,
        batch: int, path: str = "auto", precision: str = "bf16", loss: Loss = cross_entropy,
        average: bool = False, piece: int | None = None, shaped: bool = False, observe: int = 0,
        targets: torch.dtype | torch.Tensor = torch.int64,
    ):  # fmt: skip
        layout, first = Layout.of(module), next(module.parameters())
        device, dtype, size = first.device, first.dtype, layout.size
        if all(layout.frozen):
            what = "every parameter is frozen (requires_grad=False)"
            raise FMRLError(f"{what}: there is nothing to train")
        self.module, self.within, self.inputs, self.loss = module, within, inputs, loss
        self.tasks, self.steps, self.batch, self.piece = tasks, steps, batch, piece or tasks
        self.precision, self.path, self.shaped, self.observe = precision, path, shaped, observe
        self.apply = Stacked(module, path if path in FORMS else "auto", inputs)
        given = isinstance(targets, torch.Tensor)
        kind, shape = (targets.dtype, targets.shape[3:]) if given else (targets, ())
        if loss in CLASSIFIES:
            check_labels(torch.zeros((), dtype=kind), self.outputs)
            kind = torch.int64
        self._try_loss(layout, kind, shape)
        frozen = layout.mask(device)
        self._choose(device, dtype, frozen, average)
        self.plain_cpu = device.type == "cpu" and path == "auto" and self.hand is None
        self.plain_cpu = self.plain_cpu and on_cpu.suits(self.apply, inputs[:batch])
        dense = self.plain_cpu and on_cpu.dense(module)
        # Passes by hand say when they are done with a layer.
        self.layered = device.type == "cpu" and (dense or self.hand is not None)
        if device.type == "cpu" and path == "auto":
            # A thread with tasks of its own does not wait for others at every product.
            large = self.plain_cpu and not dense
            large = large or (self.hand is not None and self.hand.patches(batch) > by_hand.LARGE)
            self.piece = min(self.piece, 1 if large else CPU_TASKS, each_of(tasks))
        elif self.hand is not None and not self.pooled:
            self.piece = min(self.piece, max(1, PATCHES // self.hand.patches(batch)))
        found = self.plan or self.hand
        self.order = None if found is None else found.order.to(device)
        self.frozen = frozen if frozen is None or self.order is None else frozen[self.order]

        def floats(*shape):
            return torch.zeros(shape, dtype=dtype, device=device)

        self.theta = floats(tasks, size)
        self.second = floats(tasks, size) if within.adaptive else None
        self.average = floats(tasks, size) if average else None
        self.squares = floats(tasks, size) if observe else None
        self.eta = floats(tasks, size) if shaped else floats(tasks)
        self.bias, self.losses = floats(steps), floats(steps, tasks)
        self.index = torch.zeros(steps, tasks, batch, dtype=torch.int64, device=device)
        self.label = torch.zeros(steps, tasks, batch, *shape, dtype=kind, device=device)
        # Which task of the sequence each is: masks of dropout are drawn from it and the step.
        self.number = torch.arange(tasks, device=device) if self.apply.drops else None
        self.made: dict[Any, Any] = {}  # steps or gradients, by worker and stack size

    def _choose(self, device, dtype, frozen, average: bool) -> None:
        """Kernels or passes by hand where they fit: ``plan``, ``hand``, ``images``, ``pooled``."""
        path, inputs, self.plan, self.hand, self.images = self.path, self.inputs, None, None, None
        kernels = path == "auto" and device.type == "cuda" and dtype == torch.float32
        kernels = path == "fused" or (kernels and fused.available())
        image = self.loss in CLASSIFIES and inputs.ndim == 4
        plain = frozen is None and not (self.shaped or self.observe)  # all that the fused step does
        own = hasattr(self.within, "move")  # a step that no kernel takes
        if kernels and image and plain and not own:
            self.plan = fused.plan(self.module, tuple(inputs.shape[1:]), self.batch)
        sizes = {min(self.piece, self.tasks), self.tasks % self.piece or self.piece}  # of stacks
        if self.plan and not all([agrees(fused_error, self, wide, average) for wide in sizes]):
            self.plan = None
        if self.plan is None and image and path in ("auto", "by hand", "fused"):
            self.hand = by_hand.plan(self.module, tuple(inputs.shape[1:]))
        if self.hand is not None:
            self.images = inputs.permute(0, 2, 3, 1).contiguous()
        elif path == "by hand":
            raise FMRLError("this network has no passes by hand", fix="use path='auto'")
        fits = kernels and self.hand is not None and pooled.fits(self.hand)
        self.pooled = fits and agrees(pooled_error, self)
        self.kernels = kernels and not own and self.plan is None
        self.kernels = self.kernels and agrees(descend_error, self, average)
        if path == "fused" and self.plan is None and not self.pooled:
            what = "there are no kernels for this network, loss, mini-batch or similarity rule, "
            what += "or for frozen parameters"
            raise FMRLError(what, fix="use path='auto'")

    @property
    def outputs(self) -> int:
        """Outputs of the network for one sample, where they stand for classes."""
        if len(self.apply.outputs) != 1:
            found = f"but the network's are [B, *{self.apply.outputs}]"
            raise FMRLError(f"cross-entropy needs outputs [B, classes], {found}")
        return self.apply.outputs[0]

    def check(self, targets: torch.Tensor) -> None:
        """Refuse targets outside the loss's range. It waits for the device: not in a graph."""
        if self.loss in CLASSIFIES:
            check_labels(targets, self.outputs)

    def _try_loss(self, layout: Layout, kind: torch.dtype, shape: Sequence[int]) -> None:
        """The contract of the loss, on two tasks and targets of zero."""
        rows = torch.arange(2 * self.batch, device=self.inputs.device).view(2, -1)
        scales = torch.tensor([[1.0], [1.1]]).to(next(self.module.parameters()))
        theta = layout.flat(self.module) * scales
        targets = torch.zeros(2, self.batch, *shape, dtype=kind, device=theta.device)
        with torch.no_grad():
            outputs = self.apply(theta, self.inputs[rows % len(self.inputs)])
        check_loss(self.loss, outputs, targets)

    def play(self, begin: Callable[[slice], None] | None = None) -> None:
        """All steps of all tasks, a piece at a time; on a CPU each thread has its own.

        begin: puts the tasks of a slice where they start; without it they are there.
        """
        starts = range(0, self.tasks, self.piece)
        pieces = [slice(i, min(i + self.piece, self.tasks)) for i in starts]
        threads = self.threads
        if self.plan is None and self.hand is None:
            for worker in range(threads):  # copied before anyone calls the module
                for tasks in {len(self.theta[rows]) for rows in pieces} if self.plain_cpu else {0}:
                    self._once(worker, tasks)
        if begin is not None and threads == 1:
            begin(slice(0, self.tasks))
            begin = None

        def some(worker: int, rows: slice, steps: range, held: Any) -> Any:
            if begin is not None and steps.start == 0:  # by the thread that needs them first
                begin(rows)
            return self._piece(worker, rows, steps, held)

        with _products(self.precision):
            spread(some, pieces, self.steps, threads)

    def _piece(self, worker: int, rows: slice, steps: range, held: Any) -> Any:
        """Some steps of the tasks ``rows``; held: what an inner rule with a ``move`` of its own
        keeps between steps, which is returned."""
        parts = (self.theta, self.second, self.average, self.squares)
        theta, second, average, squares = (None if a is None else a[rows] for a in parts)
        eta = self.eta[rows].view(len(theta), -1)
        tables = [v[:, rows].unbind() for v in (self.index, self.label, self.losses)]
        done = self._by_layer(worker, rows, theta, second, eta)
        for s in steps:
            index, label, loss = (table[s] for table in tables)
            bias = self.bias[s : s + 1]
            if self.plan is not None:
                step = self._once(worker, len(theta))
                step(self.inputs, theta, second, average, index, label, self.eta[rows], bias, loss)
                continue
            key = None if self.number is None else mix(self.number[rows]) + s
            if done is not None:
                note(theta, average, None, None, None)
                done.bias = float(bias)
            values, gradient = self._gradient(worker, theta, index, label, key, done)
            loss.copy_(values)
            if done is not None:
                continue
            observed = squares if s < self.observe else None
            if hasattr(self.within, "move"):
                note(theta, average, observed, gradient, self.frozen)
                held = self.within.move(theta, gradient, eta, second, held)
                continue
            facts = self.within, theta, second, average, observed, gradient, self.frozen, eta, bias
            (fused.descend if self.kernels else descend)(*facts)
        return held

    def _by_layer(self, worker: int, rows: slice, theta, second, eta) -> on_cpu.Steps | None:
        """Adam's steps layer by layer, where nothing else is done with the gradient."""
        plain = self.layered and second is not None and not hasattr(self.within, "move")
        plain = plain and self.squares is None and self.frozen is None
        if not plain or not on_cpu.steps_once(theta, eta):
            return None
        if (key := (worker, rows.start, rows.stop)) not in self.made:
            form = self._once(worker, len(theta))
            self.made[key] = on_cpu.Steps(self.within, theta, second, form.grad, form.edges)
        self.made[key].etas = eta[:, 0].tolist()
        return self.made[key]

    def _gradient(self, worker: int, theta, index, label, key, done=None):
        """Losses [T] and gradient [T, P] of one mini-batch; the gradient may be written to."""
        last = () if done is None else (done,)
        if self.hand is not None:
            return self._once(worker, len(theta))(theta, self.images[index], label, *last)
        if self.plain_cpu:
            return self._once(worker, len(theta))(theta, self.inputs[index], label, key, *last)
        leaf = (
            theta.data.requires_grad_()
        )  # not detach: other threads move their own rows meanwhile
        values = self.loss(self._once(worker, 0)(leaf, self.inputs[index], key), label)
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    def _once(self, worker: int, tasks: int) -> Any:
        """What a thread works with, made once: the network's stacked form, or the kernels' step or
        the gradient by hand for stacks of this size."""
        key, device, scale = (worker, tasks), self.theta.device, self.scale
        if key not in self.made:
            if self.plain_cpu:
                self.made[key] = on_cpu.gradient_of(self.apply, self.loss, tasks, self.theta)
            elif self.plan is None and self.hand is None:
                self.made[key] = self.apply if worker == 0 else self.apply.another()
            elif self.plan is not None:
                facts = self.plan, tasks, self.batch, self.within, self.precision, device
                self.made[key] = fused.FusedStep(*facts, scale=scale)
            else:
                facts = self.hand, tasks, self.batch, scale, device
                rest = (pooled, self.precision) if self.pooled else (by_hand, self.theta.dtype)
                self.made[key] = rest[0].Gradient(*facts, rest[1])
        return self.made[key]

    @property
    def threads(self) -> int:
        """Those that have tasks of their own."""
        pieces = -(-self.tasks // self.piece)
        return 1 if self.theta.is_cuda else min(available(), pieces)

    @property
    def scale(self) -> float:
        """The weight of one sample in the loss."""
        return 1.0 if self.loss is summed_cross_entropy else 1.0 / self.batch

    @property
    def launches(self) -> int:
        """About how many kernels `play` launches on a GPU."""
        plain = 60 * (self.tasks if self.apply.looped else 1)
        return self.steps * (20 if self.plan is not None else plain)

    def bias_at(self, before: int | torch.Tensor) -> torch.Tensor:
        """sqrt(1 − beta2^t) of the loop's steps after ``before`` others, [..., steps]."""
        t = before + torch.arange(1, self.steps + 1)
        # Python's power: a vectorised one may differ in the last digit with the position.
        values = [(1 - self.within.beta2**i) ** 0.5 for i in t.flatten().tolist()]
        return torch.tensor(values, dtype=torch.float64).view(t.shape)


def note(theta, average, squares, gradient, frozen) -> None:
    """Before a step: average and squares (None: not wanted) add up iterates and gradients²."""
    if frozen is not None:  # then Adam's moments stay 0 too, and theta as it is
        gradient.masked_fill_(frozen, 0)
    if average is not None:
        average += theta
    if squares is not None:
        squares.addcmul_(gradient, gradient)


def descend(within, theta, second, average, squares, gradient, frozen, eta, bias) -> None:
    """One step of the optimiser on theta [T, P], in place; the gradient is written to."""
    note(theta, average, squares, gradient, frozen)
    if second is None:
        theta -= gradient.mul_(eta)
        return
    if not theta.is_cuda and on_cpu.adam(within, theta, second, gradient, eta, bias):
        return
    second.mul_(within.beta2).addcmul_(gradient, gradient, value=1 - within.beta2)
    gradient.mul_(eta * bias)
    theta.addcdiv_(gradient, second.sqrt().add_(within.eps * bias), value=-1)  # eta·g/(√v/bias+eps)


def in_module_order(values: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """Values [..., P] that are kept in ``order``, as the module has its parameters."""
    if order is None:
        return values
    out = torch.empty_like(values)
    out[..., order] = values
    return out


@contextmanager
def _products(precision: str):
    """Matrix products of float32 on CUDA in tf32, unless full precision is asked for."""
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kept or precision != "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept


def capture(
    body: Callable[[], None], device: torch.device, tried: bool = False
) -> Callable[[], None]:
    """``body`` as one CUDA graph, after two plain calls of it unless it was ``tried`` before.

    On a CPU, and where tasks go through a network in turn, it is ``body`` itself.
    """
    if device.type != "cuda":
        return body
    side = torch.cuda.Stream(device, priority=torch.cuda.current_stream(device).priority)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(0 if tried else 2):
            body()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):  # the launches keep the stream's priority
            body()
    except RuntimeError:  # a branch that depends on data waits for the device, which no graph can
        torch.cuda.synchronize(device)
        return body
    return graph.replay

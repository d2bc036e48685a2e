"""The inner loop of a stack of tasks: static buffers, and steps that move theta [T, P] in place.

Every step differentiates one mini-batch and forgets the graph, so memory does not grow with the
number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from fmrl.deep.engines import by_hand as byhand
from fmrl.deep.engines import fused, pooled
from fmrl.deep.engines.agreement import agrees, fused_error, pooled_error
from fmrl.deep.engines.stacked import Uncapturable, stack
from fmrl.deep.engines.workers import share
from fmrl.deep.layout import Layout
from fmrl.deep.losses import (
    CLASSIFIES,
    Loss,
    check_labels,
    check_loss,
    cross_entropy,
    summed_cross_entropy,
)
from fmrl.deep.losses import squared_error as squared_error
from fmrl.deep.within import Adam
from fmrl.errors import FMRLError

CPU_TASKS = 5
PATCHES = 2**30  # numbers that the patches of a piece may take on a GPU


class InnerLoop:
    """``steps`` inner steps of ``tasks`` tasks side by side, with mini-batches of ``batch``.

    Buffers: theta, second, average [T, P] · index, label [steps, T, B] · eta [T] · bias [steps] ·
    losses [steps, T]. ``piece`` tasks go through the network at once. ``order`` is not None when
    theta is kept in the kernels' order. ``frozen`` [P], in that order, is True where theta must not
    move (requires_grad=False), None when all of it may. loss: outputs [T, B, ...], targets [T, B,
    ...] -> [T] (`fmrl.deep.losses`). targets: their dtype, or some of them [..., steps, B, ...],
    which tells also the shape of one."""

    def __init__(
        self, module: nn.Module, within: Any, inputs: torch.Tensor, *, tasks: int, steps: int, batch: int,
        path: str = "auto", precision: str = "bf16", loss: Loss = cross_entropy, average: bool = False, piece: int | None = None,
        targets: torch.dtype | torch.Tensor = torch.int64,
    ):  # fmt: skip
        layout, first = Layout.of(module), next(module.parameters())
        device, dtype, size = first.device, first.dtype, layout.size
        if all(layout.frozen):
            raise FMRLError(
                "every parameter is frozen (requires_grad=False): there is nothing to train"
            )
        self.module, self.within, self.inputs, self.loss = module, within, inputs, loss
        self.tasks, self.steps, self.batch, self.piece = tasks, steps, batch, piece or tasks
        self.precision, self.path = precision, path
        self.apply = stack(module, path if path in ("stacked", "functional") else "auto", inputs)
        kind, shape = (
            (targets.dtype, targets.shape[3:])
            if isinstance(targets, torch.Tensor)
            else (targets, ())
        )
        if loss in CLASSIFIES:
            check_labels(torch.zeros((), dtype=kind), self.outputs)
            kind = torch.int64
        self._try_loss(layout, kind, shape)
        frozen = layout.mask(device)
        self.plan = (
            _plan(module, inputs, batch, path, loss, device, dtype) if frozen is None else None
        )  # kernels know no mask
        sizes = {
            min(self.piece, tasks),
            tasks % self.piece or self.piece,
        }  # stacks, also the last one
        if self.plan is not None and not all(
            [agrees(fused_error, self, wide, average) for wide in sizes]
        ):
            self.plan = None
        self.hand = _by_hand(module, inputs, path, loss) if self.plan is None else None
        self.images = inputs.permute(0, 2, 3, 1).contiguous() if self.hand is not None else None
        self.pooled = (
            self.hand is not None
            and _kernels(path, device, dtype)
            and pooled.fits(self.hand)
            and agrees(pooled_error, self)
        )
        if path == "fused" and self.plan is None and not self.pooled:
            raise FMRLError(
                "there are no kernels for this network, loss or mini-batch, or for frozen parameters",
                fix="use path='auto'",
            )
        if device.type == "cpu" and path == "auto":  # as many tasks as the caches hold
            self.piece = min(self.piece, CPU_TASKS)
        elif self.hand is not None and not self.pooled:
            self.piece = min(self.piece, max(1, PATCHES // self.hand.patches(batch)))
        found = self.plan or self.hand
        self.order = None if found is None else found.order.to(device)
        self.frozen = frozen if frozen is None or self.order is None else frozen[self.order]

        def floats(*shape):
            return torch.zeros(shape, dtype=dtype, device=device)

        self.theta = floats(tasks, size)
        self.second = floats(tasks, size) if isinstance(within, Adam) else None
        self.average = floats(tasks, size) if average else None
        self.eta, self.bias, self.losses = floats(tasks), floats(steps), floats(steps, tasks)
        self.index = torch.zeros(steps, tasks, batch, dtype=torch.int64, device=device)
        self.label = torch.zeros(steps, tasks, batch, *shape, dtype=kind, device=device)
        self.made: dict[
            Any, Any
        ] = {}  # buffers of the kernels or of the passes by hand, by worker and stack size

    @property
    def outputs(self) -> int:
        """Outputs of the network for one sample, where they stand for classes."""
        if len(self.apply.outputs) != 1:
            raise FMRLError(
                f"cross-entropy needs outputs [B, classes], but the network's are [B, *{self.apply.outputs}]"
            )
        return self.apply.outputs[0]

    def check(self, targets: torch.Tensor) -> None:
        """Refuse targets that the loss has no place for. It waits for the device: call it once for
        a table, not in a captured graph.
        """
        if self.loss in CLASSIFIES:
            check_labels(targets, self.outputs)

    def _try_loss(self, layout: Layout, kind: torch.dtype, shape: Sequence[int]) -> None:
        """The contract of the loss, on two tasks and targets of zero."""
        rows = torch.arange(2 * self.batch, device=self.inputs.device).view(2, -1) % len(
            self.inputs
        )
        theta = layout.flat(self.module) * torch.tensor([[1.0], [1.1]]).to(
            next(self.module.parameters())
        )
        targets = torch.zeros(2, self.batch, *shape, dtype=kind, device=theta.device)
        with torch.no_grad():
            outputs = self.apply(theta, self.inputs[rows])
        check_loss(self.loss, outputs, targets)

    def play(self) -> None:
        """All steps of all tasks, a piece of the stack at a time; on a CPU, by hand, every thread
        has pieces of its own.
        """
        pieces = [
            slice(i, min(i + self.piece, self.tasks)) for i in range(0, self.tasks, self.piece)
        ]
        threads = (
            1
            if self.theta.is_cuda or self.hand is None
            else min(torch.get_num_threads(), len(pieces))
        )

        def job(worker: int) -> None:
            for rows in pieces[worker::threads]:
                self._piece(worker, rows)

        with _products(self.precision):
            share([partial(job, worker) for worker in range(threads)], threads)

    def _piece(self, worker: int, rows: slice) -> None:
        theta, second, average = (
            None if a is None else a[rows] for a in (self.theta, self.second, self.average)
        )
        for s in range(self.steps):
            index, label, bias, loss = (
                self.index[s, rows],
                self.label[s, rows],
                self.bias[s : s + 1],
                self.losses[s, rows],
            )
            if self.plan is not None:
                step = self._once(worker, len(theta))
                step(self.inputs, theta, second, average, index, label, self.eta[rows], bias, loss)
                continue
            values, gradient = self._gradient(worker, theta, index, label)
            if self.frozen is not None:
                gradient.masked_fill_(
                    self.frozen, 0
                )  # then Adam's moments stay 0 too, and theta to the last bit
            loss.copy_(values)
            if average is not None:
                average += theta
            if second is None:
                theta -= gradient.mul_(self.eta[rows, None])
                continue
            second.mul_(self.within.beta2).addcmul_(gradient, gradient, value=1 - self.within.beta2)
            gradient.mul_(
                self.eta[rows, None] * bias
            )  # eta·g/(√v/bias + eps) in as few passes as possible
            theta.addcdiv_(gradient, second.sqrt().add_(self.within.eps * bias), value=-1)

    def _gradient(self, worker: int, theta, index, label) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses [T] and gradient [T, P] of one mini-batch; the gradient may be written to."""
        if self.hand is not None:
            return self._once(worker, len(theta))(theta, self.images[index], label)
        leaf = theta.detach().requires_grad_()
        values = self.loss(self.apply(leaf, self.inputs[index]), label)
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    def _once(self, worker: int, tasks: int) -> Any:
        """The kernels' step or the gradient by hand for stacks of this size, made once."""
        key = worker, tasks
        if key not in self.made:
            device = self.theta.device
            if self.plan is not None:
                made = fused.FusedStep(
                    self.plan,
                    tasks,
                    self.batch,
                    self.within,
                    self.precision,
                    device,
                    scale=self.scale,
                )
            elif self.pooled:
                made = pooled.Gradient(
                    self.hand, tasks, self.batch, self.scale, device, self.precision
                )
            else:
                made = byhand.Gradient(
                    self.hand, tasks, self.batch, self.scale, device, self.theta.dtype
                )
            self.made[key] = made
        return self.made[key]

    @property
    def scale(self) -> float:
        """The weight of one sample in the loss."""
        return 1.0 if self.loss is summed_cross_entropy else 1.0 / self.batch

    @property
    def launches(self) -> int:
        """About how many kernels `play` launches on a GPU."""
        return self.steps * (
            14 if self.plan is not None else 60 * (self.tasks if self.apply.looped else 1)
        )

    def bias_at(self, before: int | torch.Tensor) -> torch.Tensor:
        """sqrt(1 − beta2^t) of the loop's steps, on the host, when ``before`` steps were taken
        before them. [..., steps]
        """
        beta2 = self.within.beta2 if isinstance(self.within, Adam) else 0.0
        t = before + torch.arange(1, self.steps + 1)
        # Python's power, because a vectorised one may differ in the last digit with the position in
        # the vector.
        return torch.tensor(
            [(1 - beta2**i) ** 0.5 for i in t.flatten().tolist()], dtype=torch.float64
        ).view(t.shape)


def _plan(module, inputs, batch, path, loss, device, dtype):
    """The plan of the fused step where it applies."""
    if not _kernels(path, device, dtype) or loss not in CLASSIFIES or inputs.ndim != 4:
        return None
    return fused.plan(module, tuple(inputs.shape[1:]), batch)


def _kernels(path, device, dtype) -> bool:
    """Whether Triton kernels are wanted: asked for, or on CUDA in single precision."""
    return path == "fused" or (
        path == "auto" and device.type == "cuda" and dtype == torch.float32 and fused.available()
    )


@contextmanager
def _products(precision: str):
    """Matrix products of float32 on CUDA in tf32, unless full precision is asked for."""
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kept or precision != "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept


def _by_hand(module, inputs, path, loss):
    """The plan of the passes by hand where they apply."""
    wanted = path in ("auto", "by hand", "fused") and loss in CLASSIFIES and inputs.ndim == 4
    found = byhand.plan(module, tuple(inputs.shape[1:])) if wanted else None
    if path == "by hand" and found is None:
        raise FMRLError("this network has no passes by hand", fix="use path='auto'")
    return found


def capture(body: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """``body`` as one CUDA graph, after two plain calls of it; on a CPU, and where tasks go through
    a network in turn, ``body`` itself.
    """
    if device.type != "cuda":
        return body
    side = torch.cuda.Stream(device, priority=torch.cuda.current_stream(device).priority)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        body()
        body()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):  # the launches keep the stream's priority
            body()
    except Uncapturable:
        return body
    return graph.replay

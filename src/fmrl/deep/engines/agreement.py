"""Whether kernels, as compiled for this shape, give the plain path's gradient: checked on random
tasks before they are used.

Once for everything that makes other code of the fused step: network, mini-batch, precision, dtype
of the inputs, optimiser, whether iterates are averaged, and the size of the stack, of its smaller
last piece too. The pooled kernels do not depend on the last three. Not apart: what Triton compiles
for other alignments of the same arguments. Compilers err, and a wrong gradient trains quietly. In
reduced precision single activations cross zero, which moves a gradient by up to a tenth; a wrong
kernel moves that of its layer by far more than a quarter."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fmrl.deep.engines import by_hand as byhand
from fmrl.deep.engines import fused, pooled
from fmrl.deep.within import Adam
from fmrl.errors import FMRLError

_AGREED: dict[tuple, bool] = {}


def agrees(error: Callable[..., tuple[tuple, Callable[[], float]]], loop: Any, *facts: Any) -> bool:
    """Whether the error measured by ``error`` is small enough; an exception when the kernels were
    asked for and it is not.
    """
    key, measure = error(loop, *facts)
    if key in _AGREED:
        return _AGREED[key]
    worst = measure()
    _AGREED[key] = worst < (1e-3 if loop.precision == "ieee" else 0.25)
    what = f"the kernels' gradient differs by {worst:.0%} from the plain one at this shape"
    if not _AGREED[key] and loop.path == "fused":
        raise FMRLError(what, fix="use path='stacked'")
    if not _AGREED[key]:
        warnings.warn(f"{what}: using batched products", RuntimeWarning, stacklevel=4)
    return _AGREED[key]


def fused_error(loop: Any, wide: int, averages: bool) -> tuple[tuple, Callable[[], float]]:
    """Of the fused step as compiled for stacks of ``wide`` tasks, against autograd: what the check
    depends on, and the check.

    averages: whether the step also sums the iterates it starts from, which is other code.
    """
    plan, within, device = loop.plan, loop.within, loop.inputs.device

    def measure() -> float:
        theta, index, label = _random(loop, plan.ways)
        leaf = theta.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            loop.loss(loop.apply(leaf, loop.inputs[index]), label).sum(), leaf
        )
        order = plan.order.to(device)
        moved, second, gradient = (
            theta[:, order].contiguous(),
            torch.zeros_like(theta),
            gradient[:, order],
        )
        step = fused.FusedStep(
            plan, 2, loop.batch, within, loop.precision, device, wide=wide, scale=loop.scale
        )
        one = torch.ones(2, device=device)
        total = theta[:, order].contiguous() if averages else None  # the sum is then twice theta
        step(loop.inputs, moved, second, total, index, label, one, one[:1].clone(), one.clone())
        if isinstance(within, Adam):
            found, gradient = (second / (1 - within.beta2)).sqrt(), gradient.abs()
        else:
            found = theta[:, order] - moved
        norms = 2 * len(plan.blocks) * plan.filters
        edges = [0, norms, *(b.offset for b in plan.blocks[1:]), plan.dense, plan.size]
        worst = _worst(found, gradient, edges)
        return worst if total is None else max(worst, _worst(total, 2 * theta[:, order], edges))

    return (
        loop.precision,
        loop.batch,
        plan.blocks,
        plan.filters,
        plan.ways,
        plan.channels,
        type(within),
        averages,
        wide,
        loop.inputs.dtype,
    ), measure


def pooled_error(loop: Any) -> tuple[tuple, Callable[[], float]]:
    """Of the kernels for pooled blocks against the passes by hand: what the check depends on, and
    the check.
    """
    plan, device = loop.hand, loop.inputs.device

    def measure() -> float:
        theta, index, label = _random(loop, plan.ways)
        facts = theta[:, plan.order.to(device)], loop.images[index], label
        _, gradient = byhand.Gradient(plan, 2, loop.batch, loop.scale, device, theta.dtype)(*facts)
        _, found = pooled.Gradient(plan, 2, loop.batch, loop.scale, device, loop.precision)(*facts)
        edges = [edge for b in plan.blocks for edge in (b.weight, b.gamma)]
        return _worst(found, gradient, [*edges, plan.dense, theta.shape[1]])

    return (loop.precision, loop.batch, plan.blocks, plan.ways, loop.images.dtype), measure


def _random(loop: Any, ways: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two tasks: theta [2, P] near the module's, rows [2, B] and labels [2, B]."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.cat([p.detach().flatten() for p in loop.module.parameters()]).cpu()
    theta = theta + 0.02 * torch.randn(2, len(theta), generator=generator)
    index = torch.randint(0, len(loop.inputs), (2, loop.batch), generator=generator)
    label = torch.randint(0, ways, (2, loop.batch), generator=generator)
    device = loop.inputs.device
    return theta.to(device), index.to(device), label.to(device)


def _worst(found: torch.Tensor, gradient: torch.Tensor, edges: Sequence[int]) -> float:
    """The largest relative error among layers."""
    parts = [(found[:, a:b], gradient[:, a:b]) for a, b in itertools.pairwise(edges)]
    return max(float((x - y).norm() / y.norm()) for x, y in parts)

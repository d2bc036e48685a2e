"""Kernels are used only if, as compiled for this shape, they give the plain path's gradient.

That is checked on random tasks, once for everything that makes other code of the fused step:
network, mini-batch, precision, dtype of the inputs, optimiser, whether iterates are averaged, and
the size of the stack, of its smaller last piece too. The pooled kernels do not depend on the last
three. Not checked: what Triton compiles for other alignments of the same arguments. Compilers err,
and a wrong gradient trains quietly. In reduced precision single activations cross zero, which moves
a gradient by up to a tenth; a wrong kernel moves that of its layer by far more than a quarter.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fmrl.deep.engines import by_hand, fused, pooled
from fmrl.deep.networks import Layout
from fmrl.errors import FMRLError

_AGREED: dict[tuple, bool] = {}


def agrees(error: Callable[..., tuple[tuple, Callable[[], float]]], loop: Any, *facts: Any) -> bool:
    """Whether ``error`` is small enough; an exception if kernels were asked for and it is not."""
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
    """What the check of the fused step for stacks of ``wide`` tasks depends on, and the check.

    averages: whether the step also sums the iterates it starts from, which is other code.
    """
    plan, within, device = loop.plan, loop.within, loop.inputs.device

    def measure() -> float:
        theta, index, label = _random(loop, plan.ways)
        leaf = theta.clone().requires_grad_()
        values = loop.loss(loop.apply(leaf, loop.inputs[index]), label)
        order, (gradient,) = plan.order.to(device), torch.autograd.grad(values.sum(), leaf)
        start, gradient = theta[:, order].contiguous(), gradient[:, order]
        moved, second = start.clone(), torch.zeros_like(theta)
        total = start.clone() if averages else None  # the sum is then twice theta
        shape = plan, 2, loop.batch, within, loop.precision, device
        step = fused.FusedStep(*shape, wide=wide, scale=loop.scale)
        one = torch.ones(2, device=device)
        step(loop.inputs, moved, second, total, index, label, one, one[:1].clone(), one.clone())
        if within.adaptive:
            found, gradient = (second / (1 - within.beta2)).sqrt(), gradient.abs()
        else:
            found = start - moved
        edges = [0, *(b.weight for b in plan.blocks), plan.dense, theta.shape[1]]
        worst = _worst(found, gradient, edges)
        return worst if total is None else max(worst, _worst(total, 2 * start, edges))

    compiled = type(within), averages, wide, loop.inputs.dtype
    return (loop.precision, loop.batch, plan.blocks, plan.ways, *compiled), measure


def pooled_error(loop: Any) -> tuple[tuple, Callable[[], float]]:
    """What the check of the kernels for pooled blocks depends on, and the check."""
    plan, device = loop.hand, loop.inputs.device

    def measure() -> float:
        theta, index, label = _random(loop, plan.ways)
        facts = theta[:, plan.order.to(device)], loop.images[index], label
        shape = plan, 2, loop.batch, loop.scale, device
        _, gradient = by_hand.Gradient(*shape, theta.dtype)(*facts)
        _, found = pooled.Gradient(*shape, loop.precision)(*facts)
        edges = [edge for b in plan.blocks for edge in (b.weight, b.gamma)]
        return _worst(found, gradient, [*edges, plan.dense, theta.shape[1]])

    return (loop.precision, loop.batch, plan.blocks, plan.ways, loop.images.dtype), measure


def _random(loop: Any, ways: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two tasks: theta [2, P] near the module's, rows [2, B] and labels [2, B]."""
    generator = torch.Generator().manual_seed(0)
    theta = Layout.of(loop.module).flat(loop.module).cpu()
    theta = theta + 0.02 * torch.randn(2, len(theta), generator=generator)
    index = torch.randint(0, len(loop.inputs), (2, loop.batch), generator=generator)
    label = torch.randint(0, ways, (2, loop.batch), generator=generator)
    device = loop.inputs.device
    return theta.to(device), index.to(device), label.to(device)


def _worst(found: torch.Tensor, gradient: torch.Tensor, edges: Sequence[int]) -> float:
    """The largest relative error among layers."""
    parts = [(found[:, a:b], gradient[:, a:b]) for a, b in itertools.pairwise(edges)]
    return max(float((x - y).norm() / y.norm()) for x, y in parts)


def descend_error(loop: Any, averages: bool) -> tuple[tuple, Callable[[], float]]:
    """What the check of the optimiser's kernel depends on, and the check."""
    from fmrl.deep.engines.inner import descend

    within, device = loop.within, loop.inputs.device
    frozen = any(Layout.of(loop.module).frozen)

    def measure() -> float:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape):
            return torch.rand(shape, generator=generator).to(device) + 0.1

        shape, found = (3, 1031), []
        start = [drawn(*shape) for _ in range(5)]
        mask = torch.rand(shape[1], generator=generator).to(device) < 0.3 if frozen else None
        eta, bias = drawn(*shape) if loop.shaped else drawn(3, 1), drawn(1)
        for step in (descend, fused.descend):
            theta, second, average, squares, gradient = (t.clone() for t in start)
            moved = theta, second if within.adaptive else None, average if averages else None
            step(within, *moved, squares if loop.observe else None, gradient, mask, eta, bias)
            found.append(torch.stack([theta, second, average, squares]))
        return float((found[0] - found[1]).norm() / found[0].norm()) * 1e3  # exact but for rounding

    flags = type(within), averages, bool(loop.observe), frozen, loop.shaped
    return ("descend", loop.precision, *flags), measure

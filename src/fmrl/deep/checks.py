"""Whether tasks suit a network and a loss, found out before anything is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fmrl.deep.engines.stacked import Stacked, stack
from fmrl.deep.layout import Layout
from fmrl.deep.losses import CLASSIFIES, Loss, check_labels, check_loss
from fmrl.errors import FMRLError


def sequence(tasks: Any, module: nn.Module, loop: Any = None) -> None:
    """Refuse what is no sequence of tasks, one on another device than the network, and labels that
    an inner loop at hand has no place for.

    >>> sequence([(torch.eye(2), [0, 1])], nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: list is no sequence of tasks; use Pool.of(X, y).tasks(…) or Arrays([(X,
    y), …])"""
    if not hasattr(tasks, "draw"):
        fix = "use Pool.of(X, y).tasks(…) or Arrays([(X, y), …])"
        raise FMRLError(f"{type(tasks).__name__} is no sequence of tasks", fix=fix)
    Layout.of(module)  # it has parameters, on one device
    device = next(module.parameters()).device
    if tasks.inputs.device != device:
        raise FMRLError(
            f"the tasks lie on {tasks.inputs.device}, the network on {device}",
            fix="put both on one device",
        )
    if loop is not None:
        loop.check(extent(tasks))


def extent(tasks: Any) -> torch.Tensor:
    """The smallest and the largest label of all tasks where they are known, else the labels of the
    first task.
    """
    return torch.tensor(tasks.labels) if hasattr(tasks, "labels") else tasks.draw(0, 1)[1]


def suited(module: nn.Module, tasks: Any, loss: Loss, path: str = "auto") -> Stacked:
    """The stacked form of ``module``; an error unless it takes the tasks' inputs, and ``loss`` its
    outputs and their targets.
    """
    sequence(tasks, module)
    apply, layout = stack(module, path, tasks.inputs), Layout.of(module)
    index, label = (part[:, 0] for part in tasks.draw(0, 2))
    if loss in CLASSIFIES:
        check_labels(extent(tasks), apply.outputs[-1] if apply.outputs else 0)
    flat = layout.flat(module)
    with torch.no_grad():
        outputs = apply(torch.stack([flat, 1.1 * flat]), tasks.inputs[index])
    check_loss(loss, outputs, label)
    return apply

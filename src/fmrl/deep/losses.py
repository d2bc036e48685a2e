"""Losses of a stack of tasks, their contract, and checks of it.

A loss takes outputs [T, B, ...] and targets [T, B, ...] of T tasks with mini-batches of B and
returns T numbers, the loss of each task from that task's outputs and targets alone. A function of
one task, such as torch's own, becomes one by ``torch.func.vmap(function)``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from fmrl.errors import FMRLError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CONTRACT = "a loss takes outputs [T, B, ...] and targets [T, B, ...] and returns one number for each of the T tasks, [T]"


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean softmax cross-entropy of every task: outputs [T, B, classes], labels [T, B] -> [T]."""
    return (
        F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
        .view(labels.shape)
        .mean(1)
    )


def summed_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Softmax cross-entropy summed over every task's mini-batch, as in Reptile's code: [T, B,
    classes], [T, B] -> [T].

    Adam does not feel the scale of a loss, except through moments carried from mini-batches of
    another size: with the sum, a test task of half the mini-batch takes half the step."""
    return cross_entropy(outputs, labels) * labels.shape[1]


CLASSIFIES = (cross_entropy, summed_cross_entropy)


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error of every task: outputs [T, B, ...], targets with as many numbers -> [T].

    >>> squared_error(torch.ones(2, 2, 1), torch.tensor([[1.0, 1.0], [0.0, 1.0]])).tolist()
    [0.0, 0.5]
    """
    if outputs[0].numel() != targets[0].numel():
        raise FMRLError(
            f"there are outputs {tuple(outputs.shape[2:])} and targets {tuple(targets.shape[2:])} for every input"
        )
    return (outputs.flatten(1) - targets.flatten(1)).square().mean(1)


def check_labels(label: torch.Tensor, outputs: int) -> None:
    """Refuse labels outside 0 … outputs − 1: kernels would read past the outputs, and torch leaves
    −100 out of its loss.

    >>> check_labels(torch.tensor([0, 7]), 5)
    Traceback (most recent call last): ... fmrl.errors.FMRLError: labels go from 0 to 7, but the
    network has 5 outputs; number the classes of a task 0 to 4"""
    if label.is_floating_point() or label.is_complex():
        raise FMRLError(
            f"labels of {label.dtype} name no class",
            fix="give whole numbers, or loss=squared_error",
        )
    if label.numel() == 0:
        return
    low, high = (int(v) for v in label.aminmax())
    if low < 0 or high >= outputs:
        raise FMRLError(
            f"labels go from {low} to {high}, but the network has {outputs} outputs",
            fix=f"number the classes of a task 0 to {outputs - 1}",
        )


@torch.no_grad()
def check_loss(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Try ``loss`` on outputs [T, B, ...] and targets: an error unless it keeps the contract.

    >>> check_loss(lambda outputs, targets: outputs.mean(), torch.ones(2, 3, 1), torch.ones(2, 3))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fmrl.errors.FMRLError: the loss returned () for 2 tasks; a loss takes ...
    """
    try:
        values, alone = loss(outputs, targets), loss(outputs[:1], targets[:1])
    except FMRLError:
        raise
    except Exception as error:
        what = (
            f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
        )
        raise FMRLError(f"the loss does not take {what}: {error}", fix=CONTRACT) from error
    shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
    if shape != (len(outputs),) or tuple(alone.shape) != (1,):
        raise FMRLError(
            f"the loss returned {shape} for {len(outputs)} tasks",
            fix=f"{CONTRACT}; torch.func.vmap makes one of torch's",
        )
    if not torch.allclose(values[:1], alone, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise FMRLError("the loss of a task depends on the tasks beside it", fix=CONTRACT)

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
CONTRACT = (
    "a loss takes outputs [T, B, ...] and targets [T, B, ...] and returns one number for each of "
    "the T tasks, [T]"
)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean softmax cross-entropy of every task.

    Args:
        outputs: [T, B, classes] logits.
        labels: [T, B] whole numbers 0 … classes − 1.

    Returns:
        [T], one loss for each task.
    """
    values = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
    return values.view(labels.shape).mean(1)


def summed_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Softmax cross-entropy summed over every task's mini-batch, as in Reptile's code.

    The scale of a loss does not change Adam's steps, except through moments carried from
    mini-batches of another size: with the sum, a test task of half the mini-batch takes half the
    step.

    Args:
        outputs: [T, B, classes] logits.
        labels: [T, B] whole numbers 0 … classes − 1.

    Returns:
        [T], one loss for each task.
    """
    return cross_entropy(outputs, labels) * labels.shape[1]


CLASSIFIES = (cross_entropy, summed_cross_entropy)


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error of every task.

    Args:
        outputs: [T, B, ...].
        targets: [T, B, ...] with as many numbers.

    Returns:
        [T], one loss for each task.

    >>> squared_error(torch.ones(2, 2, 1), torch.tensor([[1.0, 1.0], [0.0, 1.0]])).tolist()
    [0.0, 0.5]
    """
    if outputs[0].numel() != targets[0].numel():
        shapes = f"outputs {tuple(outputs.shape[2:])} and targets {tuple(targets.shape[2:])}"
        raise FMRLError(f"there are {shapes} for every input")
    return (outputs.flatten(1) - targets.flatten(1)).square().mean(1)


def check_labels(label: torch.Tensor, outputs: int) -> None:
    """Refuse labels outside 0 … outputs − 1.

    Kernels would read past the outputs, and torch leaves −100 out of its loss.

    >>> check_labels(torch.tensor([0, 7]), 5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: labels go from 0 to 7, but the network has 5 outputs; number...
    """
    if label.is_floating_point() or label.is_complex():
        fix = "give whole numbers, or loss=squared_error"
        raise FMRLError(f"labels of {label.dtype} are not class numbers", fix=fix)
    if label.numel() == 0:
        return
    low, high = (int(v) for v in label.aminmax())
    if low < 0 or high >= outputs:
        what = f"labels go from {low} to {high}, but the network has {outputs} outputs"
        raise FMRLError(what, fix=f"number the classes of a task 0 to {outputs - 1}")


@torch.no_grad()
def check_loss(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Try ``loss`` on outputs [T, B, ...] and targets: an error unless it keeps the contract.

    >>> mean = lambda outputs, targets: outputs.mean()
    >>> check_loss(mean, torch.ones(2, 3, 1), torch.ones(2, 3))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: the loss returned () for 2 tasks; a loss takes ...
    """
    try:
        values, alone = loss(outputs, targets), loss(outputs[:1], targets[:1])
    except FMRLError:
        raise
    except Exception as error:
        shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
        what = f"the loss does not take {shapes} of {targets.dtype}: {error}"
        raise FMRLError(what, fix=CONTRACT) from error
    shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
    if shape != (len(outputs),) or tuple(alone.shape) != (1,):
        what = f"the loss returned {shape} for {len(outputs)} tasks"
        raise FMRLError(what, fix=f"{CONTRACT}; torch.func.vmap makes one of torch's")
    if not torch.allclose(values[:1], alone, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise FMRLError("the loss of a task depends on the tasks beside it", fix=CONTRACT)


def ask_finite(values: torch.Tensor) -> Callable[[], bool]:
    """Whether all are finite: asked of the device now, and waited for when it is called."""
    answer, done = torch.isfinite(values).all().to("cpu", non_blocking=True), None
    if values.is_cuda:
        done = torch.cuda.Event()
        done.record()

    def answered() -> bool:
        if done is not None:
            done.synchronize()
        return bool(answer)

    return answered

"""Whether tasks suit a network and a loss, found out on one mini-batch before anything is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fmrl.core.errors import FMRLError
from fmrl.deep.inner import Loss, cross_entropy, summed_cross_entropy
from fmrl.deep.stacked import refuse_state

ENTROPIES = (cross_entropy, summed_cross_entropy)


def suit(module: nn.Module, tasks: Any, loss: Loss = cross_entropy) -> None:
    """Refuse tasks on another device, inputs the network does not take, and targets that do not suit its outputs or ``loss``.

    >>> from fmrl.deep import Arrays
    >>> suit(nn.Linear(2, 3), Arrays([(torch.eye(2), [0, 3])], batch=2, steps=1))
    Traceback (most recent call last):
        ...
    fmrl.core.errors.FMRLError: labels go from 0 to 3, and the network tells 3 classes apart; number them 0 to 2, or widen the last layer
    """
    if not hasattr(tasks, "draw"):
        raise FMRLError(
            f"{type(tasks).__name__} is no sequence of tasks", fix="use Pool.of(X, y).tasks(…) or Arrays([(X, y), …])"
        )
    refuse_state(module)
    first = next(module.parameters())
    if tasks.inputs.device != first.device:
        raise FMRLError(f"the tasks lie on {tasks.inputs.device}, the network on {first.device}", fix="put both on one device")
    index, label = (a[0, :1] for a in tasks.draw(0, 1))
    outputs = through(module, tasks.inputs[index[0]])
    if loss in ENTROPIES:
        _classes(outputs, label, getattr(tasks, "labels", (label.min().item(), label.max().item())))
    try:
        values = loss(outputs[None], label)
    except FMRLError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        shapes = f"outputs {list(outputs[None].shape)} and targets {list(label.shape)}"
        raise FMRLError(f"the loss fails on {shapes}: {str(error).splitlines()[0]}") from None
    if not isinstance(values, torch.Tensor) or tuple(values.shape) != (1,):
        found = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise FMRLError(
            f"the loss of one task must have shape [1], not {found}",
            fix="take outputs [T, B, …], targets [T, B, …] and return [T]",
        )


@torch.no_grad()
def through(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The network's outputs on a mini-batch [B, ...], or an error that says which inputs it refused."""
    shape = tuple(x.shape[1:])
    indices = any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in module.modules())  # these take whole numbers
    try:
        outputs = module(x if indices else x.to(next(module.parameters()).dtype))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise FMRLError(f"the network does not take inputs of shape {shape}: {str(error).splitlines()[0]}") from None
    if not isinstance(outputs, torch.Tensor) or outputs.ndim == 0 or len(outputs) != len(x):
        found = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise FMRLError(
            f"the network turns {len(x)} inputs of shape {shape} into {found}",
            fix="it must return one tensor, a row for each input",
        )
    return outputs


def _classes(outputs: torch.Tensor, label: torch.Tensor, extent: tuple[float, float]) -> None:
    if label.is_floating_point() or label.ndim != 2:
        kind = f"{str(label.dtype).removeprefix('torch.')} of shape {list(label.shape[2:])} for each sample"
        raise FMRLError(
            f"cross-entropy needs one whole number for each sample, y is {kind}", fix="use loss=squared_error for numbers"
        )
    if outputs.ndim != 2:
        raise FMRLError(f"cross-entropy needs outputs [B, classes], the network's are {list(outputs.shape)}")
    classes, (low, high) = outputs.shape[1], extent
    if low < 0 or high >= classes:
        raise FMRLError(
            f"labels go from {low} to {high}, and the network tells {classes} classes apart",
            fix=f"number them 0 to {classes - 1}, or widen the last layer",
        )

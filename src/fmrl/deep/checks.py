"""Checks before training: arguments, arrays, whether tasks suit a network and a loss, and which
networks may run side by side.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fmrl.deep.engines.stacked import Stacked
from fmrl.deep.losses import CLASSIFIES, Loss, check_labels, check_loss
from fmrl.deep.networks import HOOKS, Layout
from fmrl.deep.within import known
from fmrl.errors import FMRLError

PLAIN = (bool, int, float, str, tuple, list)


def whole(least: int, **numbers: Any) -> None:
    """Refuse numbers that are not whole or below ``least``.

    >>> whole(1, batch=0)
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: batch=0 must be a whole number, at least 1
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise FMRLError(f"{name}={value!r} must be a whole number, at least {least}")


def table(values: Any, what: str, task: int | None = None) -> torch.Tensor:
    """A tensor of numbers with a leading axis; whole numbers and True/False as they are."""
    try:
        found = values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FMRLError(f"{what} is not an array of numbers ({reason})", task=task) from None
    if found.ndim == 0 or found.is_complex():
        need = "must be an array of real numbers with one entry for each sample"
        raise FMRLError(f"{what} {need}", task=task)
    return found.detach()


def with_channel(inputs: torch.Tensor, images: bool | None) -> torch.Tensor:
    """Inputs [N, H, W] with a channel axis, unless ``images`` is False; None: said where they may
    be sequences.
    """
    if inputs.ndim != 3 or images is False:
        return inputs
    if images is None and inputs.shape[1] != inputs.shape[2]:
        what = f"inputs {tuple(inputs.shape[1:])} are taken as images of one channel: say "
        what += "images=False if they are sequences, images=True if they are images"
        warnings.warn(what, RuntimeWarning, stacklevel=3)
    return inputs[:, None]


def classes_of(y: Any, count: int) -> np.ndarray:
    """The class of each of ``count`` samples, numbers or strings."""
    y = y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
    y = np.asarray(y.tolist()) if y.dtype == object else y  # a column of strings
    if y.shape != (count,) or not count:
        what = f"X has {count} samples and y the shape {y.shape}"
        raise FMRLError(what, fix="give one class for each sample, y [N]")
    if y.dtype.kind not in "iubUS" and not (y.dtype.kind == "f" and np.isfinite(y).all()):
        what = f"classes of type {y.dtype} cannot be told apart"
        raise FMRLError(what, fix="give whole numbers or strings")
    return y


def pair(task: int, X: Any, y: Any, mark: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one task as tensors of one length; labels become int64."""
    X, y = table(X, f"X{mark}", task), table(y, f"y{mark}", task)
    if len(X) != len(y):
        raise FMRLError(f"there are {len(X)} inputs but {len(y)} targets", task=task)
    if not len(X):
        raise FMRLError("there are no samples", task=task, fix="leave the task out")
    return X, y if y.is_floating_point() else y.to(torch.int64)


def sequence(tasks: Any, module: nn.Module, loop: Any = None) -> None:
    """Refuse what is not a sequence of tasks for this network on its device.

    Where an inner loop exists already, its labels are checked too.

    >>> sequence([(torch.eye(2), [0, 1])], nn.Linear(2, 2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: list is not a sequence of tasks; use Pool.of(X, y).tasks(…) or Arrays(...
    """
    if not hasattr(tasks, "draw"):
        fix = "use Pool.of(X, y).tasks(…) or Arrays([(X, y), …])"
        raise FMRLError(f"{type(tasks).__name__} is not a sequence of tasks", fix=fix)
    Layout.of(module)  # it has parameters, on one device
    here, device = tasks.inputs.device, next(module.parameters()).device
    if here != device:
        what = f"the tasks are on {here}, the network on {device}"
        raise FMRLError(what, fix="put both on one device")
    if loop is not None:
        loop.check(extent(tasks))


def extent(tasks: Any) -> torch.Tensor:
    """The smallest and largest label of all tasks, or the first task's labels if not known."""
    return torch.tensor(tasks.labels) if hasattr(tasks, "labels") else tasks.draw(0, 1)[1]


def suited(module: nn.Module, tasks: Any, loss: Loss, path: str = "auto") -> Stacked:
    """The stacked form of ``module``, after trying the tasks' inputs and the loss on it."""
    sequence(tasks, module)
    apply = Stacked(module, path, tasks.inputs)
    index, label = (part[:, 0] for part in tasks.draw(0, 2))
    if loss in CLASSIFIES:
        check_labels(extent(tasks), apply.outputs[-1] if apply.outputs else 0)
    flat = Layout.of(module).flat(module)
    with torch.no_grad():
        outputs = apply(torch.stack([flat, 1.1 * flat]), tasks.inputs[index])
    check_loss(loss, outputs, label)
    return apply


def layers(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Class and plain settings of every layer, by its name."""
    return {
        name: {"class": type(m).__qualname__}
        | {k: _named(v) for k, v in vars(m).items() if k[0] != "_" and _plain(v)}
        for name, m in module.named_modules()
    }


def _plain(value: Any) -> bool:
    return value is None or type(value) in PLAIN or inspect.isroutine(value)


def _named(value: Any) -> Any:
    """A function by its name."""
    return getattr(value, "__qualname__", None) or str(value) if callable(value) else value


def attached(module: nn.Module) -> tuple:
    """Hooks, buffers, and what is frozen."""
    hooks = [[len(getattr(m, hook, ())) for hook in HOOKS] for m in module.modules()]
    buffers = [(name, buffer.cpu().numpy().tobytes()) for name, buffer in module.named_buffers()]
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    return hooks, buffers, frozen


def architecture(module: nn.Module) -> tuple:
    """What modules of one architecture share besides their parameters' shapes."""
    return repr(module), layers(module), attached(module)


def side_by_side(
    module: nn.Module | Sequence[nn.Module], within: Any, runs: int | None, device: Any
) -> tuple[list[nn.Module], list[Any], torch.device]:
    """One module and one inner rule for every run, on one device."""
    modules = [module] if isinstance(module, nn.Module) else list(module)
    if not modules or not all(isinstance(m, nn.Module) and [*m.parameters()] for m in modules):
        fix = "give a module with parameters, or a list of such modules"
        raise FMRLError("there is nothing to train", fix=fix)
    device = torch.device(device or next(modules[0].parameters()).device)
    modules = [m.to(device) for m in modules] * (runs or 1 if len(modules) == 1 else 1)
    given = within if isinstance(within, (list, tuple)) else [within] * len(modules)
    withins, fix = [known(w) for w in given], "train them one after the other"
    if len(withins) != len(modules) or (runs and runs != len(modules)):
        raise FMRLError("there must be one module and one within for every run")
    if len({repr(replace(w, step=1.0)) for w in withins}) > 1:
        raise FMRLError(f"{withins!r}: runs side by side differ in step alone", fix=fix)
    first = architecture(modules[0]), Layout.of(modules[0])
    if any((architecture(m), Layout.of(m)) != first for m in modules[1:]):
        raise FMRLError("runs side by side need one architecture, and equal buffers", fix=fix)
    return modules, withins, device

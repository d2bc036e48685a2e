"""Which runs may share a stack: one architecture, and inner rules that differ in their step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fmrl.deep.batches import whole
from fmrl.deep.engines.fused import PRECISIONS
from fmrl.deep.engines.known_layers import HOOKS
from fmrl.deep.layout import Layout
from fmrl.deep.within import SGD, Adam, known
from fmrl.errors import FMRLError

PLAIN = (bool, int, float, str, tuple)
PATHS = ("auto", "fused", "by hand", "stacked", "functional")


def settings(path: str, precision: str, seed: int, **sizes: int | None) -> None:
    """Refuse settings that would be misread; sizes that are None are not given."""
    if path not in PATHS or precision not in PRECISIONS:
        raise FMRLError(
            f"path={path!r}, precision={precision!r}",
            fix=f"a path is of {PATHS}, a precision of {PRECISIONS}",
        )
    whole(1, **{name: size for name, size in sizes.items() if size is not None})
    whole(0, seed=seed)
    if seed >= 2**30:
        raise FMRLError(f"seed={seed!r} must be below 2**30")


def side_by_side(
    module: nn.Module | Sequence[nn.Module], within: Any, runs: int | None, device: Any
) -> tuple[list[nn.Module], list[SGD | Adam], torch.device]:
    """One module and one inner rule for every run, on one device."""
    modules = [module] if isinstance(module, nn.Module) else list(module)
    if not modules or not all(
        isinstance(m, nn.Module) and any(True for _ in m.parameters()) for m in modules
    ):
        raise FMRLError(
            "there is nothing to train",
            fix="give a module with parameters, or a list of such modules",
        )
    device = torch.device(device or next(modules[0].parameters()).device)
    modules = [m.to(device) for m in modules] * (runs or 1 if len(modules) == 1 else 1)
    withins = [
        known(w) for w in (within if isinstance(within, (list, tuple)) else [within] * len(modules))
    ]
    if len(withins) != len(modules) or (runs and runs != len(modules)):
        raise FMRLError("there must be one module and one within for every run")
    if len({repr(replace(w, step=1.0)) for w in withins}) > 1:
        raise FMRLError(
            f"{withins!r}: runs side by side differ in step alone",
            fix="train them one after the other",
        )
    if any(
        built(m) != built(modules[0]) or Layout.of(m) != Layout.of(modules[0]) for m in modules[1:]
    ):
        raise FMRLError(
            "runs side by side need one architecture, and equal buffers",
            fix="train them one after the other",
        )
    return modules, withins, device


def built(module: nn.Module) -> tuple:
    """What modules of one architecture share besides their parameters' shapes: layers, settings,
    hooks, buffers, what is frozen.
    """
    settings = [
        (
            name,
            [(k, v) for k, v in sorted(vars(m).items()) if type(v) in PLAIN],
            [len(getattr(m, hook, ())) for hook in HOOKS],
        )
        for name, m in module.named_modules()
    ]
    buffers = [(name, buffer.cpu().numpy().tobytes()) for name, buffer in module.named_buffers()]
    return (
        repr(module),
        settings,
        buffers,
        [name for name, p in module.named_parameters() if not p.requires_grad],
    )

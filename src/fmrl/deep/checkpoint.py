"""Checkpoints: one safetensors file with the state in the module's own order, and what made it as
JSON in the header.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import fmrl
from fmrl.deep.stacked_runs import built
from fmrl.deep.trainer import MetaTrainer
from fmrl.errors import FMRLError
from fmrl.files import atomic


def _made(trainer: MetaTrainer) -> dict:
    """What a resumed run must share with the one that was saved."""
    return {
        "names": list(trainer.layout.names),
        "shapes": [list(s) for s in trainer.layout.shapes],
        "module": zlib.crc32(repr(built(trainer.module)).encode()),
        "dtype": str(trainer.state.phi.dtype),
        "within": repr(trainer.within),
        "steps": trainer.rates.tolist(),
        "update": repr(trainer.update),
        "meta": repr(trainer.meta),
        "similarity": repr(trainer.similarity),
        "meta_batch": trainer.meta_batch,
        "runs": trainer.runs,
        "seed": trainer.seed,
        "loss": _named(trainer.loss),
    }


def _named(loss: Any) -> str:
    """A function by its name, anything else by its repr without addresses."""
    name = getattr(loss, "__qualname__", None)
    return f"{loss.__module__}.{name}" if name else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(loss))


def _sum(tensors: dict[str, torch.Tensor]) -> int:
    """A checksum of all numbers, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(
            tensors[name].detach().cpu().contiguous().view(torch.uint8).numpy(), total
        )
    return total


def _memories(trainer: MetaTrainer) -> dict[str, torch.Tensor]:
    """Tensors of the two memories by name."""
    found = {}
    for name in ("meta", "similarity"):
        value = getattr(trainer.state, name)
        for i, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(part, torch.Tensor):
                found[f"{name}.{i}"] = part
    return found


def save(trainer: MetaTrainer, path: str | os.PathLike) -> Path:
    """Write everything the next meta-iteration needs, whole or not at all; of several ranks the
    first writes, once.

    Tasks are functions of their number, so the number of meta-iterations done is all the randomness
    there is to keep."""
    path = Path(path)
    if trainer.ranks is not None and not trainer.ranks.first:
        trainer.ranks.wait()
        return path
    tensors = {"phi": trainer.phi, "guess": trainer.state.guess} | _memories(trainer)
    if trainer.state.second is not None:
        tensors["second"] = trainer._from_loop(trainer.state.second)
    state = trainer.state
    if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise FMRLError(
            "the state has a NaN or an infinity, and is not saved",
            fix="go back to the checkpoint before",
        )
    about = {
        "format": 2,
        "fmrl": fmrl.__version__,
        "iteration": state.iteration,
        "taken": state.taken,
    } | _made(trainer)
    about |= {"rounds": trainer.level.rounds, "sum": _sum(tensors)}
    if isinstance(state.meta, int):
        about["memory"] = state.meta
    try:
        with atomic(path) as partial:
            flat = {k: v.detach().contiguous().cpu() for k, v in tensors.items()}
            save_file(flat, partial, metadata={"fmrl": json.dumps(about)})
    finally:
        if trainer.ranks is not None:  # the others go on when the file is there
            trainer.ranks.wait()
    return path


def iteration(path: str | os.PathLike) -> int:
    """Meta-iterations behind a checkpoint; 0 where there is none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("fmrl", "{}")).get("iteration", 0)
    except (OSError, SafetensorError, json.JSONDecodeError):
        return 0


def load(trainer: MetaTrainer, path: str | os.PathLike) -> MetaTrainer:
    """Put a saved state into a trainer built the same way; `fit` then goes on as if nothing had
    happened.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("fmrl", "null"))
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise FMRLError(
            f"{path} cannot be read ({error})", fix="give a checkpoint written by fmrl.deep.save"
        ) from None
    if not isinstance(about, dict) or about.get("format") != 2:
        raise FMRLError(
            f"{path} holds no training state of this format",
            fix="give a checkpoint written by fmrl.deep.save",
        )
    if about["sum"] != _sum(tensors):
        raise FMRLError(
            f"{path} is damaged: its numbers are not those that were saved",
            fix="go back to the checkpoint before",
        )
    for name, value in _made(trainer).items():
        if about.get(name) != value:
            raise FMRLError(
                f"the checkpoint was made with {name} = {about.get(name)}, the trainer has {value}"
            )
    trainer._put(None)
    trainer._shape, trainer.losses = (), []
    object.__setattr__(trainer.level, "rounds", about["rounds"])
    state = trainer.state
    state.iteration, state.taken = about["iteration"], about["taken"]
    if "memory" in about:
        state.meta = about["memory"]
    held = {"phi": state.phi, "guess": state.guess} | _memories(trainer)
    if state.second is not None:
        held["second"] = state.second
    for name, tensor in held.items():
        tensor.copy_(tensors[name])
    return trainer

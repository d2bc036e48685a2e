"""Checkpoints of a training: one safetensors file, the state in the module's own order.

What made it is JSON in the file's header."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import fmrl
from fmrl.deep.checks import attached, layers
from fmrl.deep.evaluation import Variety
from fmrl.deep.meta_level import leaves
from fmrl.deep.trainer import MetaTrainer
from fmrl.errors import FMRLError
from fmrl.files import atomic, from_json

MOST = 2**62  # iterations and steps
UNREADABLE = (OSError, SafetensorError, ValueError)


def save(trainer: MetaTrainer, path: str | os.PathLike) -> Path:
    """Write everything the next meta-iteration needs, whole or not at all.

    Tasks are functions of their number, so the number of meta-iterations done is all the randomness
    there is to keep. Of several ranks the first writes, and the others wait for it.

    Args:
        trainer: At rest, between two calls of `fit` or inside ``each=``.
        path: The file to write. Folders above it are made.

    Returns:
        The path.
    """
    _ordered(trainer)
    path, state = Path(path), trainer.state
    if trainer.ranks is not None and not trainer.ranks.first:
        trainer.ranks.wait()
        return path
    tensors = {name: trainer._from_loop(value) for name, value in _held(trainer).items()}
    if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        what = "the state has a NaN or an infinity, and is not saved"
        raise FMRLError(what, fix="go back to the checkpoint before")
    about = {"format": 2, "fmrl": fmrl.__version__, "iteration": state.iteration} | _made(trainer)
    about |= {"taken": state.taken, "rounds": trainer.level.rounds, "sum": _sum(tensors)}
    if isinstance(state.meta, int):
        about["memory"] = state.meta
    about |= {} if trainer.variety is None else {"variety": trainer.variety}
    about["seal"] = _seal(about)
    try:
        with atomic(path) as partial:
            flat = {k: v.detach().contiguous().cpu() for k, v in tensors.items()}
            try:
                save_file(flat, partial, metadata={"fmrl": json.dumps(about)})
            except SafetensorError as error:  # a full disk, in the other library's words
                raise OSError(None, str(error)) from None
    finally:
        if trainer.ranks is not None:  # the others go on when the file is there
            trainer.ranks.wait()
    return path


def _ordered(trainer: Any) -> None:
    if not hasattr(trainer, "level"):
        what = f"a MetaTrainer comes first, not a {type(trainer).__name__}"
        raise FMRLError(what, fix="the order is (trainer, path)")


def load(trainer: MetaTrainer, path: str | os.PathLike = "") -> MetaTrainer:
    """Put a saved state into a trainer; `fit` then goes on as if it had never stopped.

    Args:
        trainer: Built the same way as the one that was saved; it is changed.
        path: A file written by `save`.

    Returns:
        The trainer.
    """
    if not hasattr(trainer, "state"):
        what = f"a saved state goes into a trainer, and {trainer!r} is none"
        raise FMRLError(what, fix="build it as before: load(MetaTrainer(network, …), path)")
    _ordered(trainer)
    fix = "give a checkpoint written by fmrl.deep.save"
    try:
        with safe_open(path, framework="pt") as file:
            about = from_json((file.metadata() or {}).get("fmrl", "null"))
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except UNREADABLE as error:
        raise FMRLError(f"{path} cannot be read ({error})", fix=fix) from None
    if not isinstance(about, dict) or about.get("format") != 2:
        raise FMRLError(f"{path} holds no training state of this format", fix=fix)
    if about.get("sum") != _sum(tensors) or about.get("seal", _seal(about)) != _seal(about):
        what = f"{path} is damaged: its numbers are not those that were saved"
        raise FMRLError(what, fix="go back to the checkpoint before")
    for name, value in _made(trainer).items():
        if name == "layers":
            _alike(about.get(name), value)
        elif about.get(name) != value:
            saved = f"the checkpoint was made with {name} = {about.get(name)}"
            raise FMRLError(f"{saved}, the trainer has {value}")
    trainer._put(None)
    trainer._shape = ()
    held = _held(trainer)
    counts = [about.get(name) for name in ("iteration", "taken", "rounds")]
    whole = all(isinstance(c, int) and 0 <= c < MOST for c in [*counts, about.get("memory", 0)])
    variety = about.get("variety")
    whole = whole and (variety is None or (isinstance(variety, list) and len(variety) == 3))
    if not whole or any(n not in tensors or tensors[n].shape != t.shape for n, t in held.items()):
        raise FMRLError(f"{path} lacks a part of the state", fix=fix)
    trainer.level = replace(trainer.level, rounds=about["rounds"])
    state, trainer.losses = trainer.state, []
    state.iteration, state.taken = about["iteration"], about["taken"]
    state.meta = about.get("memory", state.meta)
    trainer.variety = None if variety is None else Variety(*variety)
    for name, tensor in held.items():
        tensor.copy_(tensors[name])
    return trainer


def iteration(path: str | os.PathLike) -> int:
    """Meta-iterations behind a checkpoint; 0 where there is none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            about = from_json((file.metadata() or {}).get("fmrl", "{}"))
    except UNREADABLE:
        return 0
    if not isinstance(about, dict) or about.get("seal", _seal(about)) != _seal(about):
        return 0
    done = about.get("iteration", 0)
    return done if isinstance(done, int) and 0 <= done < MOST else 0


def _made(trainer: MetaTrainer) -> dict:
    """What a resumed run must share with the one that was saved."""
    loss, rules = trainer.loss, ("within", "update", "meta", "similarity")
    named = f"{loss.__module__}.{loss.__qualname__}" if hasattr(loss, "__qualname__") else None
    return {
        "names": list(trainer.layout.names),
        "shapes": [list(s) for s in trainer.layout.shapes],
        "layers": json.loads(json.dumps(layers(trainer.module), default=_plain)),
        "attached": zlib.crc32(repr(attached(trainer.module)).encode()),
        "dtype": str(trainer.state.phi.dtype),
        "steps": trainer.rates.tolist(),
        "loss": named or _plain(loss),
        **{name: _plain(getattr(trainer, name)) for name in rules},
        **{name: getattr(trainer, name) for name in ("meta_batch", "runs", "seed")},
    }


def _alike(saved: Any, here: dict[str, dict[str, Any]]) -> None:
    """Refuse layers that differ in a setting both have: versions of torch add settings."""
    if not isinstance(saved, dict) or saved.keys() != here.keys():
        raise FMRLError("the checkpoint was made with other layers than the trainer's")
    for name, settings in here.items():
        there = saved[name] if isinstance(saved[name], dict) else {"class": None}
        for setting in settings.keys() & there.keys():
            if there[setting] != settings[setting]:
                what = f"the checkpoint was made with {setting} = {there[setting]} at layer"
                raise FMRLError(f"{what} {name!r}, the trainer has {settings[setting]}")


def _plain(value: Any) -> str:
    """A repr without addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _held(trainer: MetaTrainer) -> dict[str, torch.Tensor]:
    """Every tensor of the state by name."""
    state = trainer.state
    found: dict[str, Any] = {"phi": state.phi, "guess": state.guess, "second": state.second}
    for name in ("meta", "similarity"):
        parts = enumerate(leaves(getattr(state, name)))
        found |= {f"{name}.{i}": part for i, part in parts}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _seal(about: dict[str, Any]) -> int:
    """A checksum of what is said beside the numbers; files from before it have none."""
    said = {name: value for name, value in about.items() if name != "seal"}
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def _sum(tensors: dict[str, torch.Tensor]) -> int:
    """A checksum of all numbers, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        flat = tensors[name].detach().cpu().reshape(-1)
        total = zlib.crc32(flat.view(torch.uint8).numpy(), total)
    return total

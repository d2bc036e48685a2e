"""States and histories on disk: one .npz file each, written whole or not at all, read without
executing anything.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from fmrl.core.algorithm import Round, State
from fmrl.core.arrays import Array, as_array, device, namespace, to_numpy
from fmrl.core.history import KEEP, VECTORS, History
from fmrl.core.parse import parse
from fmrl.errors import FMRLError
from fmrl.files import atomic

FORMAT = 1


def save_state(state: State, path: str | os.PathLike) -> None:
    """Write ``state`` to ``path``; the old file survives until the new one is complete."""
    arrays: dict[str, np.ndarray] = {}
    _write(path, {"state": _flatten(state, arrays)}, arrays)


def load_state(path: str | os.PathLike, like: Array | None = None) -> State:
    """Read a state; arrays come back as NumPy, or in the namespace and on the device of ``like``."""
    layout, arrays = _read(path, "state")
    try:
        return _state(layout["state"], arrays, like)
    except (AttributeError, KeyError, TypeError):
        raise _damaged(path) from None


def save_history(history: History, path: str | os.PathLike) -> None:
    """Write a whole history: its composition, its columns and the State after its last task."""
    if history.keep == "totals":
        raise FMRLError(
            "this history kept totals only", fix="save its state: save_state(history.state, path)"
        )
    columns = [name for name in KEEP[history.keep] if name != "losses"]
    arrays: dict[str, np.ndarray] = {name: to_numpy(getattr(history, name)) for name in columns}
    if history.keep == "all":
        longest = max((row.shape[-1] for row in history.losses), default=0)
        rows = [to_numpy(row) for row in history.losses]
        arrays["losses"] = np.stack(
            [np.pad(r, [(0, 0)] * (r.ndim - 1) + [(0, longest - r.shape[-1])]) for r in rows],
            axis=-2,
        )
    states = {name: _flatten(getattr(history, name), arrays) for name in ("start", "state")}
    layout = {
        "history": repr(history.algo),
        "keep": history.keep,
        "meta_batch": history.meta_batch,
    } | states
    _write(path, layout, arrays)


def load_history(path: str | os.PathLike, names: dict[str, type] | None = None) -> History:
    """Read a history, as NumPy arrays. ``names``: classes of your own that its composition is made
    of.
    """
    layout, arrays = _read(path, "history")
    try:
        algo, start = parse(layout["history"], names), _state(layout["start"], arrays, None)
        history = History(algo, start, layout["keep"], layout.get("meta_batch", 1))
        columns = dict.fromkeys((*VECTORS, "losses")) | {
            name: arrays[name] for name in Round._fields if name in arrays
        }
        history.append(Round(**columns), _state(layout["state"], arrays, None))
    except (KeyError, TypeError):
        raise _damaged(path) from None
    return history


def _flatten(state: State, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    def shape(value: Any) -> Any:
        if (
            type(value) in (int, float) or value is None
        ):  # numpy.float64 is a float too, but must come back an array
            return value
        if isinstance(value, tuple):
            return [shape(v) for v in value]
        name = f"state{len(arrays)}"
        arrays[name] = to_numpy(value)
        return {"array": name}

    return {name: shape(value) for name, value in zip(State._fields, state, strict=True)}


def _state(fields: dict[str, Any], arrays: dict[str, np.ndarray], like: Array | None) -> State:
    def restore(value: Any) -> Any:
        if isinstance(value, dict):
            found = arrays[value["array"]]
            return (
                found
                if like is None
                else namespace(as_array(like)).asarray(found, device=device(like))
            )
        return tuple(restore(v) for v in value) if isinstance(value, list) else value

    return State(**{name: restore(value) for name, value in fields.items()})


def _write(path: str | os.PathLike, layout: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    text = json.dumps({"fmrl": FORMAT} | layout).encode()
    with atomic(path) as partial, open(partial, "wb") as file:
        layout_ = np.frombuffer(text, dtype=np.uint8)
        np.savez(file, allow_pickle=False, layout=layout_, **arrays)  # type: ignore[arg-type]


def _read(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            layout = json.loads(bytes(file["layout"]))
            arrays = {name: file[name] for name in file.files}
        version, found = layout["fmrl"], kind in layout
    except FileNotFoundError:
        raise FMRLError(f"there is no file {path}") from None
    except Exception:  # a damaged archive can fail in any way: zlib, struct, NotImplementedError, …
        raise _damaged(path) from None
    if version != FORMAT or not found:
        raise FMRLError(f"{path} is not a saved {kind} of format {FORMAT}")
    return layout, arrays


def _damaged(path: str | os.PathLike) -> FMRLError:
    return FMRLError(f"{path} is not an FMRL file, or is damaged", fix="use an older copy")

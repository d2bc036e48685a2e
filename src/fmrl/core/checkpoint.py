"""States and histories on disk: one .npz file each, whole or not there, read without executing
anything.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from typing import Any

import numpy as np

from fmrl.core.algorithm import Round
from fmrl.core.arrays import Array, as_array, device, namespace, to_numpy
from fmrl.core.history import KEEP, OBSERVED, VECTORS, History
from fmrl.core.meta_level import State
from fmrl.core.metric import METRICS, Metric
from fmrl.core.values import parse
from fmrl.errors import FMRLError
from fmrl.files import atomic, from_json

FORMAT = 1
# What reading a file raises whose parts are there but do not fit together.
WRONG = (
    AttributeError, AssertionError, IndexError, KeyError, TypeError, ValueError, OverflowError,
    SyntaxError,  # NumPy reads a dtype by Python's own parser
)  # fmt: skip


def save_state(state: State, path: str | os.PathLike) -> None:
    """Write a state to a file; the old file survives until the new one is complete.

    Args:
        state: What `FMRL.init`, `FMRL.step` or `History.state` gave.
        path: The file.
    """
    arrays: dict[str, np.ndarray] = {}
    _write(path, {"state": flatten(_of_kind(state, State), arrays)}, arrays)


def load_state(path: str | os.PathLike, like: Array | None = None) -> State:
    """Read a state.

    Args:
        path: A file that `save_state` wrote.
        like: Arrays come back in its namespace and on its device (default: NumPy).
    """
    layout, arrays = _read(path, "state")
    try:
        state = unflatten(layout["state"], arrays, like)
        if not (isinstance(state.tasks, int) and isinstance(state.algo, str)):
            raise TypeError
        _ = state.phi.shape
        return state
    except WRONG:
        raise _damaged(path) from None


def save_history(history: History, path: str | os.PathLike) -> None:
    """Write a whole history: its composition, its columns and the State after its last task.

    Args:
        history: What `run` returned, kept with more than "totals".
        path: The file.
    """
    if _of_kind(history, History).keep == "totals":
        fix = "save its state: save_state(history.state, path)"
        raise FMRLError("this history kept totals only", fix=fix)
    columns = [name for name in KEEP[history.keep] if name != "losses"]
    columns += [name for name in OBSERVED if hasattr(history, name)]
    arrays: dict[str, np.ndarray] = {n: to_numpy(getattr(history, n)) for n in columns}
    if history.keep == "all":
        rows = [to_numpy(row) for row in history.losses]
        longest = max((row.shape[-1] for row in rows), default=0)
        pads = [[(0, 0)] * (r.ndim - 1) + [(0, longest - r.shape[-1])] for r in rows]
        arrays["losses"] = np.stack([*map(np.pad, rows, pads)], axis=-2)
    states = {name: flatten(getattr(history, name), arrays) for name in ("start", "state")}
    layout = {"history": repr(history.algo), "keep": history.keep, "meta_batch": history.meta_batch}
    _write(path, layout | states, arrays)


def load_history(path: str | os.PathLike, names: dict[str, type] | None = None) -> History:
    """Read a history, as NumPy arrays.

    Args:
        path: A file that `save_history` wrote.
        names: Classes of your own that its composition is made of; subclasses of the library's
            rules are known by themselves once they are imported.
    """
    layout, arrays = _read(path, "history")
    try:
        algo, start = parse(layout["history"], names), unflatten(layout["start"], arrays)
        history = History(algo, start, layout["keep"], layout.get("meta_batch", 1))
        columns = dict.fromkeys((*VECTORS, "losses"))
        columns |= {name: arrays[name] for name in Round._fields if name in arrays}
        history.append(Round(**columns), unflatten(layout["state"], arrays))
        algo.check(history.state)
        whole = _whole(history, arrays)
    except FMRLError:
        raise
    except WRONG:
        raise _damaged(path) from None
    if not whole:
        raise _damaged(path)
    return history


def _whole(history: History, arrays: dict[str, np.ndarray]) -> bool:
    """Whether every column has a number for each task, or a vector of the right length."""
    *lead, dim = history.state.phi.shape
    for name in {*KEEP[history.keep], *({*OBSERVED} & {*arrays})}:
        shape = (*lead, len(history), *((dim,) if name in VECTORS else ()))
        found = arrays[name].shape[:-1] if name == "losses" else arrays[name].shape
        if found != shape or arrays[name].dtype.kind not in "fiu":
            return False
    return True


def flatten(state: State, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A state as JSON can hold it; its arrays are put into ``arrays`` under names."""

    def shape(value: Any) -> Any:
        # numpy.float64 is a float too, but must come back an array.
        if type(value) in (bool, int, float, str) or value is None:
            return value
        if isinstance(value, tuple):
            return [shape(v) for v in value]
        if isinstance(value, Metric):
            parts = {name: shape(a) for name, a in value.arrays.items()}
            return {"metric": type(value).__name__, "arrays": parts}
        name = f"state{len(arrays)}"
        arrays[name] = to_numpy(value)
        return {"array": name}

    return {name: shape(value) for name, value in zip(State._fields, state, strict=True)}


def unflatten(
    fields: dict[str, Any], arrays: dict[str, np.ndarray], like: Array | None = None
) -> State:
    """The state that `flatten` took apart."""

    def restore(value: Any) -> Any:
        if isinstance(value, dict) and "metric" in value:
            parts = {name: restore(a) for name, a in value["arrays"].items()}
            return METRICS[value["metric"]](**parts)
        if isinstance(value, dict):
            found = arrays[value["array"]]
            if like is None:
                return found
            return namespace(as_array(like)).asarray(found, device=device(like))
        return tuple(restore(v) for v in value) if isinstance(value, list) else value

    return State(**{name: restore(value) for name, value in fields.items()})


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        what = f"a {kind.__name__} is saved, not a {type(value).__name__}"
        raise FMRLError(what, fix=f"the order is (the {kind.__name__.lower()}, the path)")
    return value


def _write(path: str | os.PathLike, layout: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise FMRLError(f"the path of a file is needed, not {path!r:.60}")
    text = np.frombuffer(json.dumps({"fmrl": FORMAT} | layout).encode(), dtype=np.uint8)
    with atomic(path) as partial, open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, layout=text, **arrays)  # type: ignore[arg-type]


def _read(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        refuse_bomb(path)
        with np.load(path, allow_pickle=False) as file:
            layout = from_json(bytes(file["layout"]))
            arrays = {name: file[name] for name in file.files}
        version, found = layout["fmrl"], kind in layout
    except FileNotFoundError:
        raise FMRLError(f"there is no file {path}") from None
    except Exception:  # a damaged archive can fail in any way: zlib, struct, NotImplementedError, …
        raise _damaged(path) from None
    if version != FORMAT or not found:
        raise FMRLError(f"{path} is not a saved {kind} of format {FORMAT}")
    return layout, arrays


def refuse_bomb(path: str | os.PathLike) -> None:
    """ValueError for an archive of arrays that would take more memory than it has bytes: ours are
    not compressed, and no array says that it is longer than what is stored of it.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > os.stat(path).st_size:
            raise ValueError("larger inside than outside")
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError("compressed")
            with archive.open(entry) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    read = np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
                if math.prod(shape) * dtype.itemsize != entry.file_size - file.tell():
                    raise ValueError("a length that is not true")


def _damaged(path: str | os.PathLike) -> FMRLError:
    return FMRLError(f"{path} is not an FMRL file, or is damaged", fix="use an older copy")

"""States on disk: one .npz file, written whole or not at all, read without executing anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.algorithm import State
from fmrl.core.arrays import Array, as_array, device, namespace, to_numpy
from fmrl.core.errors import FMRLError

FORMAT = 1


def save_state(path: str | os.PathLike, state: State) -> None:
    """Write ``state`` to ``path``; the old file survives until the new one is complete."""
    arrays: dict[str, np.ndarray] = {}

    def shape(value: Any) -> Any:
        if type(value) in (int, float) or value is None:  # not isinstance: numpy.float64 is a float, but must come back as array
            return value
        if isinstance(value, tuple):
            return [shape(v) for v in value]
        arrays[f"a{len(arrays)}"] = to_numpy(value)
        return {"array": f"a{len(arrays) - 1}"}

    layout = {"fmrl_state": FORMAT, "fields": {name: shape(v) for name, v in zip(State._fields, state, strict=True)}}
    arrays["layout"] = np.frombuffer(json.dumps(layout).encode(), dtype=np.uint8)
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load_state(path: str | os.PathLike, like: Array | None = None) -> State:
    """Read a state; arrays come back as NumPy, or in the namespace and on the device of ``like``."""

    def restore(value: Any) -> Any:
        if isinstance(value, dict):
            found = arrays[value["array"]]
            return found if like is None else namespace(as_array(like)).asarray(found, device=device(like))
        return tuple(restore(v) for v in value) if isinstance(value, list) else value

    try:
        with np.load(path, allow_pickle=False) as file:
            layout = json.loads(bytes(file["layout"]))
            arrays = {name: file[name] for name in file.files}
        if layout["fmrl_state"] != FORMAT:
            raise FMRLError(f"{path} is a state of format {layout['fmrl_state']}, this version reads {FORMAT}")
        return State(**{name: restore(value) for name, value in layout["fields"].items()})
    except FMRLError:
        raise
    except FileNotFoundError:
        raise FMRLError(f"there is no file {path}") from None
    except Exception:  # a damaged archive can fail in any way: zlib, struct, NotImplementedError, …
        raise FMRLError(f"{path} is not a saved State, or is damaged", fix="use an older checkpoint") from None

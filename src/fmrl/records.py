"""Run records: one JSON file that says what was run, on what, with what, and what came out. Figures
are drawn from records only.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.files import write

PACKAGES = ("numpy", "array-api-compat", "scikit-learn", "polars", "torch")


def versions() -> dict[str, str]:
    """Versions of Python, of this library and of the packages that can change a number."""
    import fmrl

    found = {"python": platform.python_version(), "fmrl": fmrl.__version__}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def checksum(*arrays: Any) -> str:
    """sha256 of the arrays' bytes, shapes and types, in order.

    Args:
        arrays: Anything NumPy can read.

    >>> checksum(np.zeros(2))[:12]
    'cdead7b1f559'
    """
    digest = hashlib.sha256()
    for a in arrays:
        a = np.ascontiguousarray(a)
        digest.update(f"{a.dtype.str}{a.shape}".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()


@contextmanager
def record(name: str, **configuration: Any):
    """A context that gives a dictionary to fill with results. Command and versions are in it from
    the start, the wall time when the block ends.

    Args:
        name: Of the run.
        configuration: What it was asked to do; values that are not numbers or text are stored as
            they print.

    >>> with record("study", seed=3) as entry:
    ...     entry["tar"] = 0.25
    >>> entry["configuration"], entry["tar"], entry["seconds"] >= 0
    ({'seed': 3}, 0.25, True)
    """
    started = time.perf_counter()
    said = {k: v if isinstance(v, (int, float, str)) else repr(v) for k, v in configuration.items()}
    entry: dict[str, Any] = {"record": 1, "name": name, "configuration": said}
    entry["command"] = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    entry["versions"] = versions()
    yield entry
    entry["seconds"] = round(time.perf_counter() - started, 3)


def plain(value: Any) -> Any:
    """A value that JSON can hold: arrays and NumPy scalars become lists and numbers, NaN and
    infinities become None.

    Args:
        value: Nested dictionaries, lists and arrays.

    >>> plain({"a": np.array([1.0, np.nan])})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def write_json(path: str | os.PathLike, value: Any) -> Path:
    """Write JSON; a write that fails leaves the file that was there.

    Args:
        path: The file; folders above it are made.
        value: What `plain` takes.

    Returns:
        The path.
    """
    text = json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)
    return write(path, text + "\n")

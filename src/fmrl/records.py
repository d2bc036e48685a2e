"""Run records: one JSON file that says what was run, on what, with what, and what came out.
Figures are drawn from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.files import write

PACKAGES = ("numpy", "array-api-compat", "scikit-learn", "polars", "torch")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    import fmrl

    found = {"python": platform.python_version(), "fmrl": fmrl.__version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def checksum(*arrays: Any) -> str:
    """sha256 of the arrays' bytes, shapes and types, in order.

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
    """A dictionary to fill with results; versions, command and wall time are added when the block
    ends.
    """
    started = time.perf_counter()
    entry: dict[str, Any] = {
        "record": 1,
        "name": name,
        "configuration": {
            key: value if isinstance(value, (int, float, str)) else repr(value)
            for key, value in configuration.items()
        },
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": versions(),
    }
    yield entry
    entry["seconds"] = round(time.perf_counter() - started, 3)


def plain(value: Any) -> Any:
    """Arrays and NumPy scalars as lists and numbers; NaN and infinities as None, which JSON can
    say.
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
    """Write ``value`` as JSON, whole or not at all."""
    return write(
        path, json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )

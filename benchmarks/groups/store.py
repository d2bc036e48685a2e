"""Records of the grouped benchmark: one file of arrays a method, written after every set."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.files import write

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "practice" / "grouped"
SHAPES = "sets"  # the file of what the scores of the sets are divided by
Record = dict[str, np.ndarray]


def slug(name: str) -> str:
    """A method's or set's name in file names and keys.

    >>> slug("mixed, correlated slopes")
    'mixed-correlated-slopes'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


def read(method: str, folder: Path = FOLDER) -> tuple[dict[str, Record], dict[str, Any]]:
    """Records by set, and what was run; empty where there is no file."""
    path = folder / f"{slug(method)}.npz"
    if not path.exists():
        return {}, {}
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        found: dict[str, Record] = {name: {} for name in about["sets"]}
        keys = {slug(name): name for name in found}
        for key in file.files:
            if key != "about":
                name, _, field = key.rpartition(".")
                found[keys[name]][field] = file[key].astype(float)
    return found, about


def save(
    method: str, records: dict[str, Record], about: dict[str, Any], folder: Path = FOLDER
) -> None:
    """Write all records of a method."""
    arrays = {
        f"{slug(name)}.{field}": _short(value)
        for name, record in records.items()
        for field, value in record.items()
    }
    buffer = io.BytesIO()
    text = json.dumps(about | {"sets": list(records)}, ensure_ascii=False)
    np.savez_compressed(buffer, about=np.array(text), **arrays)
    write(folder / f"{slug(method)}.npz", buffer.getvalue())


def _short(values: np.ndarray) -> np.ndarray:
    """As float32 with five digits: what follows is noise and does not compress."""
    values = np.asarray(values, dtype=np.float32)
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2**17) / 2**17, exponent).astype(np.float32)


def methods(folder: Path = FOLDER) -> list[str]:
    """Names of the methods with records."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        if path.stem != SHAPES:
            with np.load(path) as file:
                found.append(json.loads(str(file["about"]))["method"])
    return found

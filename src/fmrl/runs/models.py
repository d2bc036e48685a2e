"""Models of many tasks in one file: coefficients and intercepts under the user's names and in the
user's units.

``.json`` is for reading, ``.safetensors`` for many tasks. Either way the margin of a row x is
intercept + Σ coef·x, where x has one entry a feature: a number as it stands in the table (its
training mean where it is missing), 1 or 0 for ``column=level`` and for ``column is missing``. A
regression predicts the margin; two classes the second if it is positive; more the class of the
largest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.estimators.task_models import Prior
from fmrl.files import write
from fmrl.records import write_json
from fmrl.runs.folder import FORMAT, seal, unseal
from fmrl.runs.source import Window
from fmrl.tables.encoder import Encoder

ARRAYS = ("coef", "intercept")


@dataclass(frozen=True, eq=False)
class Models:
    """Models of tasks, by id."""

    ids: list[str]
    coef: np.ndarray  # [T, outputs, f]
    intercept: np.ndarray  # [T, outputs]
    features: list[str]
    classes: list | None  # None: a regression
    run: str  # sha256 of the model file they start from

    def save(self, path: Path) -> None:
        """Write to ``path``, completely or not at all; its suffix chooses the kind of file."""
        head = {"format": FORMAT, "kind": "fmrl models"}
        head |= {name: getattr(self, name) for name in ("features", "classes", "run")}
        if path.suffix == ".json":
            pairs = zip(self.ids, self.coef, self.intercept, strict=True)
            tasks = {name: {"coef": c, "intercept": b} for name, c, b in pairs}
            write_json(path, seal(head | {"tasks": tasks}))
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save

            arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
            head |= {"tasks": self.ids, "arrays": _digest(arrays)}
            write(path, save(arrays, {"fmrl": json.dumps(seal(head))}))
        else:
            what = f"{path.name} is not a file of models"
            raise FMRLError(what, fix="name it .json or .safetensors")

    def over(self, old: Models) -> Models:
        """These models, and those of ``old`` whose tasks are not among them."""
        ours = set(self.ids)
        kept = [i for i, name in enumerate(old.ids) if name not in ours]
        both = {
            name: np.concatenate([getattr(old, name)[kept], getattr(self, name)]) for name in ARRAYS
        }
        return replace(self, ids=[old.ids[i] for i in kept] + self.ids, **both)

    @classmethod
    def load(cls, path: Path) -> Models:
        """Read what `save` wrote; anything else is refused."""
        if not path.is_file():
            raise FMRLError(f"there is no file {path}", fix="write it with fmrl adapt")
        try:
            head, arrays = _read(path)
            about = {name: head[name] for name in ("features", "classes", "run")}
            found = cls(ids=head["tasks"], **arrays, **about)
            outputs = len(found.classes) if found.classes and len(found.classes) > 2 else 1
            shape = (len(found.ids), outputs, len(found.features))
            good = found.coef.shape == shape and found.intercept.shape == shape[:2]
            good = good and len(set(found.ids)) == len(found.ids)
        except Exception:  # damage can show in any way
            good = False
        if not good:
            what = f"{path} is not a file of models, or is damaged"
            raise FMRLError(what, fix="write it again with fmrl adapt")
        return found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if path.suffix == ".json":
        head = unseal(json.loads(path.read_bytes())) or {}
        tasks = head["tasks"]
        arrays = {name: np.array([t[name] for t in tasks.values()], dtype=float) for name in ARRAYS}
        head = head | {"tasks": list(tasks)}
    else:
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            head = unseal(json.loads(file.metadata()["fmrl"])) or {}
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
        if head["arrays"] != _digest(arrays):
            raise ValueError
    if head["kind"] != "fmrl models" or head["format"] != FORMAT:
        raise ValueError
    return head, arrays


def _digest(arrays: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in ARRAYS)).hexdigest()


def adapt_all(prior: Prior, encoder: Encoder, windows: Iterable[Window], run: str) -> Models:
    """Adapt to every task of some windows."""
    ids, parts = [], []
    for window in windows:
        if window.tasks is not None:
            ids += window.names
            model = prior.models(window.tasks)
            parts.append(in_user_units(encoder, *model))
    if not parts:
        raise FMRLError("there is no task to adapt to", fix="give a table with labelled rows")
    coef, intercept = (np.concatenate(column) for column in zip(*parts, strict=True))
    classes = None if prior.classes is None else prior.classes.tolist()
    return Models(ids, coef, intercept, encoder.names, classes, run)


def unscaled(encoder: Encoder) -> Encoder:
    """The same columns, numbers left as they are in the table."""
    columns = tuple(replace(c, centre=0.0, spread=1.0) for c in encoder.columns)
    return Encoder(columns, encoder.policy)


def in_user_units(
    encoder: Encoder, coef: np.ndarray, intercept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Models [..., outputs, f] and [..., outputs] of encoded rows as models of rows as they stand
    in the table, which `unscaled` encodes.

    >>> from fmrl.tables.encoder import Column
    >>> encoder = Encoder((Column("age", centre=40.0, spread=10.0),))
    >>> in_user_units(encoder, np.array([[2.0]]), np.array([1.0]))
    (array([[0.2]]), array([-7.]))
    """
    centre, spread = [], []
    for c in encoder.columns:
        own = 1 if c.levels is None else len(c.levels)
        centre += [c.centre] * own + [0.0] * c.indicator
        spread += [c.spread] * own + [1.0] * c.indicator
    # Levels and flags are noughts and ones; only numbers are scaled.
    coef = coef / np.array(spread)
    return coef, intercept - coef @ np.array(centre)

"""Models of many tasks in one file: coefficients and intercepts under the user's names and in the
user's units.

``.json`` is for reading, ``.safetensors`` for many tasks. Either way the margin of a row x is
intercept + Σ coef·x, where x has one entry a feature: a number as it stands in the table (its
training mean where it is missing), 1 or 0 for ``column=level`` and for ``column is missing``. A
regression predicts the margin; two classes the second if it is positive; more the class of the
largest. """

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.estimators.pack import Table
from fmrl.estimators.task_models import Prior
from fmrl.files import atomic
from fmrl.records import write_json
from fmrl.runs.folder import FORMAT, seal, unseal
from fmrl.runs.user_units import in_user_units
from fmrl.tables.encoder import Encoder


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
        """Write to ``path``, whole or not at all; its suffix chooses the kind of file."""
        head = {"format": FORMAT, "kind": "fmrl models", "features": self.features, "classes": self.classes, "run": self.run}
        if path.suffix == ".json":
            pairs = zip(self.ids, self.coef, self.intercept, strict=True)
            tasks = {name: {"coef": c.tolist(), "intercept": b.tolist()} for name, c, b in pairs}
            write_json(path, seal(head | {"tasks": tasks}))
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save

            arrays = {"coef": np.ascontiguousarray(self.coef), "intercept": np.ascontiguousarray(self.intercept)}
            head |= {"tasks": self.ids, "arrays": _digest(arrays)}
            with atomic(path) as partial:
                partial.write_bytes(save(arrays, {"fmrl": json.dumps(seal(head))}))
        else:
            raise FMRLError(f"{path.name} is no file of models", fix="name it .json or .safetensors")

    def over(self, old: Models) -> Models:
        """These models, and those of ``old`` whose tasks are not among them."""
        ours = set(self.ids)
        kept = [i for i, name in enumerate(old.ids) if name not in ours]
        coef, intercept = (np.concatenate([a[kept], b]) for a, b in ((old.coef, self.coef), (old.intercept, self.intercept)))
        return replace(self, ids=[old.ids[i] for i in kept] + self.ids, coef=coef, intercept=intercept)

    @classmethod
    def load(cls, path: Path) -> Models:
        """Read what `save` wrote; anything else is refused."""
        if not path.is_file():
            raise FMRLError(f"there is no file {path}", fix="write it with fmrl adapt")
        try:
            head, arrays = _read(path)
            found = cls(head["tasks"], arrays["coef"], arrays["intercept"], head["features"], head["classes"], head["run"])
            shape = (len(found.ids), len(found.classes) if found.classes and len(found.classes) > 2 else 1, len(found.features))
            good = found.coef.shape == shape and found.intercept.shape == shape[:2] and len(set(found.ids)) == len(found.ids)
        except Exception:  # damage can show in any way
            good = False
        if not good:
            raise FMRLError(f"{path} is no file of models, or is damaged", fix="write it again with fmrl adapt")
        return found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if path.suffix == ".json":
        head = unseal(json.loads(path.read_bytes())) or {}
        tasks = head["tasks"]
        values = list(tasks.values())
        arrays = {name: np.array([t[name] for t in values], dtype=float) for name in ("coef", "intercept")}
        head = head | {"tasks": list(tasks)}
    else:
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            head = unseal(json.loads(file.metadata()["fmrl"])) or {}
            arrays = {name: file.get_tensor(name) for name in ("coef", "intercept")}
        if head["arrays"] != _digest(arrays):
            raise ValueError
    if head["kind"] != "fmrl models" or head["format"] != FORMAT:
        raise ValueError
    return head, arrays


def _digest(arrays: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in ("coef", "intercept"))).hexdigest()


def adapt_all(prior: Prior, encoder: Encoder, windows: Iterable[tuple[list[str], Table]], run: str) -> Models:
    """Adapt to every task of some windows."""
    outputs, ids, parts = prior.loss.outputs, [], []
    for names, tasks in windows:
        ids += names
        parts.append(in_user_units(encoder, *prior.chart.model(prior.adapt(tasks), outputs)))
    if not parts:
        raise FMRLError("there is no task to adapt to", fix="give a table with labelled rows")
    coef, intercept = (np.concatenate(column) for column in zip(*parts, strict=True))
    classes = None if prior.classes is None else prior.classes.tolist()
    return Models(ids, coef, intercept, encoder.names, classes, run)

"""Estimators and models of tasks on disk: one safetensors file, its header a JSON text; nothing is
executed on reading, and every byte is checked.

Names of tasks are data, not header: a header of more than 100 MB is read by no library.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fmrl.core.checkpoint import WRONG
from fmrl.core.prior.mixture import Mixture, Posterior
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import Choice, Rule
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.environment import Environment
from fmrl.estimators.prior import Prior
from fmrl.estimators.rows_sqlite import SQLiteRows, check_name
from fmrl.estimators.shared_trees import Trees
from fmrl.files import atomic, from_json
from fmrl.tables.features import VALUES, describe, rebuild

FORMAT = 1
STORED_CLASSES = (Choice, Coordinates, Environment, Mixture, Posterior, Prior, Rule, Tasks, Trees)
VALUES |= {kind.__name__: kind for kind in STORED_CLASSES}

Arrays = dict[str, np.ndarray]


def save(estimator: Any, path: str | os.PathLike) -> None:
    """Write a fitted estimator; the old file survives until the new one is complete.

    Args:
        estimator: A MetaClassifier or MetaRegressor.
        path: The file.
    """
    if not estimator._is_fitted:
        raise FMRLError(f"this {type(estimator).__name__} is not fitted", fix="call fit first")
    rows, tasks, store = estimator._rows, None, None
    if isinstance(rows, SQLiteRows):
        store = [rows.path, rows.id] if rows.begun else None
    elif names := [check_name(name) for name in rows]:
        tasks = replace(rows.take(names), names=names_to_array(names))  # type: ignore[arg-type]
    params = estimator.get_params(deep=False)
    state = {f"{name}=": _storable_parameter(value) for name, value in params.items()}
    state |= {"prior": estimator._prior, "columns": _column_attributes(estimator), "tasks": tasks}
    state |= {"rows": [estimator._seen_rows, estimator._learned_rows], "store": store}
    _write(path, estimator, state)


def load(path: str | os.PathLike, kind: type) -> Any:
    """Read an estimator, ready to predict, adapt and take more rows.

    Args:
        path: A file that `save` wrote.
        kind: Its class.
    """

    def build(state: dict[str, Any]) -> Any:
        params = {name[:-1]: value for name, value in state.items() if name[-1] == "="}
        estimator, prior, store = kind(**params), _check_prior(state["prior"]), state["store"]
        for name, part in (("classes_", prior.classes), ("encoder_", prior.encoder)):
            if part is not None:
                setattr(estimator, name, part)
        vars(estimator).update(state["columns"])
        estimator._set_prior(prior, 0, estimator._empty_rows(store or ()))
        estimator._seen_rows, estimator._learned_rows = state["rows"]
        if (tasks := state["tasks"]) is not None:
            estimator._rows.add(replace(tasks, names=array_to_names(tasks.names)))
        return estimator

    return _load(path, kind, build)


def save_task_model(model: Any, path: str | os.PathLike) -> None:
    """Write the fitted model of one task, with the prior that `fit` adapts.

    Args:
        model: A TaskClassifier or TaskRegressor.
        path: The file.
    """
    name = model._name if isinstance(model._name, (str, int, float)) else None
    state = {"prior": model.prior, "posterior": Posterior(model._theta, model._spread)}
    state |= {"mass": model._mass, "name": name, "columns": _column_attributes(model)}
    _write(path, model, state)


def load_task_model(path: str | os.PathLike, kind: type) -> Any:
    """Read the model of one task.

    Args:
        path: A file that `save_task_model` wrote.
        kind: Its class.
    """

    def build(state: dict[str, Any]) -> Any:
        model = kind(_check_prior(state["prior"]))
        model._set(state["posterior"], state["mass"])
        model._name = state["name"]
        vars(model).update(state["columns"])
        return model

    return _load(path, kind, build)


def write_tensors(path: str | os.PathLike, arrays: Arrays, about: dict[str, str]) -> Path:
    """Write arrays to a safetensors file, whole or not at all.

    Args:
        path: The file.
        arrays: By name.
        about: The header's texts.
    """
    with atomic(path) as partial:
        try:
            save_file({n: np.asarray(a, order="C") for n, a in arrays.items()}, partial, about)
        except SafetensorError as error:  # a full disk, in the other library's words
            raise OSError(None, str(error)) from None
    return Path(path)


def names_to_array(names: Sequence[Any]) -> np.ndarray:
    """Names of tasks, texts and numbers, as bytes of JSON.

    >>> array_to_names(names_to_array(["a", 1, 2.5, None]))
    ['a', 1, 2.5, None]
    """
    return np.frombuffer(json.dumps(list(names)).encode(), dtype=np.uint8)


def array_to_names(held: np.ndarray) -> list[Any]:
    """What `names_to_array` took; ValueError for anything else."""
    names = from_json(held.astype(np.uint8, casting="no", copy=False).tobytes())
    if not isinstance(names, list) or any(isinstance(n, (list, dict)) for n in names):
        raise ValueError("not names")
    return names


def _write(path: str | os.PathLike, owner: Any, state: dict[str, Any]) -> None:
    """Write the parts of an estimator or a model."""
    arrays: Arrays = {}
    layout = {"format": FORMAT, "class": type(owner).__name__}
    layout |= {name: describe(part, arrays, name) for name, part in state.items()}
    # One entry: the library writes several in random order, and the same estimator is to be the
    # same bytes.
    try:
        sealed = _text(layout | {"sha256": _digest(_text(layout), arrays)})
    except UnicodeEncodeError as error:
        before, after = error.object[: error.start], error.object[error.start :]
        text = before.rpartition('"')[2] + after.partition('"')[0]
        what = f"{text!r} is a text that UTF-8 cannot encode"
        raise FMRLError(what, fix="rename it before fitting") from None
    write_tensors(path, arrays, {"fmrl": sealed})


def _load(path: str | os.PathLike, kind: type, build: Callable[[dict[str, Any]], Any]) -> Any:
    """What ``build`` makes of the parts that `_write` was given."""
    layout, arrays = _read(Path(path))
    held = layout.pop("class", None)
    if held != kind.__name__:
        raise FMRLError(f"{path} holds a {held}", fix=f"load it with {held}.load(path)")
    try:
        return build({name: rebuild(part, arrays) for name, part in layout.items()})
    except WRONG as error:
        if isinstance(error, FMRLError):
            raise
        raise _damaged(path) from None


def _text(layout: dict[str, Any]) -> str:
    return json.dumps(layout, allow_nan=True, ensure_ascii=False)


def _digest(text: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype.str}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    try:
        if not path.is_file():
            raise FileNotFoundError
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {})["fmrl"]
            layout = from_json(text)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        version, digest = layout["format"], layout.pop("sha256", None)
    except FileNotFoundError:
        raise FMRLError(f"there is no file {path}") from None
    except (*WRONG, SafetensorError, OSError, MemoryError):
        raise _damaged(path) from None
    if version != FORMAT:
        what = f"{path} has format {version}, this version reads {FORMAT}"
        raise FMRLError(what, fix="use the version that wrote it")
    # Another digit may read as the same number, so the text is compared, too.
    sealed = _text(layout | {"sha256": digest})
    if digest != _digest(_text(layout), arrays) or text != sealed:
        raise _damaged(path)
    return layout, arrays


def _damaged(path: Any) -> FMRLError:
    return FMRLError(f"{path} is not a stored FMRL model, or is damaged", fix="use an older copy")


def _check_prior(prior: Prior) -> Prior:
    """A prior that was read, if its parts are of one size."""
    width = prior.coordinates.width * max(prior.loss.outputs, 1)
    fits = prior.members and all(m.mean[0].size == width for m in prior.members)
    if not (fits and prior.rule.choices and isinstance(prior.environment, Environment)):
        raise ValueError("parts of other sizes")
    return prior


def _column_attributes(model: Any) -> dict[str, Any]:
    """How many columns rows have, and their names if they have some."""
    return {n: v for n, v in vars(model).items() if n in ("n_features_in_", "feature_names_in_")}


def _storable_parameter(value: Any) -> Any:
    """A parameter as it is stored: of a random generator nothing, as it has moved on."""
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return None
    return os.path.abspath(value) if isinstance(value, os.PathLike) else value

"""Estimators and models of tasks on disk: one safetensors file, its header a JSON text; nothing is
executed on reading, and every byte is checked.

Names of tasks are data, not header: a header of more than 100 MB is read by no library.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fmrl.core.checkpoint import WRONG
from fmrl.core.prior.mixture import Mixture, Posterior
from fmrl.core.tasks import Tasks
from fmrl.core.values import parse
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import Choice, Rule
from fmrl.estimators.common import Trees
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.environment import Environment
from fmrl.estimators.prior import Prior, loss_of
from fmrl.estimators.rows_sqlite import SQLiteRows, not_utf8
from fmrl.files import atomic, from_json
from fmrl.tables.encoder import Encoder
from fmrl.tables.features import Expanded, describe, rebuild

FORMAT = 1

Arrays = dict[str, np.ndarray]


def save(estimator: Any, path: str | os.PathLike) -> Path:
    """Write a fitted estimator; the old file survives until the new one is complete.

    Args:
        estimator: A MetaClassifier or MetaRegressor.
        path: The file.
    """
    if not estimator._known:
        raise FMRLError(f"this {type(estimator).__name__} is not fitted", fix="call fit first")
    arrays: Arrays = {}
    return _write(path, _estimator_layout(estimator, arrays), arrays)


def load(path: str | os.PathLike, kind: type) -> Any:
    """Read an estimator, ready to predict, adapt and take more rows.

    Args:
        path: A file that `save` wrote.
        kind: Its class.
    """
    return _load(path, kind, _estimator_of)


def save_task_model(model: Any, path: str | os.PathLike) -> Path:
    """Write the fitted model of one task, with the prior that `fit` adapts.

    Args:
        model: A TaskClassifier or TaskRegressor.
        path: The file.
    """
    arrays: Arrays = {"theta": model._theta, "spread": model._spread}
    layout = {"format": FORMAT, "class": type(model).__name__, "mass": model._mass}
    layout |= {"name": _storable([model._name])[0], "prior": _prior_layout(model.prior, arrays)}
    names = getattr(model, "feature_names_in_", None)
    layout |= {"features": None if names is None else names.tolist()}
    return _write(path, layout, arrays)


def load_task_model(path: str | os.PathLike, kind: type) -> Any:
    """Read the model of one task.

    Args:
        path: A file that `save_task_model` wrote.
        kind: Its class.
    """

    def rebuilt(layout: dict[str, Any], arrays: Arrays, kind: type) -> Any:
        model = kind(_prior_of(layout["prior"], arrays))
        model._set(Posterior(arrays["theta"], arrays["spread"]), layout["mass"])
        model._name = layout["name"]
        if layout["features"] is not None:
            model.feature_names_in_ = np.array(layout["features"], dtype=object)
        return model

    return _load(path, kind, rebuilt)


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


def _write(path: str | os.PathLike, layout: dict[str, Any], arrays: Arrays) -> Path:
    # One entry: the library writes several in random order, and the same estimator is to be the
    # same bytes.
    try:
        sealed = _text(layout | {"sha256": _digest(_text(layout), arrays)})
    except UnicodeEncodeError as error:
        before, after = error.object[: error.start], error.object[error.start :]
        raise not_utf8(before.rpartition('"')[2] + after.partition('"')[0]) from None
    return write_tensors(path, arrays, {"fmrl": sealed})


def _load(path: str | os.PathLike, kind: type, rebuild: Any) -> Any:
    layout, arrays = _read(Path(path))
    if layout.get("class") != kind.__name__:
        raise FMRLError(
            f"{path} holds a {layout.get('class')}",
            fix=f"load it with {layout.get('class')}.load(path)",
        )
    try:
        return rebuild(layout, arrays, kind)
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


def _estimator_layout(est: Any, arrays: Arrays) -> dict[str, Any]:
    """Everything of an estimator but the arrays, which are put aside under their names."""
    outside = isinstance(est._rows, SQLiteRows)
    names = [] if outside else list(est._rows)
    odd = next((n for n in names if not (n is None or isinstance(n, (str, int, float)))), None)
    if odd is not None:
        raise FMRLError(
            f"the task id {odd!r} is neither a number nor text",
            fix="convert ids to text before fitting",
        )
    if names:
        rows = est._rows.take(names)
        found = {"X": rows.X, "target": rows.target, "starts": rows.starts, "weight": rows.weight}
        arrays |= {f"tasks.{part}": array for part, array in found.items() if array is not None}
        arrays["tasks.names"] = names_to_array(names)
    params = est.get_params(deep=False)
    features = params.pop("features")
    seen = getattr(est, "feature_names_in_", None)
    return {
        "format": FORMAT,
        "class": type(est).__name__,
        "params": {name: _param(value) for name, value in params.items()},
        "transformer": None if features is None else describe(features, arrays, "asked"),
        "prior": _prior_layout(est._prior, arrays),
        "features": None if seen is None else seen.tolist(),
        "n_features": int(est.n_features_in_),
        "rows": [int(est._seen_rows), int(est._learned_rows)],
        "store": [est._rows.path, est._rows.id] if outside else None,
    }


def _estimator_of(layout: dict[str, Any], arrays: Arrays, kind: type) -> Any:
    params = {
        name: parse(v["repr"]) if isinstance(v, dict) else v for name, v in layout["params"].items()
    }
    est = kind(**params, features=rebuild(layout["transformer"], arrays))
    prior = _prior_of(layout["prior"], arrays)
    if prior.classes is not None:
        est.classes_ = prior.classes
    if prior.encoder is not None:
        est.encoder_ = prior.encoder
    if layout["features"] is not None:
        est.feature_names_in_ = np.array(layout["features"], dtype=object)
    est.n_features_in_ = layout["n_features"]
    rows = (
        None
        if layout["store"] is None
        else SQLiteRows(layout["store"][0], est._kind(), layout["store"][1])
    )
    est._begin(prior, 0, rows)
    est._seen_rows, est._learned_rows = layout["rows"]
    if "tasks.names" in arrays:
        parts = ("X", "target", "starts", "weight")
        X, target, starts, weight = (arrays.get(f"tasks.{part}") for part in parts)
        heaviest = 1.0 if weight is None else float(weight.max())
        names = array_to_names(arrays["tasks.names"])
        est._rows.add(Tasks(est._loss(), X, target, starts, names, weight, heaviest))
    return est


def _prior_layout(prior: Prior, arrays: Arrays) -> dict[str, Any]:
    """A prior but for its arrays, which are put aside."""
    here, encoder, classes = prior.coordinates, prior.encoder, prior.classes
    arrays |= {"centre": here.centre, "scale": here.scale}
    if here.basis is not None:
        arrays["basis"] = here.basis
    for i, member in enumerate(prior.members):
        parts = {"mean": member.mean, "covariance": member.covariance, "shares": member.shares}
        arrays |= {f"member.{i}.{name}": array for name, array in parts.items()}
    transformer = getattr(encoder, "transformer", None)
    return {
        "coordinates": [here.constant, here.shift, here.unit],
        "members": [[m.family, m.noise, m.tasks] for m in prior.members],
        "rule": [list(c) for c in prior.rule.choices],
        "classes": None if classes is None else [classes.tolist(), classes.dtype.str],
        "encoder": encoder.table.to_json() if encoder else None,
        "transformer": None if transformer is None else describe(transformer, arrays, "fitted"),
        "common": _trees_layout(prior, arrays),
        "environment": asdict(prior.environment),
    }


def _prior_of(layout: dict[str, Any], arrays: Arrays) -> Prior:
    """What `_prior_layout` took apart."""
    shape = arrays["centre"], arrays["scale"], *layout["coordinates"]
    here = Coordinates(*shape, basis=arrays.get("basis"))
    group = []
    for i, (family, noise, tasks) in enumerate(layout["members"]):
        parts = (arrays[f"member.{i}.{name}"] for name in ("mean", "covariance", "shares"))
        mean, covariance, shares = parts
        group.append(Mixture(family, mean, covariance, noise, shares, tasks))
    parts = ((n, tuple(w), m, s, tuple(e), *k) for n, w, m, s, e, *k in layout["rule"])
    rule = Rule(tuple(Choice(*part) for part in parts))
    classes = None
    if layout["classes"] is not None:
        labels, kind = layout["classes"]
        classes = np.array(labels, dtype=np.dtype(kind))
    encoder = None if layout["encoder"] is None else Encoder.from_json(layout["encoder"])
    if encoder is not None and layout["transformer"] is not None:
        fitted = rebuild(layout["transformer"], arrays)
        encoder = Expanded(encoder.columns, encoder.policy, encoder.task, fitted)
    common = None
    if layout["common"] is not None:
        names = (f.name for f in fields(Trees) if f.name not in layout["common"])
        common = Trees(**{n: arrays[f"common.{n}"] for n in names}, **layout["common"])
    where = Environment(**layout["environment"])
    prior = Prior(here, tuple(group), rule, classes, encoder, common, where)
    width = here.width * max(loss_of(classes).outputs, 1)
    if any(m.mean[0].size != width for m in group) or not group or not rule.choices:
        raise ValueError("parts of other sizes")
    return prior


def _trees_layout(prior: Prior, arrays: Arrays) -> dict[str, Any] | None:
    """The numbers of trees, whose arrays are put aside."""
    if prior.common is None:
        return None
    if not isinstance(prior.common, Trees):
        what = "the common part is a model of another library, which cannot be stored"
        raise FMRLError(what, fix="use common='auto' or 'linear', or pickle the estimator")
    parts = {f.name: getattr(prior.common, f.name) for f in fields(Trees)}
    arrays |= {f"common.{n}": a for n, a in parts.items() if isinstance(a, np.ndarray)}
    return {n: v for n, v in parts.items() if not isinstance(v, np.ndarray)}


def _storable(names: Any) -> list[Any]:
    """Names of tasks; None for those that can be in no file."""
    return [n if isinstance(n, (str, int, float)) else None for n in names]


def _param(value: Any) -> Any:
    value = os.path.abspath(value) if isinstance(value, os.PathLike) else value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return None  # a generator has moved on: its state says nothing about this fit
    if not hasattr(value, "__dataclass_params__"):
        raise FMRLError(
            f"the parameter {value!r} cannot be stored",
            fix="use a number, text or one of the library's values",
        )
    try:
        parse(repr(value))
    except FMRLError:
        raise FMRLError(f"the parameter {value!r} could not be read back") from None
    return {"repr": repr(value)}

"""Estimators on disk: one safetensors file, its header a JSON text; nothing is executed on
reading, and every byte is checked.

Names of tasks are data, not header: a header of more than 100 MB is read by no library.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fmrl.core.algorithm import Round
from fmrl.core.checkpoint import WRONG, flatten, unflatten
from fmrl.core.history import KEEP, History
from fmrl.core.tasks import Tasks
from fmrl.core.values import parse
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import Choice, Rule
from fmrl.estimators.common import Trees
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.environment import Environment
from fmrl.estimators.learning import CACHED
from fmrl.estimators.many_models import Thetas
from fmrl.estimators.population import Population
from fmrl.estimators.rows_sqlite import SQLiteRows, not_utf8
from fmrl.estimators.stream import Streams
from fmrl.estimators.task_models import Prior
from fmrl.files import atomic, from_json
from fmrl.tables.encoder import Encoder
from fmrl.tables.features import Expanded, describe, rebuild

FORMAT = 5


def save(estimator: Any, path: str | os.PathLike) -> Path:
    """Write a fitted estimator; the old file survives until the new one is complete."""
    if not hasattr(estimator, "history_"):
        raise FMRLError(f"this {type(estimator).__name__} is not fitted", fix="call fit first")
    arrays: dict[str, np.ndarray] = {}
    layout = _describe(estimator, arrays)
    # One entry: the library writes several in random order, and the same estimator is to be the
    # same bytes.
    try:
        sealed = _text(layout | {"sha256": _digest(_text(layout), arrays)})
    except UnicodeEncodeError as error:
        before, after = error.object[: error.start], error.object[error.start :]
        raise not_utf8(before.rpartition('"')[2] + after.partition('"')[0]) from None
    return write_tensors(path, arrays, {"fmrl": sealed})


def write_tensors(
    path: str | os.PathLike, arrays: dict[str, np.ndarray], about: dict[str, str]
) -> Path:
    """Write arrays to a safetensors file, whole or not at all."""
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


def load(path: str | os.PathLike, kind: type) -> Any:
    """Read an estimator of class ``kind``, ready to predict, adapt and go on learning."""
    layout, arrays = _read(Path(path))
    if layout.get("class") != kind.__name__:
        raise FMRLError(
            f"{path} holds a {layout.get('class')}",
            fix=f"load it with fmrl.{layout.get('class')}.load(path)",
        )
    try:
        return _rebuild(layout, arrays, kind)
    except WRONG as error:
        if isinstance(error, FMRLError):
            raise
        raise _damaged(path) from None


def _text(layout: dict[str, Any]) -> str:
    return json.dumps(layout, allow_nan=True, ensure_ascii=False)


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype.str}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        if not path.is_file():
            raise FileNotFoundError
        with safe_open(path, framework="numpy") as file:
            layout = from_json((file.metadata() or {})["fmrl"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        version, digest = layout["format"], layout.pop("sha256", None)
    except FileNotFoundError:
        raise FMRLError(f"there is no file {path}") from None
    except (*WRONG, SafetensorError, OSError, MemoryError):
        raise _damaged(path) from None
    if version != FORMAT:
        raise FMRLError(
            f"{path} has format {version}, this version reads {FORMAT}",
            fix="use the version that wrote it",
        )
    if digest != _digest(_text(layout), arrays):
        raise _damaged(path)
    return layout, arrays


def _damaged(path: Any) -> FMRLError:
    return FMRLError(f"{path} is not a stored FMRL model, or is damaged", fix="use an older copy")


def _describe(est: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Everything but the arrays, which are put aside under their names."""
    outside = isinstance(est._rows, SQLiteRows)
    names = [] if outside else list(est._rows)
    odd = next((n for n in names if not (n is None or isinstance(n, (str, int, float)))), None)
    if odd is not None:
        raise FMRLError(
            f"the task id {odd!r} is neither a number nor text",
            fix="convert ids to text before fitting",
        )
    here, even, prior, history = est.coordinates_, est._even, est.prior_, est.history_
    arrays["centre"], arrays["scale"], arrays["even"] = here.centre, here.scale, even.scale
    if even.basis is not None:
        arrays["basis"] = even.basis
    for i, member in enumerate(prior.members):
        parts = {"mean": member.mean, "covariance": member.covariance, "shares": member.shares}
        arrays |= {f"member.{i}.{name}": array for name, array in parts.items()}
    columns = [name for name in KEEP[history.keep] if name != "losses"] if len(history) else []
    arrays |= {f"history.{name}": np.asarray(getattr(history, name)) for name in columns}
    if names:
        _rows(est._rows.take(names), "tasks", arrays)
        arrays["tasks.names"] = names_to_array(names)
    for i, tasks in enumerate([est._pilot, *est._fresh]):
        _rows(tasks, f"pilot.{i}", arrays)
    classes, encoder = getattr(est, "classes_", None), getattr(est, "encoder_", None)
    params = est.get_params(deep=False)
    parts = [params.pop("features"), getattr(encoder, "transformer", None)]
    made = None if parts == [None, None] else describe(parts, arrays, "features")
    return (
        {
            "format": FORMAT,
            "class": type(est).__name__,
            "params": {name: _param(value) for name, value in params.items()},
            "coordinates": [here.constant, here.shift, here.unit, here.length, here.radius],
            "even": [even.constant, even.shift, even.unit, even.length],
            "lipschitz": est.lipschitz_,
            "common": _common(prior, arrays),
            "environment": asdict(prior.environment),
            "members": [[m.family, m.noise, m.tasks] for m in prior.members],
            "rule": [list(c) for c in prior.rule.choices],
            "algo": repr(history.algo),
            "keep": history.keep,
            "start": flatten(history.start, arrays),
            "end": flatten(history.state, arrays),
            "state": flatten(est.state_, arrays),
            "same": est.state_ is history.state,
            "classes": None
            if classes is None
            else {"labels": classes.tolist(), "dtype": classes.dtype.str},
            "features": est.feature_names_in_.tolist()
            if hasattr(est, "feature_names_in_")
            else None,
            "n_features": int(est.n_features_in_),
            "encoder": encoder.table.to_json() if encoder else None,
            "streams": [*est.streams_[:3], list(est.streams_.regret)],
            "fresh": len(est._fresh),
            "pilot": [_plain(t.names) for t in (est._pilot, *est._fresh)],
            "store": [est._rows.path, est._rows.id] if outside else None,
            "totals": None if history._totals is None else [float(a) for a in history._totals],
        }
        | ({} if made is None else {"transformer": made})
        | ({} if history.meta_batch == 1 else {"meta_batch": history.meta_batch})
    )


def _common(prior: Prior, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The numbers of a common part, whose arrays are put aside."""
    if prior.common is None:
        return None
    if not isinstance(prior.common, Trees):
        what = "the common part is a model of another library, which cannot be stored"
        raise FMRLError(what, fix="use common='auto' or 'linear', or pickle the estimator")
    parts = {f.name: getattr(prior.common, f.name) for f in fields(Trees)}
    arrays |= {f"common.{n}": a for n, a in parts.items() if isinstance(a, np.ndarray)}
    arrays["wide.centre"], arrays["wide.scale"] = prior.coordinates.centre, prior.coordinates.scale
    return {n: v for n, v in parts.items() if not isinstance(v, np.ndarray)}


def _plain(names: Any) -> list[Any]:
    """Names of tasks; None for those that can be in no file."""
    return [n if isinstance(n, (str, int, float)) else None for n in names]


def _param(value: Any) -> Any:
    value = os.path.abspath(value) if isinstance(value, os.PathLike) else value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if not hasattr(value, "__dataclass_params__"):
        raise FMRLError(
            f"the parameter {value!r} cannot be stored",
            fix="use a number, text or one of the library's values",
        )
    try:
        parse(repr(value))
    except FMRLError:
        fix = "subclass fmrl.SimilarityRule, MetaUpdate, UpdateRule or Learner, under a new name"
        raise FMRLError(f"the parameter {value!r} could not be read back", fix=fix) from None
    return {"repr": repr(value)}


def _rebuild(layout: dict[str, Any], arrays: dict[str, np.ndarray], kind: type) -> Any:
    params = {
        name: parse(v["repr"]) if isinstance(v, dict) else v for name, v in layout["params"].items()
    }
    est = kind(**params)
    est._reset()
    est.coordinates_ = Coordinates(arrays["centre"], arrays["scale"], *layout["coordinates"])
    even = est._even = Coordinates(
        arrays["centre"], arrays["even"], *layout["even"], basis=arrays.get("basis")
    )
    est.lipschitz_ = layout["lipschitz"]
    history = History(
        parse(layout["algo"]),
        unflatten(layout["start"], arrays),
        layout["keep"],
        layout.get("meta_batch", 1),
    )
    columns = {name: arrays.get(f"history.{name}") for name in Round._fields}
    if columns["regret"] is not None:
        history.append(Round(**columns), unflatten(layout["end"], arrays))
    elif layout.get("totals") is not None:
        history._totals = tuple(np.float64(a) for a in layout["totals"])
        history.state = unflatten(layout["end"], arrays)
    est.history_ = history
    est.state_ = history.state if layout["same"] else unflatten(layout["state"], arrays)
    history.algo.check(est._state)
    if layout["classes"] is not None:
        est.classes_ = np.array(
            layout["classes"]["labels"], dtype=np.dtype(layout["classes"]["dtype"])
        )
    if layout["features"] is not None:
        est.feature_names_in_ = np.array(layout["features"], dtype=object)
    est.n_features_in_ = layout["n_features"]
    if layout.get("encoder") is not None:
        est.encoder_ = table = Encoder.from_json(layout["encoder"])
    if layout.get("transformer") is not None:
        est.features, fitted = rebuild(layout["transformer"], arrays)
        if fitted is not None:
            est.encoder_ = Expanded(table.columns, table.policy, table.task, fitted)
    group = []
    for i, (family, noise, tasks) in enumerate(layout["members"]):
        parts = (arrays[f"member.{i}.{name}"] for name in ("mean", "covariance", "shares"))
        mean, covariance, shares = parts
        group.append(Population(family, mean, covariance, noise, shares, tasks))
    parts = ((n, tuple(w), m, s, tuple(e), *k) for n, w, m, s, e, *k in layout["rule"])
    rule = Rule(tuple(Choice(*part) for part in parts))
    known = getattr(est, "classes_", None), getattr(est, "encoder_", None)
    common, wide = None, even
    if layout["common"] is not None:
        names = (f.name for f in fields(Trees) if f.name not in layout["common"])
        common = Trees(**{n: arrays[f"common.{n}"] for n in names}, **layout["common"])
        wide = replace(even, centre=arrays["wide.centre"], scale=arrays["wide.scale"])
    est._prior = Prior(
        wide, tuple(group), rule, *known, common, Environment(**layout["environment"])
    )
    named = arrays.get("tasks.names")
    if named is not None:
        est._rows.add(_tasks(est._loss(), array_to_names(named), "tasks", arrays))
    *totals, regret = layout["streams"]
    est.streams_ = Streams(*totals, tuple(regret))
    called = layout.get("pilot") or [None] * (1 + layout["fresh"])
    every = [_tasks(est._loss(), c, f"pilot.{i}", arrays) for i, c in enumerate(called)]
    if layout.get("store") is not None:
        path, id = layout["store"]
        est._rows, est._models = SQLiteRows(path, est._kind(), id), Thetas(CACHED)
    est._pilot, est._fresh = every[0], every[1:]
    return est


def _rows(tasks: Tasks, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Put the rows of some tasks aside."""
    found = {"X": tasks.X, "target": tasks.target, "starts": tasks.starts, "weight": tasks.weight}
    arrays |= {f"{name}.{part}": array for part, array in found.items() if array is not None}


def _tasks(loss: Any, names: Any, name: str, arrays: dict[str, np.ndarray]) -> Tasks:
    """What `_rows` put aside."""
    parts = ("X", "target", "starts", "weight")
    X, target, starts, weight = (arrays.get(f"{name}.{part}") for part in parts)
    heaviest = 1.0 if weight is None else float(weight.max())
    return Tasks(loss, X, target, starts, names or range(len(starts) - 1), weight, heaviest)

"""Estimators on disk: one safetensors file, its header a JSON text; nothing is executed on
reading, and every byte is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from fmrl.core.algorithm import Round
from fmrl.core.checkpoint import flatten, unflatten
from fmrl.core.history import KEEP, History
from fmrl.core.tasks import Tasks
from fmrl.core.values import parse
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import Choice, Rule
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.stream import Streams
from fmrl.files import write
from fmrl.tables.encoder import Encoder

FORMAT = 2


def save(estimator: Any, path: str | os.PathLike) -> Path:
    """Write a fitted estimator; the old file survives until the new one is complete."""
    if not hasattr(estimator, "history_"):
        raise FMRLError(f"this {type(estimator).__name__} is not fitted", fix="call fit first")
    estimator._settle()
    arrays: dict[str, np.ndarray] = {}
    layout = _describe(estimator, arrays)
    arrays = {name: np.array(a, order="C") for name, a in arrays.items()}
    # One entry: the library writes several in random order, and the same estimator is to be the
    # same bytes.
    body = to_bytes(arrays, {"fmrl": _text(layout | {"sha256": _digest(_text(layout), arrays)})})
    return write(path, body)


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
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, FMRLError):
            raise
        raise _damaged(path) from None


def _text(layout: dict[str, Any]) -> str:
    return json.dumps(layout, allow_nan=True, ensure_ascii=False)


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype.str}{arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        if not path.is_file():
            raise FileNotFoundError
        with safe_open(path, framework="numpy") as file:
            layout = json.loads((file.metadata() or {})["fmrl"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        version, digest = layout["format"], layout.pop("sha256", None)
    except FileNotFoundError:
        raise FMRLError(f"there is no file {path}") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, OverflowError, MemoryError):
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
    names = list(est._thetas)
    odd = next(
        (n for n in est._known if not (n is None or isinstance(n, (str, int, float, bool)))), None
    )
    if odd is not None:
        raise FMRLError(
            f"the task id {odd!r} is neither a number nor text",
            fix="convert ids to text before fitting",
        )
    here, rule, history = est.coordinates_, est.rule_, est.history_
    arrays["centre"], arrays["scale"] = here.centre, here.scale
    if names:
        arrays["tasks.theta"] = np.stack([est._thetas[n] for n in names])
    if est.pooled_ is not None:
        arrays["pooled"] = est.pooled_
    columns = [name for name in KEEP[history.keep] if name != "losses"] if len(history) else []
    arrays |= {f"history.{name}": np.asarray(getattr(history, name)) for name in columns}
    for i, task in enumerate(est._pilot):
        arrays[f"pilot.{i}.X"], arrays[f"pilot.{i}.target"] = task.X, task.target
        if task.weight is not None:
            arrays[f"pilot.{i}.weight"] = task.weight
    classes = getattr(est, "classes_", None)
    return {
        "format": FORMAT,
        "class": type(est).__name__,
        "params": {name: _param(value) for name, value in est.get_params(deep=False).items()},
        "coordinates": [here.constant, here.shift, here.unit, here.length, here.radius],
        "rule": [rule.lipschitz, [list(c) for c in rule.choices], rule.pooled],
        "algo": repr(history.algo),
        "keep": history.keep,
        "start": flatten(history.start, arrays),
        "end": flatten(history.state, arrays),
        "state": flatten(est.state_, arrays),
        "same": est.state_ is history.state,
        "classes": None
        if classes is None
        else {"labels": classes.tolist(), "dtype": classes.dtype.str},
        "features": est.feature_names_in_.tolist() if hasattr(est, "feature_names_in_") else None,
        "n_features": int(est.n_features_in_),
        "encoder": est.encoder_.to_json() if hasattr(est, "encoder_") else None,
        "tasks": names,
        "known": sorted((n for n in est._known if n not in est._thetas), key=repr),
        "streams": [*est.streams_[:3], list(est.streams_.regret)],
        "pilot": [len(est._pilot), est._piloted],
    } | ({} if history.meta_batch == 1 else {"meta_batch": history.meta_batch})


def _param(value: Any) -> Any:
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
    lipschitz, choices, pooled = layout["rule"]
    est.rule_ = Rule(lipschitz, tuple(Choice(*c) for c in choices), pooled)
    est.pooled_ = arrays.get("pooled")
    history = History(
        parse(layout["algo"]),
        unflatten(layout["start"], arrays),
        layout["keep"],
        layout.get("meta_batch", 1),
    )
    columns = {name: arrays.get(f"history.{name}") for name in Round._fields}
    if columns["regret"] is not None:
        history.append(Round(**columns), unflatten(layout["end"], arrays))
    est.history_ = history
    est.state_ = history.state if layout["same"] else unflatten(layout["state"], arrays)
    if layout["classes"] is not None:
        est.classes_ = np.array(
            layout["classes"]["labels"], dtype=np.dtype(layout["classes"]["dtype"])
        )
    if layout["features"] is not None:
        est.feature_names_in_ = np.array(layout["features"], dtype=object)
    est.n_features_in_ = layout["n_features"]
    if layout.get("encoder") is not None:
        est.encoder_ = Encoder.from_json(layout["encoder"])
    if layout["tasks"]:
        est._thetas = dict(zip(layout["tasks"], arrays["tasks.theta"], strict=True))
    est._known = set(layout["tasks"]) | set(layout["known"])
    *totals, regret = layout["streams"]
    est.streams_ = Streams(*totals, tuple(regret))
    count, est._piloted = layout["pilot"]
    loss = est._loss()
    for i in range(count):
        X, target, weight = (arrays.get(f"pilot.{i}.{part}") for part in ("X", "target", "weight"))
        heaviest = 1.0 if weight is None else float(weight.max())
        starts = np.array([0, len(X)])
        est._pilot.append(Tasks(loss, X, target, starts, [i], weight, heaviest))
    return est

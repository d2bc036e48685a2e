"""Models of many tasks, in one file: coefficients and intercepts under the user's names and in the
user's units, made by adapting to the tasks of a table.

``.json`` is for reading, ``.safetensors`` for many tasks. Either way the margin of a row x is
intercept + Σ coef·x + Σ common·g(x), where x has one entry a feature: a number as it stands in the
table (its training mean where it is missing), 1 or 0 for ``column=level`` and for ``column is
missing``; g is the common part of the run, of which most runs have none. A regression predicts the
margin; two classes the second if it is positive; more the class of the largest. ``rows`` is how
many rows a model has seen. ``spread`` is how uncertain it still is, the upper triangle of a
covariance in the coordinates of the run's prior: `fmrl.runs.predictions` turns it into
probabilities and intervals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.datasets import tasks_from_frame
from fmrl.errors import FMRLError
from fmrl.estimators.prior import Prior
from fmrl.estimators.storage import array_to_names, names_to_array, write_tensors
from fmrl.files import from_json, read_json
from fmrl.records import write_json
from fmrl.runs.folder import MODEL, TASKS, Run, seal, unseal
from fmrl.runs.source import Window, files, windows
from fmrl.tables.encoder import Encoder

FORMAT, READS = 2, (1, 2)  # in 1 the names of tasks were part of a safetensors file's header
ARRAYS = ("coef", "intercept", "common", "rows", "spread")
WIDEST = 10_000_000  # numbers of all spreads of a file; beyond, they are left out


@dataclass(frozen=True, eq=False)
class Models:
    """Models of tasks, by id."""

    ids: list[str]
    coef: np.ndarray  # [T, outputs, f]
    intercept: np.ndarray  # [T, outputs]
    common: np.ndarray  # [T, outputs, c] coefficients of the common part's c columns
    rows: np.ndarray  # [T] seen, by weight
    spread: np.ndarray  # [T, outputs, w(w + 1)/2], NaN where unknown; [T, outputs, 0] if everywhere
    features: list[str]
    classes: list | None  # None: a regression
    run: str  # sha256 of the model file they start from

    def save(self, path: Path) -> None:
        """Write to ``path``, completely or not at all; its suffix chooses the kind of file."""
        head = {"format": FORMAT, "kind": "fmrl models"}
        head |= {name: getattr(self, name) for name in ("features", "classes", "run")}
        if path.suffix == ".json":
            columns = zip(*(getattr(self, name) for name in ARRAYS), strict=True)
            models = (dict(zip(ARRAYS, model, strict=True)) for model in columns)
            tasks = dict(zip(self.ids, models, strict=True))
            write_json(path, seal(head | {"tasks": tasks}))
        elif path.suffix == ".safetensors":
            arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
            arrays["tasks"] = names_to_array(self.ids)
            head |= {"arrays": _digest(arrays)}
            write_tensors(path, arrays, {"fmrl": json.dumps(seal(head))})
        else:
            what = f"{path.name} is not a file of models"
            raise FMRLError(what, fix="name it .json or .safetensors")

    def over(self, old: Models) -> Models:
        """These models, and those of ``old`` whose tasks are not among them."""
        ours = set(self.ids)
        kept = [i for i, name in enumerate(old.ids) if name not in ours]
        both = {name: _joined(getattr(old, name)[kept], getattr(self, name)) for name in ARRAYS}
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
            good = found._fits() and len(set(found.ids)) == len(found.ids)
        except Exception:  # damage can show in any way
            good = False
        if not good:
            what = f"{path} is not a file of models, or is damaged"
            raise FMRLError(what, fix="write it again with fmrl adapt")
        return found

    def _fits(self) -> bool:
        """Whether the arrays have the shapes they should have."""
        outputs = len(self.classes) if self.classes and len(self.classes) > 2 else 1
        shape = (len(self.ids), outputs, len(self.features))
        most = shape[2] + self.common.shape[2] + 1  # fewer with principal directions
        wide = [w * (w + 1) // 2 for w in range(most + 1)]
        good = self.coef.shape == shape and self.intercept.shape == shape[:2]
        good = good and self.common.shape[:2] == shape[:2] and self.rows.shape == shape[:1]
        return good and self.spread.shape[:2] == shape[:2] and self.spread.shape[2] in wide


def _joined(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Both, one after the other; spreads that one of them lacks are not known."""
    most = max(old.shape[-1:], new.shape[-1:])

    def filled(a: np.ndarray) -> np.ndarray:
        short = a.ndim > 1 and a.shape[-1:] < most
        return np.full((*a.shape[:-1], *most), np.nan) if short else a

    return np.concatenate([filled(old), filled(new)])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if path.suffix == ".json":
        head = unseal(read_json(path)) or {}
        tasks = head["tasks"]
        arrays = {name: np.array([t[name] for t in tasks.values()], dtype=float) for name in ARRAYS}
        head = head | {"tasks": list(tasks)}
    else:
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            head = unseal(from_json(file.metadata()["fmrl"])) or {}
            named = [] if "tasks" in head else ["tasks"]  # in format 1 they were part of the header
            arrays = {name: file.get_tensor(name) for name in [*ARRAYS, *named]}
        if head["arrays"] != _digest(arrays):
            raise ValueError
        if named:
            head["tasks"] = array_to_names(arrays.pop("tasks"))
    if head["kind"] != "fmrl models" or head["format"] not in READS:
        raise ValueError
    return head, arrays


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in (n for n in (*ARRAYS, "tasks") if n in arrays):
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def adapt_all(prior: Prior, encoder: Encoder, windows: Iterable[Window], run: str) -> Models:
    """Adapt to every task of some windows."""
    ids, parts, width = [], [], prior.coordinates.width
    most = WIDEST // (prior.loss.outputs * width * (width + 1) // 2)  # tasks with a spread
    for window in windows:
        if (tasks := window.tasks) is not None:
            ids += window.names
            found = prior.adapt(tasks, spread=len(ids) <= most)
            (coef, common), intercept = _in_table(prior, encoder, found.theta)
            none = np.empty((*found.theta.shape[:2], 0))
            spread = none if found.spread is None else packed(found.spread)
            parts.append((coef, intercept, common, np.asarray(tasks.mass, float), spread))
    if not parts:
        raise FMRLError("there is no task to adapt to", fix="give a table with labelled rows")
    *arrays, spreads = zip(*parts, strict=True)
    if len(ids) > most:  # all or none, whatever the windows were
        spreads = [s[..., :0] for s in spreads]
    columns = [np.concatenate(column) for column in (*arrays, spreads)]
    classes = None if prior.classes is None else prior.classes.tolist()
    return Models(ids, *columns, encoder.names, classes, run)


def _in_table(
    prior: Prior, encoder: Encoder, theta: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Models theta [T, outputs, width] in the units of the table: coefficients of the features and
    of the common part, and intercepts.
    """
    flat = theta.reshape(len(theta), -1)
    coef, intercept = prior.coordinates.model(flat, prior.loss.outputs)
    coef, common = np.split(coef, [prior.features], axis=-1)
    coef, intercept = in_user_units(encoder, coef, intercept)
    return [coef, common], intercept


def encoded(encoder: Encoder, models: Models) -> np.ndarray:
    """Models [T, outputs, f + c + 1] of encoded rows, of the common part's columns and of a 1."""
    centre, spread = _scales(encoder)
    level = models.intercept + models.coef @ centre
    return np.concatenate([models.coef * spread, models.common, level[..., None]], axis=-1)


def packed(spread: np.ndarray) -> np.ndarray:
    """The upper triangles [..., w(w + 1)/2] of symmetric matrices [..., w, w].

    >>> packed(np.array([[1.0, 2.0], [2.0, 3.0]]))
    array([1., 2., 3.])
    """
    return spread[(..., *np.triu_indices(spread.shape[-1]))]


def _scales(encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """What every encoded column was centred by and divided by; only numbers are."""
    centre, spread = [], []
    for c in encoder.columns:
        own = 1 if c.levels is None else len(c.levels)
        centre += [c.centre] * own + [0.0] * c.indicator
        spread += [c.spread] * own + [1.0] * c.indicator
    return np.array(centre), np.array(spread)


def in_user_units(
    encoder: Encoder, coef: np.ndarray, intercept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Models [..., outputs, f] and [..., outputs] of encoded rows as models of rows as they stand
    in the table.

    >>> from fmrl.tables.encoder import Column
    >>> encoder = Encoder((Column("age", centre=40.0, spread=10.0),))
    >>> in_user_units(encoder, np.array([[2.0]]), np.array([1.0]))
    (array([[0.2]]), array([-7.]))
    """
    centre, spread = _scales(encoder)
    coef = coef / spread
    return coef, intercept - coef @ centre


def adapt(run: Run, table: str, progress: Callable[[int], None] = lambda done: None) -> Models:
    """Models of the tasks in a table of labelled rows, which has the columns that were trained on.

    Args:
        run: What was learned.
        table: File or quoted glob.
        progress: Called with the number of tasks adapted to so far.
    """
    files(table)
    options = run.settings.options
    given: dict[str, Any] = {"task": options.task, "target": options.target, "rows": options.rows}
    given |= {"order": options.order or None, "apart": options.apart, "one_class": "keep"}
    stream = tasks_from_frame(table, **given, encoder=run.encoder, loss=run.settings.loss)

    def counted() -> Iterator[Window]:
        done = 0
        for window in windows(stream.blocks()):
            yield window
            done += len(window.names)
            progress(done)

    return adapt_all(run.prior, run.encoder, counted(), run.record["files"][MODEL])


def rows_seen(run: Run, models: Models) -> tuple[int, int]:
    """How many of these tasks were seen in training, and with how many rows."""
    rows = pl.read_parquet(run.file(TASKS)).filter(pl.col("task").is_in(models.ids))["rows"]
    return len(rows), int(rows.sum())

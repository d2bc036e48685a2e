"""The network of the playground, read from a checkpoint of `fmrl.deep` without torch."""

from __future__ import annotations

import ast
import base64
import json
import math
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from fmrl.errors import FMRLError
from fmrl.files import from_json

SIDE, WAYS = 28, 3  # of the images; the fewest classes
LONGEST = 500  # letters of a rule
LOSS = "fmrl.deep.losses.cross_entropy"
OWN = "omniglot.safetensors"  # trained by scripts/train_playground.py
_NET = "train fmrl.deep.omniglot_net(ways, filters=…) with three ways or more on 28×28 images"


@dataclass(frozen=True, eq=False)
class Weights:
    """A start, and the rule by which it adapts.

    Args:
        filters: Channels of every convolution.
        ways: Outputs.
        theta: The learned start, [P].
        second: Adam's second moments [P]; None where it carries none, or for SGD.
        taken: Steps behind them.
        step: eta.
        adaptive: Whether the rule is Adam.
        beta2: Decay of Adam's second moments.
        eps: Added to their root.
        accuracy: What the checkpoint's record says of new tasks, a row a setting.
    """

    filters: int
    ways: int
    theta: np.ndarray
    second: np.ndarray | None
    taken: int
    step: float
    adaptive: bool = True
    beta2: float = 0.999
    eps: float = 1e-8
    accuracy: tuple[dict[str, Any], ...] = ()

    def data(self) -> dict[str, Any]:
        """What the page reads: numbers, and arrays as base64 of little-endian float32."""
        found = {k: v for k, v in vars(self).items() if not isinstance(v, np.ndarray)}
        arrays = {"theta": self.theta, "second": self.second}
        packed = {k: None if v is None else _packed(v) for k, v in arrays.items()}
        return found | packed | {"side": SIDE}


def read_weights(path: str | os.PathLike | None = None) -> Weights:
    """The first run of a checkpoint that `fmrl.deep.save` wrote of an `omniglot_net`.

    Args:
        path: The checkpoint; None is the one that comes with the package.

    >>> found = read_weights()
    >>> found.filters, found.ways, found.theta.shape
    (24, 5, (16445,))
    """
    own = resources.files("fmrl.playground")
    if path is None:
        record = json.loads(own.joinpath("omniglot.json").read_text(encoding="utf-8"))
        with resources.as_file(own.joinpath(OWN)) as file:
            return _read(file, tuple(record["accuracy"]))
    return _read(Path(path), ())


def _read(path: Path, accuracy: tuple[dict[str, Any], ...]) -> Weights:
    fix = "give a checkpoint written by fmrl.deep.save"
    try:
        with safe_open(path, framework="numpy") as file:
            about = from_json((file.metadata() or {}).get("fmrl", "null"))
            held = {k: file.get_tensor(k) for k in file.keys() if k in ("phi", "second")}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise FMRLError(f"{path} cannot be read ({error})", fix=fix) from None
    try:
        filters, ways = _shape(about["names"], about["shapes"])
        rule, options = _rule(about["within"])
        plain = about["loss"] == LOSS and about["similarity"] == "None"
        step, taken = float(about["steps"][0]), int(about["taken"])
        adaptive, kept = rule == "Adam", {k: options[k] for k in ("beta2", "eps") if k in options}
        carried = adaptive and options.get("carry", True)
        size = sum(math.prod(shape) for shape in about["shapes"])
        arrays = [_finite(held[name][0], size) for name in ("phi", "second")[: 1 + carried]]
        for name, value in {"step": step, **kept}.items():
            if not (isinstance(value, float) and 0 < value < math.inf):
                raise ValueError(f"{name} = {value!r}")
        if taken < 0:
            raise ValueError(f"taken = {taken}")
    except (LookupError, TypeError, ValueError, SyntaxError, OverflowError) as error:
        what = f"{path} holds no training of a network that the page can play ({error})"
        raise FMRLError(what, fix=_NET) from None
    if rule not in ("Adam", "SGD") or not plain:
        what = f"{path}: the page plays Adam or SGD with a fixed step on the mean cross-entropy"
        raise FMRLError(what, fix="train with loss=fmrl.deep.cross_entropy and no similarity rule")
    theta, second = arrays if carried else (arrays[0], None)
    return Weights(
        filters, ways, theta, second, taken if carried else 0, step, adaptive,
        accuracy=accuracy, **kept,
    )  # fmt: skip


def _finite(values: Any, size: int) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.shape != (size,) or not np.isfinite(found).all():
        raise ValueError(f"{size} finite numbers are needed")
    return found


def _shape(names: list[str], shapes: list[list[int]]) -> tuple[int, int]:
    """(filters, ways) of an omniglot_net, whose layers lie at fixed places."""
    filters, ways = shapes[0][0], shapes[-1][0]
    expected: list[tuple[str, list[int]]] = []
    for b, inside in enumerate((1, filters, filters, filters)):
        expected += [(f"{3 * b}.weight", [filters, inside, 3, 3])]
        expected += [(f"{3 * b + 1}.{n}", [filters]) for n in ("weight", "bias")]
    expected += [("13.weight", [ways, 4 * filters]), ("13.bias", [ways])]
    if list(zip(names, shapes, strict=True)) != expected or ways < WAYS:
        raise ValueError("its layers are others")
    return filters, ways


def _rule(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a rule, from its repr."""
    if len(text) > LONGEST:
        raise ValueError(f"a rule of {len(text)} letters")
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text} is not a rule")
    return call.func.id, {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()

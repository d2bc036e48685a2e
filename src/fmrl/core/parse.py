"""Compositions from their text: every value prints how to rebuild itself, and this reads it back
without executing anything.
"""

from __future__ import annotations

import ast
import difflib
import math
from typing import Any

from fmrl.core.algorithm import FMRL
from fmrl.core.domains import euclidean, simplex
from fmrl.core.losses import basic, logistic
from fmrl.core.rules import meta, similarity, update, within
from fmrl.errors import FMRLError

VALUES = {
    value.__name__: value
    for module in (euclidean, simplex, logistic, basic, within, update, meta, similarity)
    for value in vars(module).values()
    if isinstance(value, type)
    and value.__module__ == module.__name__
    and hasattr(value, "__dataclass_params__")
    and not value.__name__.startswith("_")
} | {"FMRL": FMRL}


def parse(text: str, names: dict[str, type] | None = None) -> Any:
    """The value that prints as ``text``. ``names``: classes of your own that may occur in it.

    >>> parse("FMRL(domain=Ball(radius=2.0), within=OGD())").domain
    Ball(radius=2.0, centre=0.0)
    """
    try:
        return _build(ast.parse(text, mode="eval").body, VALUES | (names or {}))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, FMRLError):
            raise
        raise FMRLError(
            f"{text[:80]!r} is not a composition: {error}", fix="write it as it prints, e.g. OMD()"
        ) from None


def _build(node: ast.AST, values: dict[str, type]) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in values:
            near = difflib.get_close_matches(name, values, 1)
            yours = f"if it is yours, give names={{{name!r}: {name}}}"
            fix = f"did you mean {near[0]}? Or, {yours}" if near else yours
            raise FMRLError(f"there is no value called {name!r}", fix=fix)
        named = {
            keyword.arg: _build(keyword.value, values) for keyword in node.keywords if keyword.arg
        }
        return values[name](*(_build(argument, values) for argument in node.args), **named)
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return math.inf if node.id == "inf" else math.nan
    if isinstance(node, ast.Tuple):
        return tuple(_build(item, values) for item in node.elts)
    return ast.literal_eval(node)

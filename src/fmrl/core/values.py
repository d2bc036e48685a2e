"""Values: frozen dataclasses that print how to rebuild themselves, and the way back from their
text.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any
from weakref import WeakKeyDictionary

from fmrl.errors import FMRLError

LONGEST = 4_000_000  # characters: room for a centre of 200,000 numbers
VALUES: dict[str, type] = {}  # every class that `parse` knows, by name


class Value:
    """An ingredient of a composition. A subclass is known to `parse` by its name as soon as it
    exists.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        home = getattr(VALUES.get(cls.__name__), "__module__", cls.__module__)
        # A class of the user's does not take the name of one of the library's.
        taken = home.startswith("fmrl.") and home != cls.__module__
        if not (taken or cls.__name__.startswith("_")):
            VALUES[cls.__name__] = cls


def text_of(value: Any) -> str:
    """A value as it prints, without the addresses of objects that have no text of their own: what
    a state remembers of the composition that made it.

    Args:
        value: A composition, or any object.

    >>> text_of(object())
    '<object object>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def parse(text: str, names: dict[str, type] | None = None) -> Any:
    """The value that prints as ``text``. Nothing in the text is executed.

    Args:
        text: A composition or an ingredient of one, as it prints.
        names: Classes of your own that may occur in it and are not subclasses of the library's.

    >>> import fmrl
    >>> parse("FMRL(domain=Ball(radius=2.0), within=OGD())").domain
    Ball(radius=2.0, centre=0.0)
    """
    if not isinstance(text, str):
        raise FMRLError(f"a composition is written as text, not as a {type(text).__name__}")
    if len(text) > LONGEST:
        raise FMRLError(f"{len(text):,} characters are too many for a composition")
    try:
        return _build(ast.parse(text, mode="eval").body, known() | (names or {}))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, FMRLError):
            raise
        what = f"{text[:80]!r} is not a composition: {error}"
        raise FMRLError(what, fix="write it as it prints, e.g. OMD()") from None


def _build(node: ast.AST, values: dict[str, type]) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in values:
            raise FMRLError(f"there is no value called {name!r}", fix=suggestion(name, values))
        named = {k.arg: _build(k.value, values) for k in node.keywords if k.arg}
        given = [_build(argument, values) for argument in node.args]
        try:
            return values[name](*given, **named)
        except TypeError:
            form = f"{name}({', '.join(inspect.signature(values[name]).parameters)})"
            raise FMRLError(f"{name} was given other arguments", fix=f"write {form}") from None
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return math.inf if node.id == "inf" else math.nan
    if isinstance(node, ast.Name):
        raise FMRLError(f"{node.id} lacks its brackets", fix=f"write {node.id}(…)")
    if isinstance(node, ast.Tuple):
        return tuple(_build(item, values) for item in node.elts)
    return ast.literal_eval(node)


def known(kind: type = Value) -> dict[str, type]:
    """Every value of a kind, by name.

    >>> import fmrl
    >>> rules = known(fmrl.core.rules.update.UpdateRule)
    >>> "FLIBatch" in rules, "OMD" in rules
    (True, False)
    """
    found = {n: v for n, v in VALUES.items() if is_dataclass(v) and issubclass(v, kind)}
    return {name: value for name, value in found.items() if value is not kind}


def suggestion(name: str, values: Iterable[str]) -> str:
    """What to do about a name that is not among the values."""
    near = difflib.get_close_matches(name, values, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"use one of {', '.join(values)}"


def foreign(value: Any) -> list[str]:
    """The classes of a value, and of those that it is made of, that are not the library's own.

    A subclass may change anything, so nothing that is known of its parent is known of it.

    >>> import fmrl
    >>> Mine = type("Mine", (fmrl.LastUpdate,), {"__module__": "yours"})
    >>> foreign(fmrl.Mixture([fmrl.FollowLeader(), Mine()])), foreign(fmrl.Ball(1.0))
    (['Mine'], [])
    """
    kind = type(value)
    found = [] if kind.__module__.startswith("fmrl.") else [kind.__name__]
    for part in vars(value).values() if isinstance(value, Value) else ():
        for p in part if isinstance(part, tuple) else (part,):
            plain = type(p).__module__ in ("builtins", "numpy") or hasattr(p, "shape")
            found += [] if plain else foreign(p)
    return found


def shortcut(rule: Any, method: str, replaces: str) -> Callable[..., Any] | None:
    """The ``method`` by which a rule does many ``replaces`` at once, if it still stands for them.

    A subclass that changes ``replaces`` alone has not said what the shortcut becomes, so there is
    none.

    >>> import fmrl
    >>> own = {"__module__": "yours", "update": lambda *given: given}
    >>> Slower = type("Slower", (fmrl.FollowLeader,), own)
    >>> bool(shortcut(fmrl.FollowLeader(), "scan", "update")), shortcut(Slower(), "scan", "update")
    (True, None)
    """
    known = _STANDS.setdefault(type(rule), {})
    if (method, replaces) not in known:
        known[method, replaces] = _stands_for(type(rule), method, replaces)
    return getattr(rule, method) if known[method, replaces] else None


_STANDS: WeakKeyDictionary[type, dict[tuple[str, str], bool]] = WeakKeyDictionary()


def _stands_for(kind: type, method: str, replaces: str) -> bool:
    """Whether ``method`` was written in the class of ``replaces``, or in a subclass of it."""
    owners = [next((i for i, c in enumerate(kind.__mro__) if name in vars(c)), None)
              for name in (method, replaces)]  # fmt: skip
    fast, slow = owners
    return fast is not None and slow is not None and fast <= slow

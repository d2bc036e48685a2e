"""Reading pickles of arrays as data: no name in the file is ever imported or called.

A pickle is a program. This reader runs it with every callable replaced by an inert stand-in that
only remembers its arguments; anything but NumPy's own array constructors is refused by name.
Afterwards the arrays are views of the bytes that were read."""

import io
import math
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from fmrl.errors import PickleError

_DEPTH = 3  # {"class_dict": {name: [index, ...]}}
_COMMON = "give one of the common pickles"
_DISTRUST, _AGAIN = "do not use this file", "fetch it again"
_REFUSED = ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
_REFUSED += ("NEXT_BUFFER", "READONLY_BUFFER")
_CODE = re.compile(r"[biuf][1248]|[SU]\d{1,4}")


class _Kind:
    """Stands in for numpy.dtype: a code such as 'u1' and a byte order."""

    def __init__(self, code="", *_):
        self.code, self.order = _text(code), "="

    def __setstate__(self, state):
        self.order = _text(state[1])

    def numpy(self) -> np.dtype:
        if not _CODE.fullmatch(self.code) or self.order not in "<>=|":
            fix = "only numbers and short strings are read"
            raise PickleError(f"the pickle holds an array of kind {self.code!r}", fix=fix)
        return np.dtype(self.order.replace("|", "=") + self.code)


class _Array:
    """Stands in for numpy.ndarray: its state, turned into a view of the raw bytes on demand."""

    def __init__(self, *_):
        self.state: tuple = ()

    def __setstate__(self, state):
        self.state = state

    def numpy(self) -> np.ndarray:
        try:
            _, shape, kind, fortran, raw = self.state
            dtype = kind.numpy()
            if math.prod(shape) * dtype.itemsize != len(raw):
                what = f"the pickle has {len(raw):,} bytes for an array of shape {tuple(shape)}"
                raise PickleError(what, fix=_AGAIN)
            return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
        except PickleError:
            raise
        except (ValueError, TypeError, AttributeError) as e:
            raise PickleError("the pickle holds a malformed array", fix=_AGAIN) from e


def _frombuffer(raw, kind, shape, order):
    array = _Array()
    array.state = (1, shape, kind, _text(order) == "F", raw)
    return array


def _scalar(kind, raw=b""):
    return _frombuffer(raw, kind, (1,), "C")


def _encode(text, codec="latin1"):
    # How Python 3 writes bytes into old protocols; no other codec is needed, and some decompress.
    if _text(codec) != "latin1" or not isinstance(text, str):
        raise PickleError(f"the pickle asks for the codec {codec!r}", fix=_DISTRUST)
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[_core + ".multiarray", "_reconstruct"] = _Array
    _ALLOWED[_core + ".multiarray", "scalar"] = _scalar
    _ALLOWED[_core + ".numeric", "_frombuffer"] = _frombuffer


class _Reader(pickle._Unpickler):  # type: ignore[name-defined]
    # The interpreter written in Python: it asks the file before it allocates, and single
    # instructions can be taken out of it.
    dispatch: ClassVar[dict] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def find_class(self, module, name):
        if (module, name) not in _ALLOWED:
            what = f"the pickle asks to run {module}.{name}; it was not run"
            fix = f"{_DISTRUST}: pickles of images need NumPy arrays and nothing else"
            raise PickleError(what, fix=fix)
        return _ALLOWED[module, name]

    def load_build(self):
        if not isinstance(self.stack[-2], _Array | _Kind):
            what = "the pickle sets the state of something that is not an array"
            raise PickleError(what, fix=_DISTRUST)
        state = self.stack.pop()
        self.stack[-1].__setstate__(state)

    def refuse(self):
        what = "the pickle uses an instruction that arrays do not need"
        raise PickleError(what, fix=_DISTRUST)

    dispatch[pickle.BUILD[0]] = load_build
    for _op in _REFUSED:
        dispatch[getattr(pickle, _op)[0]] = refuse


class _Guarded:
    """A file that refuses a read past its end, so that a length in it cannot claim memory."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream
        self.left = stream.seek(0, io.SEEK_END)
        stream.seek(0)

    def read(self, n: int = -1) -> bytes:
        if n > self.left:
            what = "the pickle is truncated: it announces more bytes than it has"
            raise PickleError(what, fix=_AGAIN)
        out = self.stream.read(n)
        self.left -= len(out)
        return out

    def readline(self) -> bytes:
        out = self.stream.readline()
        self.left -= len(out)
        return out


def read_pickle(path: str | Path) -> dict[str, Any]:
    """The dictionary in a pickle, keys as str, arrays as read-only NumPy views; raises PickleError
    for anything else.

    >>> import tempfile; p = Path(tempfile.mkdtemp()) / "a.pkl"
    >>> _ = p.write_bytes(pickle.dumps({"data": np.arange(6, dtype=np.uint8)}))
    >>> int(read_pickle(p)["data"].sum())
    15
    """
    path = Path(path)
    try:
        with open(path, "rb") as f:
            value = _Reader(_Guarded(f), encoding="bytes").load()
        if not isinstance(value, dict):
            what = f"{path.name} holds a {type(value).__name__}, not a dictionary"
            raise PickleError(what, fix=_COMMON)
        return _plain(value, {}, 0)
    except PickleError:
        raise
    except FileNotFoundError:
        raise PickleError(f"{path} does not exist", fix="check the path") from None
    except Exception as e:  # a hostile file can make the reader fail in any way
        what = f"{path.name} is truncated or not a pickle ({type(e).__name__}: {e})"
        raise PickleError(what, fix=_AGAIN) from e


def _plain(value: Any, made: dict[int, Any], depth: int) -> Any:
    """Plain containers of stand-ins as plain containers of arrays; ``made`` holds what is done, by
    identity.

    A few bytes can name one object a billion times, or one that holds itself: each is made once,
    and only so deep."""
    if id(value) in made:
        return made[id(value)]
    if depth > _DEPTH:
        raise PickleError("the pickle nests deeper than images and labels need", fix=_COMMON)
    if isinstance(value, _Array):
        out = value.numpy()
    elif isinstance(value, dict):
        keys = [str(_text(k)) for k in value]
        if len(set(keys)) < len(keys) or not all(isinstance(k, str | bytes | int) for k in value):
            what = "the pickle has a dictionary with keys that are not names"
            raise PickleError(what, fix=_COMMON)
        out = {k: _plain(v, made, depth + 1) for k, v in zip(keys, value.values(), strict=True)}
    elif isinstance(value, list | tuple):
        out = [_scalar_of(v) for v in value]
    else:
        return _text(value)
    made[id(value)] = out
    return out


def _scalar_of(value: Any) -> int | str:
    """An entry of a list: an index or a label, also as a NumPy scalar."""
    if isinstance(value, _Array):
        array = value.numpy()
        value = array.reshape(-1)[0].item() if array.size == 1 else array
    if isinstance(value, bytes):
        return _text(value)
    if not isinstance(value, int | str):
        what = "the pickle has a list of something other than labels and indices"
        raise PickleError(what, fix=_COMMON)
    return value


def _text(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value

"""Numbers of the code as it was before its modules had rooms, in numbers.npz.

    python tests/golden/make.py CASE …

records some cases again, and only those; ``AGAIN`` says which were, and why. The file is one flat
float64 array, and an index: the kind and the shape of every entry of every case, in order.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from ways import CASES, missing

FILE = Path(__file__).with_name("numbers.npz")
AGAIN = {
    "two rules for outliers became one": [
        "certificate/box/logistic",
        "estimator/regression/default",
        "estimator/regression/ogd mean",
    ],
    "FTRL meets its first-order condition to 1e-9 where it was 1e-7; numbers move by 2e-9": [
        "run/box+one-vs-all",
        "run/box+softmax",
        "run/box+logistic",
        "run/box+squared",
        "run/floored simplex+softmax",
        "run/floored simplex+squared",
        "estimator/2/ftrl",
    ],
    "softmax without bounds did not give the optimum of least norm": [
        f"{way}/euclidean+softmax"
        for way in ("run", "step", "orders", "meta batch", "resume", "totals")
    ],
}


def processor():
    """What last bits depend on: NumPy, and the processor's instructions."""
    found = np.__config__.show(mode="dicts")["SIMD Extensions"]["found"]
    return f"numpy {np.__version__} {' '.join(found)}"


def compute(name):
    """The entries of one case."""
    with tempfile.TemporaryDirectory() as scratch:
        return CASES[name](Path(scratch))


def write(again, path=FILE):
    """The file with the cases ``again`` recorded anew."""
    values, index, (_, stored) = [np.zeros(0)], {}, read(path)
    for name in CASES:
        if name in again and (need := missing(name)):
            sys.exit(f"{name} needs {need}: install everything first")
        index[name] = {}
        for entry, (kind, value) in (compute(name) if name in again else stored[name]).items():
            index[name][entry] = [kind, value if kind == "text" else list(value.shape)]
            values += [] if kind == "text" else [value.ravel()]
    text = json.dumps({"processor": processor(), "cases": index}, ensure_ascii=False).encode()
    np.savez_compressed(path, values=np.concatenate(values), index=np.frombuffer(text, np.uint8))


def read(path=FILE):
    """Where the file was made, and the entries of every case as `compute` gives them."""
    with np.load(path) as file:
        index, values = json.loads(bytes(file["index"])), file["values"]
    at, cases = 0, index["cases"]
    for entries in cases.values():
        for entry, (kind, held) in entries.items():
            if kind != "text":
                size = int(np.prod(held))
                held, at = values[at : at + size].reshape(held), at + size
            entries[entry] = (kind, held)
    return index["processor"], cases


if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in CASES]:
        sys.exit(f"there is no case {unknown[0]!r}")
    write(sys.argv[1:])

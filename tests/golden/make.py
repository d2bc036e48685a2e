"""Write numbers.npz from the code as it is: python tests/golden/make.py

One flat float64 array, and an index: the kind and the shape of every entry of every case, in
order."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from ways import CASES, missing

FILE = Path(__file__).with_name("numbers.npz")


def processor():
    """What last bits depend on: NumPy, and the processor's instructions."""
    found = np.__config__.show(mode="dicts")["SIMD Extensions"]["found"]
    return f"numpy {np.__version__} {' '.join(found)}"


def compute(name):
    """The entries of one case."""
    with tempfile.TemporaryDirectory() as scratch:
        return CASES[name](Path(scratch))


def write(path=FILE):
    """All cases into one file."""
    values, index = [np.zeros(0)], {}
    for name in CASES:
        if need := missing(name):
            sys.exit(f"{name} needs {need}: install everything first")
        index[name] = {}
        for entry, (kind, value) in compute(name).items():
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
    write(*map(Path, sys.argv[1:]))

"""Numbers of the code as it was before its modules had rooms, in numbers.npz.

    python tests/golden/make.py CASE …

records some cases again, and only those; ``AGAIN`` says which were, and why. A way, the first part
of a name, stands for all its cases. ``--compare`` before them records nothing and prints which
entries would change. The file is one flat float64 array, and an index: the kind and the shape of
every entry of every case, in order.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info
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
    "intervals had a surcharge of 1/tasks on errors that were larger already": [
        "command/regression",
    ],
    "adaptation from a prior learned across tasks": ["estimator", "online", "command"],
    "the run's coordinates are no longer chosen by accuracy on a pilot: intercept's constant": [
        "estimator/2/default",
        "estimator/2/ogd mean",
        "online",
    ],
    "the run's coordinates are no longer chosen by accuracy on a pilot: scale of uneven columns": [
        "command/3",
        "command/regression",
    ],
    "held-out tasks are scored by log-loss, R² and coverage, from 0 rows on": ["command"],
    "a direction that no row sees keeps its spread; the prior's search takes fewer products": [
        "estimator/2/ftrl",
        "estimator/3/default",
        "estimator/3/reptile",
        "estimator/3/small",
        "command/3",
    ],
    "classes at the mean of the nearest Gaussian; means drawn to 0; softmax of several classes": [
        "estimator",
        "online",
        "command",
    ],
    "correlations rest before an estimate of a covariance ends; up to 200 trees": [
        "estimator",
        "online",
        "command/3",
        "command/regression",
    ],
    "R² is of all rows scored on together, not by the mean variance within tasks": [
        "command/regression",
    ],
    "noise pays for what a mean takes from rows": [
        "estimator/regression",
        "online/regression/default",
        "command/regression",
    ],
    "boosted trees are cut after every 10 steps, not after every 50": [
        "estimator/2/default",
        "estimator/2/ogd mean",
        "estimator/2/ftrl",
        "online/2/reptile",
    ],
    "boosted trees are fitted to y in units of its own": ["estimator/regression/ftrl"],
    "OGD on Simplex() adds up logarithms, so that no mass is lost; the last digit moves": [
        "step/simplex+squared",
        *(
            f"{way}/simplex+linear"
            for way in ("run", "step", "orders", "meta batch", "resume", "totals")
        ),
    ],
    "streams no longer shrink the guess of AverageDeviation; it has an epsilon": [
        "online/3/default",
        "online/regression/default",
        "command/2",
        "command/3",
    ],
    "an estimator plays no run beside its prior: no certificate, streams are the model of adapt": [
        "estimator",
        "online",
    ],
    "probabilities are drawn to the middle by one number for all rows known, chosen once; in an "
    "interval's width every task counts once, not each row by its task's length": [
        "online/2/reptile",
        "estimator/3/default",
        "online/3/default",
        "estimator/3/reptile",
        "command/regression",
    ],
    "ReleasedDoubling counts its own violations; growth that nothing uses is not assumed": [
        "preset/released",
        "preset/released mean",
        "certificate/paper ftrl",
        "certificate/released",
        "certificate/released mean",
        "certificate/last",
    ],
    "shared trees are grown side by side for all folds; trees, families and centres are held out "
    "by one assignment of folds, drawn by random_state": ["estimator", "online", "command"],
}
CLOSE = {"solver": 1e-9, "torch": 1e-9}  # of the scale of the array; "exact" is bit for bit


def processor():
    """What last bits depend on: NumPy, the processor's instructions, and the kernels that BLAS has
    for it (OPENBLAS_CORETYPE=SkylakeX asks for those of the file).
    """
    found = np.__config__.show(mode="dicts")["SIMD Extensions"]["found"]
    blas = sorted({lib["architecture"] for lib in threadpool_info() if lib["user_api"] == "blas"})
    return f"numpy {np.__version__} {' '.join([*found, *blas])}"


def compute(name):
    """The entries of one case."""
    with tempfile.TemporaryDirectory() as scratch:
        return CASES[name](Path(scratch))


def differs(kind, found, stored, exact=0.0):
    """How far a value is from the stored one, in words; "" if it is as close as it has to be."""
    if kind == "text":
        return "" if found == stored else f"{found!r}, not {stored!r}"
    if found.shape != stored.shape:
        return f"shape {found.shape}, not {stored.shape}"
    scale = np.max(np.abs(stored), where=np.isfinite(stored), initial=1e-3)
    same = (found == stored) | (np.isnan(found) & np.isnan(stored))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(found - stored))
    bad = ~(off <= CLOSE.get(kind, exact) * scale)
    where = f"in {bad.sum()} of {bad.size}" if bad.any() else ""
    return where and f"off by {np.max(off):.3g} at a scale of {scale:.3g} ({kind}) {where}"


def changes(name, stored, exact=0.0):
    """What is different in a case now, one line an entry, in order."""
    found, wrong = compute(name), {}
    wrong |= dict.fromkeys(stored.keys() - found.keys(), "no longer computed")
    wrong |= dict.fromkeys(found.keys() - stored.keys(), "not in the file")
    for entry in stored.keys() & found.keys():
        (kind, value), (held, old) = found[entry], stored[entry]
        said = f"held as {kind}, not {held}" if kind != held else ""
        wrong[entry] = said or differs(kind, value, old, exact)
    return sorted(f"{entry}: {said}" for entry, said in wrong.items() if said)


def write(again, path=FILE):
    """The file with the cases ``again`` recorded anew."""
    values, index, (made, stored) = [np.zeros(0)], {}, read(path)
    if made != processor() and set(again) < set(CASES):
        sys.exit(f"the other cases were made with {made}, and these would be with {processor()}")
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
    asked = [name for name in sys.argv[1:] if name != "--compare"]
    if unknown := [a for a in asked if not any(n == a or n.startswith(f"{a}/") for n in CASES)]:
        sys.exit(f"there is no case {unknown[0]!r}")
    again = [n for n in CASES if any(n == a or n.startswith(f"{a}/") for a in asked)]
    if "--compare" in sys.argv:
        held = read()[1]
        for name in again:
            lines = changes(name, held[name])
            print(f"{name}: {len(lines)} of {len(held[name])} entries changed", *lines, sep="\n  ")
    else:
        write(again)

"""Every composition and every way in gives the numbers of numbers.npz, which make.py wrote.

They are those from before the library was laid out anew. On another processor or with another
NumPy than the file's, what is held bit for bit is held to 1e-12 instead."""

import numpy as np
import pytest
from make import compute, processor, read
from ways import CASES, missing

MADE, STORED = read()
EXACT = 0.0 if processor() == MADE else 1e-12
CLOSE = {"exact": EXACT, "solver": 1e-9, "torch": 1e-9}  # of the scale of the array


def differs(kind, found, stored):
    """How far a value is from the stored one, in words; "" if it is as close as it has to be."""
    if kind == "text":
        return "" if found == stored else f"{found!r}, not {stored!r}"
    if found.shape != stored.shape:
        return f"shape {found.shape}, not {stored.shape}"
    scale = np.max(np.abs(stored), where=np.isfinite(stored), initial=1e-3)
    same = (found == stored) | (np.isnan(found) & np.isnan(stored))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(found - stored))
    bad = ~(off <= CLOSE[kind] * scale)
    where = f"in {bad.sum()} of {bad.size}" if bad.any() else ""
    return where and f"off by {np.max(off):.3g} at a scale of {scale:.3g} ({kind}) {where}"


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_what_they_were(name):
    if need := missing(name):
        pytest.skip(f"{need} is not installed")
    found, stored = compute(name), STORED[name]
    wrong = [f"{entry}: no longer computed" for entry in stored.keys() - found.keys()]
    wrong += [f"{entry}: not in the file" for entry in found.keys() - stored.keys()]
    for entry in stored.keys() & found.keys():
        (kind, value), (held, old) = found[entry], stored[entry]
        said = f"held as {kind}, not {held}" if kind != held else differs(kind, value, old)
        wrong += [f"{entry}: {said}"] if said else []
    assert not wrong, f"{name}\n" + "\n".join(sorted(wrong))


def test_no_case_came_or_went():
    assert set(CASES) == set(STORED)

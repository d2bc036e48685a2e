"""Every composition and every way in gives the numbers of numbers.npz, which make.py wrote.

They are those from before the library was laid out anew. On another processor or with another
NumPy than the file's, what is held bit for bit is held to 1e-12 instead."""

import pytest
from make import changes, processor, read
from ways import CASES, missing

MADE, STORED = read()
EXACT = 0.0 if processor() == MADE else 1e-12
# A count at a threshold, draws that follow the sign of an iterate, minima of flat functions: these
# turn on the last bit, so they are held where bits are.
BITS = ("violations", "adversary", "growth", "similarity: centre")


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_what_they_were(name):
    if need := missing(name):
        pytest.skip(f"{need} is not installed")
    wrong = changes(name, STORED[name], EXACT)
    if EXACT:
        wrong = [line for line in wrong if not line.startswith(BITS)]
    assert not wrong, f"{name}\n" + "\n".join(wrong)


def test_no_case_came_or_went():
    assert set(CASES) == set(STORED)

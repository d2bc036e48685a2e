"""A set of images refuses what is not in it: classes, samples, turns and devices."""

import numpy as np
import pytest

from fmrl import FMRLError
from fmrl.datasets import ImageSet


def toy(classes=3, side=(4, 4), images=2):
    n = classes * images
    pixels = np.arange(n * side[0] * side[1], dtype=np.uint8).reshape(n, *side)
    names = tuple(map(str, range(classes)))
    return ImageSet("toy", pixels, np.arange(n), np.arange(0, n + 1, images), names)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_numbers_outside_the_set_are_refused(device):
    s, turned = toy(), toy().rotated()
    if device is not None:
        pytest.importorskip("torch")
        s, turned = s.to(device).to(device), turned.to(device)
    for classes, samples in ((3, 0), (-1, 0), (2, 2), (0, 2), (0, -1)):
        with pytest.raises(FMRLError, match=r"no class|not in its class"):
            s.take([classes], [samples])
    batch = turned.episodes(5, 1, 1).draw(0, 20)
    assert turned.gather(batch)[0].shape == (20, 5, 1, 4, 4)
    with pytest.raises(FMRLError, match="belong to the rotated set"):
        s.gather(batch)
    for wrong in ([-1], [3]):
        with pytest.raises(FMRLError, match="there is no class"):
            s.subset(wrong)


def test_only_squares_turn():
    with pytest.raises(FMRLError, match="square"):
        toy(side=(4, 6)).rotated()


def test_a_device_that_is_not_there():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for device in ("cuda", "nonsense"):
        with pytest.raises(FMRLError, match="cannot be used"):
            toy().episodes(2, 1).draw(0, 1, device=device)
        with pytest.raises(FMRLError, match="cannot be used"):
            toy().to(device)
    assert len(repr(toy().episodes(2, 1))) < 80

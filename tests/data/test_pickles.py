import os
import pickle
import struct

import numpy as np
import pytest

from fmrl.datasets.pickles import read_pickle
from fmrl.errors import PickleError

IMAGES = np.arange(4 * 2 * 2 * 3, dtype=np.uint8).reshape(4, 2, 2, 3)


def write(tmp_path, raw):
    path = tmp_path / "x.pkl"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_come_back_in_every_protocol(tmp_path, protocol):
    held = {
        "image_data": IMAGES,
        "labels": [0, 0, 1, 1],
        "class_dict": {"n01": [0, 1], "n02": [np.int64(2), 3]},
    }
    held |= {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big": np.arange(3, dtype=">i4")}
    got = read_pickle(write(tmp_path, pickle.dumps(held, protocol=protocol)))
    assert np.array_equal(got["image_data"], IMAGES) and got["image_data"].dtype == np.uint8
    assert got["class_dict"] == {"n01": [0, 1], "n02": [2, 3]} and got["labels"] == [0, 0, 1, 1]
    assert np.array_equal(got["f"], held["f"]) and np.array_equal(got["big"], [0, 1, 2])


def test_images_are_not_copied(tmp_path):
    got = read_pickle(write(tmp_path, pickle.dumps({"data": IMAGES}, protocol=4)))["data"]
    assert not got.flags.owndata and not got.flags.writeable


class Payload:
    def __init__(self, call, *args):
        self.call = call, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("where", ["value", "key", "nested"])
def test_a_payload_is_never_run(tmp_path, protocol, where):
    mark = tmp_path / "executed"
    bomb = Payload(os.system, f"touch {mark}")
    held = {
        "value": {"data": bomb},
        "key": {"data": IMAGES, bomb: 1},
        "nested": {"data": [IMAGES, [bomb]]},
    }[where]
    with pytest.raises(PickleError, match=r"asks to run (posix|nt)\.system; it was not run"):
        read_pickle(write(tmp_path, pickle.dumps(held, protocol=protocol)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "call",
    [
        (eval, "1"),
        (getattr, IMAGES, "tofile"),
        (np.load, "x"),
        (np.frombuffer, b"1"),
        (np.ndarray.tofile, 1, "x"),
    ],
    ids=lambda c: getattr(c[0], "__name__", "?"),
)
def test_even_numpys_other_functions_are_refused(tmp_path, call):
    with pytest.raises(PickleError, match="it was not run"):
        read_pickle(write(tmp_path, pickle.dumps({"data": Payload(*call)})))


def test_objects_inside_arrays_are_refused(tmp_path):
    with pytest.raises(PickleError, match="array of kind"):
        read_pickle(write(tmp_path, pickle.dumps({"data": np.array([{}, 1], dtype=object)})))


def test_a_claimed_length_cannot_claim_memory(tmp_path):
    raw = b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abc."
    with pytest.raises(PickleError, match="announces more bytes than it has"):
        read_pickle(write(tmp_path, raw))


def test_a_shape_that_does_not_fit_is_refused(tmp_path):
    raw = pickle.dumps({"data": np.zeros(1000, dtype=np.uint8)}, protocol=2)
    assert b"M\xe8\x03\x85" in raw
    with pytest.raises(PickleError, match="bytes for an array of shape"):
        read_pickle(write(tmp_path, raw.replace(b"M\xe8\x03\x85", b"M\xe8\x7f\x85")))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 0.99])
def test_truncated(tmp_path, share):
    raw = pickle.dumps({"data": IMAGES}, protocol=4)
    with pytest.raises(PickleError):
        read_pickle(write(tmp_path, raw[: int(len(raw) * share)]))


def test_not_a_dictionary(tmp_path):
    with pytest.raises(PickleError, match="not a dictionary"):
        read_pickle(write(tmp_path, pickle.dumps([1])))


def test_a_few_bytes_that_name_one_thing_a_billion_times(tmp_path):
    laugh = {"a": 1}
    for _ in range(2):
        laugh = dict.fromkeys(map(str, range(50)), laugh)
    got = read_pickle(write(tmp_path, pickle.dumps(laugh)))
    assert got["0"] is got["49"]  # made once
    assert read_pickle(write(tmp_path, pickle.dumps({"class_dict": {7: [0]}})))["class_dict"] == {
        "7": [0]
    }
    for _ in range(40):
        laugh = dict.fromkeys("xy", laugh)
    with pytest.raises(PickleError, match="nests deeper"):
        read_pickle(write(tmp_path, pickle.dumps(laugh)))


def test_a_thing_that_holds_itself(tmp_path):
    held, items = {"data": IMAGES}, [1]
    held["self"] = held
    items.append(items)
    with pytest.raises(PickleError, match="nests deeper"):
        read_pickle(write(tmp_path, pickle.dumps(held)))
    with pytest.raises(PickleError, match="other than labels"):
        read_pickle(write(tmp_path, pickle.dumps({"labels": items})))


@pytest.mark.parametrize(
    "labels", [[0.5, 1.0], [np.float64(1.5)], [[0], [1]], [np.arange(2)], [None]]
)
def test_labels_that_are_no_labels(tmp_path, labels):
    with pytest.raises(PickleError, match="other than labels"):
        read_pickle(write(tmp_path, pickle.dumps({"labels": labels})))


def test_keys_that_are_one_name(tmp_path):
    with pytest.raises(PickleError, match="keys"):
        read_pickle(write(tmp_path, pickle.dumps({"data": 1, b"data": 2})))
    with pytest.raises(PickleError, match="does not exist"):
        read_pickle(tmp_path / "nowhere.pkl")

import io
import pickle
import zipfile

import numpy as np
import pytest

from fmrl import FMRLError
from fmrl.datasets import ImageSet, load_mini_imagenet, load_omniglot, load_tiny_imagenet_100
from fmrl.datasets.fetch import get
from fmrl.errors import ArchiveError, ChecksumError, LayoutError, PickleError

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)
NAMES = ("Latin/character01", "Latin/character02", "Ulog/character01")


def png(bits):
    out = io.BytesIO()
    Image.fromarray(bits).convert("1").save(out, "PNG")
    return out.getvalue()


def jpeg(side=84, value=None):
    out = io.BytesIO()
    shape = (side, side, 3)
    noise = RNG.integers(0, 255, shape, np.uint8)
    pixels = noise if value is None else np.full(shape, value, np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def drawings():
    return RNG.random((3, 2, 105, 105)) < 0.8


@pytest.fixture
def omniglot_folder(tmp_path, drawings):
    parts = ("images_background", "images_background", "images_evaluation")
    for c, (part, name) in enumerate(zip(parts, NAMES, strict=True)):
        for d in range(2):
            path = tmp_path / part / name / f"{c:04d}_{d:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(drawings[c, d]))
    return tmp_path


def test_omniglot_folder_zip_and_packed_agree(omniglot_folder, drawings, tmp_path):
    zips = tmp_path / "zips"
    zips.mkdir()
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(zips / f"{part}.zip", "w") as z:
            for f in sorted((omniglot_folder / part).rglob("*.png")):
                z.write(f, f.relative_to(omniglot_folder).as_posix())
    packed = tmp_path / "packed.npz"
    # Packed in another order: numbers follow names all the same.
    swapped = np.packbits(drawings[[1, 0, 2]].reshape(6, -1), axis=1)
    np.savez(packed, packed=swapped, names=np.array(NAMES)[[1, 0, 2]], n_background=2)
    sets = [load_omniglot(s, size=None, expect=(3, 2)) for s in (omniglot_folder, zips, packed)]
    for s in sets:
        assert s.names == NAMES and np.array_equal(s.images, sets[0].images)
        assert np.array_equal(s.take([[0, 1], [2, 2]], [[0, 1], [0, 1]])[1], drawings[2])


def test_a_packed_file_that_is_a_bomb(tmp_path):
    zeros = np.zeros((14 << 10, 1379), np.uint8)
    np.savez_compressed(tmp_path / "b.npz", packed=zeros, names=np.array(["a"]))
    with pytest.raises(ArchiveError, match="decompression bomb"):
        load_omniglot(tmp_path / "b.npz")


def test_omniglot_counts_are_verified(omniglot_folder):
    with pytest.raises(LayoutError, match=r"3 characters \(1,623 expected\)"):
        load_omniglot(omniglot_folder)
    next((omniglot_folder / "images_evaluation").rglob("*.png")).unlink()
    with pytest.raises(LayoutError, match=r"Ulog/character01 has 1 drawings \(2 expected\)"):
        load_omniglot(omniglot_folder, expect=(3, 2))


def test_resizing_takes_the_pixel_at_the_centre(omniglot_folder, drawings):
    small = load_omniglot(omniglot_folder, size=28, expect=(3, 2))
    whole = Image.fromarray(drawings[1, 1].astype(np.uint8))
    theirs = np.asarray(whole.resize((28, 28), Image.Resampling.NEAREST))
    assert small.images.dtype == np.uint8 and np.array_equal(small.take(1, 1), theirs)


def test_rotations_are_views(omniglot_folder):
    s = load_omniglot(omniglot_folder, size=28, expect=(3, 2))
    r = s.rotated()
    assert len(r) == 12 and r.images is s.images
    for k in range(4):
        assert np.shares_memory(r.view(k), s.images)
        assert np.array_equal(r.take(2 + 3 * k, 1), np.rot90(s.take(2, 1), k))
    packed = load_omniglot(omniglot_folder, size=None, expect=(3, 2)).rotated()
    assert np.array_equal(packed.take(2 + 3 * 3, 1), np.rot90(packed.take(2, 1), 3))


def test_torch_gathers_the_same(omniglot_folder):
    pytest.importorskip("torch")
    for size in (28, None):
        s = load_omniglot(omniglot_folder, size=size, expect=(3, 2)).rotated()
        batch = s.episodes(5, 1, 1, seed=2).draw(0, 50)
        for mine, theirs in zip(s.gather(batch), s.to("cpu").gather(batch), strict=True):
            assert np.array_equal(mine, theirs.numpy())


def test_split_deals_every_class_once(omniglot_folder):
    s = load_omniglot(omniglot_folder, size=28, expect=(3, 2))
    train, test = s.split(2, 1, seed=4)
    assert sorted(train.names + test.names) == sorted(s.names) and train.images is s.images
    assert s.split(2, 1, seed=4)[1].names == test.names
    assert len(train.rotated().episodes(5, 1).draw(0, 3).classes) == 3
    with pytest.raises(FMRLError, match="cannot be split"):
        s.split(3, 1)


def test_subset_shares_the_images(omniglot_folder):
    s = load_omniglot(omniglot_folder, size=28, expect=(3, 2))
    sub = s.subset([2, 0])
    assert sub.images is s.images and sub.names == (s.names[2], s.names[0])
    assert np.array_equal(sub.take(0, 1), s.take(2, 1))


def test_omniglot_shared(shared):
    path = shared("omniglot_105_packed.npz")
    s = load_omniglot(data=path.parent)
    assert len(s) == 1623 and set(s.sizes) == {20} and s.images.shape == (32460, 28, 28)
    assert s.names[963].startswith("Tifinagh") and len(s.rotated()) == 6492
    held = np.load(path)
    full = np.unpackbits(held["packed"], axis=1)[:, :11025].reshape(1623, 20, 105, 105)
    p = load_omniglot(data=path.parent, size=None)
    assert p.names == s.names and p.names[0].startswith("Alphabet_of_the_Magi")
    assert list(p.names[:964]) == sorted(p.names[:964])
    for c in (0, 5, 963, 964, 1622):
        theirs = held["names"].tolist().index(p.names[c])
        assert np.array_equal(p.take(c, [3, 19]), full[theirs, [3, 19]])


def test_a_damaged_shared_copy_is_refused(shared, tmp_path):
    raw = shared("omniglot_105_packed.npz").read_bytes()
    (tmp_path / "omniglot_105_packed.npz").write_bytes(raw[:-1000])
    with pytest.raises(ChecksumError):
        load_omniglot(data=tmp_path)
    with pytest.raises(LayoutError, match="truncated"):
        load_omniglot(tmp_path / "omniglot_105_packed.npz")


def folder_of(root, classes=3, images=2, side=84):
    for split in ("train", "val", "test"):
        for c in range(classes):
            for i in range(images):
                path = root / split / f"n{c:08d}" / f"{i:03d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpeg(side, 40 * c + 10 * i))
    return root


def test_mini_imagenet_folder(tmp_path):
    s = load_mini_imagenet(folder_of(tmp_path), split="val", strict=False)
    assert s.images.shape == (6, 84, 84, 3) and s.names == ("n00000000", "n00000001", "n00000002")
    assert abs(int(s.take(2, 1)[0, 0, 0]) - 90) <= 2
    with pytest.raises(LayoutError, match=r"3 classes \(16 expected\)"):
        load_mini_imagenet(tmp_path, split="val")


def test_a_missing_class_and_a_broken_image(tmp_path):
    root = folder_of(tmp_path, side=64)
    with pytest.raises(LayoutError, match=r"3 classes \(64 expected\)"):
        load_tiny_imagenet_100(root)
    (root / "train/n00000001/000.jpg").write_bytes(jpeg(64)[:200])
    with pytest.raises(LayoutError, match=r"n00000001/000.jpg is not a readable image"):
        load_tiny_imagenet_100(root, strict=False)
    with pytest.raises(LayoutError, match="has no test/"):
        (root / "test").rename(root / "elsewhere")
        load_tiny_imagenet_100(root, split="test", strict=False)


def test_mixed_sizes_are_named(tmp_path):
    root = folder_of(tmp_path, side=64)
    (root / "train/n00000001/000.jpg").write_bytes(jpeg(32))
    with pytest.raises(LayoutError, match="mixes image sizes"):
        load_tiny_imagenet_100(root, strict=False)
    assert load_tiny_imagenet_100(root, size=64, strict=False).images.shape == (6, 64, 64, 3)


def test_both_common_pickles(tmp_path):
    images = RNG.integers(0, 255, (6, 84, 84, 3), np.uint8)
    order = {"n01": [0, 3, 4], "n02": [1, 2, 5]}
    held = {"image_data": images, "class_dict": order}
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(held))
    s = load_mini_imagenet(tmp_path, strict=False)
    assert s.names == ("n01", "n02") and np.array_equal(s.take([0, 1], [1, 2]), images[[3, 5]])
    other = tmp_path / "other"
    other.mkdir()
    held = {b"data": images, b"labels": [9, 10, 10, 9, 9, 10]}
    path = other / "miniImageNet_category_split_train_phase_train.pickle"
    path.write_bytes(pickle.dumps(held, protocol=2))
    s = load_mini_imagenet(other, strict=False)
    assert s.names == ("9", "10") and np.array_equal(s.take([0, 1], [1, 2]), images[[3, 5]])
    assert not s.images.flags.owndata


def test_a_pickle_with_a_payload(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    held = {"image_data": Evil(), "class_dict": {}}
    (tmp_path / "mini-imagenet-cache-test.pkl").write_bytes(pickle.dumps(held))
    with pytest.raises(PickleError, match="it was not run"):
        load_mini_imagenet(tmp_path, split="test")
    assert not (tmp_path / "executed").exists()


def test_tiny_imagenet_shared(shared):
    data = shared("tiny_imagenet_100_jpeg.zip").parent
    val = load_tiny_imagenet_100(data=data, split="val")
    assert isinstance(val, ImageSet) and len(val) == 16 and set(val.sizes) == {140}
    assert val.images.shape == (2240, 64, 64, 3) and val.name == "Tiny ImageNet-100"
    assert get("tiny-imagenet-100", data).place == "local"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"class_dict": {"a": [0, 1], "b": [1]}}, "an image twice"),
        ({"class_dict": {"a": [0, 9]}}, "not there"),
        ({"class_dict": {"a": ["x"]}}, "not a list of image numbers"),
        ({"class_dict": {"a": []}}, "not a list of image numbers"),
        ({"class_dict": {}}, "no classes"),
        ({"class_dict": [0, 1]}, "no classes"),
        ({"labels": np.array([0.5, 1.0])}, "neither whole numbers"),
        ({"labels": [0]}, "2 images but 1 labels"),
        ({}, "neither whole numbers|0 labels"),
    ],
)
def test_pickles_with_other_groups(tmp_path, groups, message):
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"data": np.zeros((2, 4, 4, 3), np.uint8)} | groups))
    with pytest.raises(LayoutError, match=message):
        load_mini_imagenet(path, strict=False)


def test_paths_to_nothing(tmp_path):
    for load in (load_mini_imagenet, load_tiny_imagenet_100, load_omniglot):
        for name in ("nowhere", "nowhere.npz", "nowhere.pkl"):
            with pytest.raises(FMRLError, match=r"does not exist|no copy"):
                load(tmp_path / name)
    (tmp_path / "b.npz").write_bytes(b"PK\x05\x06" + bytes(18) + b"PK")
    with pytest.raises(FMRLError):
        load_omniglot(tmp_path / "b.npz")


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

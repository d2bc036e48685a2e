"""Omniglot, Mini-ImageNet and Tiny ImageNet-100 from every layout they are found in."""

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fmrl.datasets import archive
from fmrl.datasets.episodes import ImageSet
from fmrl.datasets.fetch import get
from fmrl.datasets.pickles import read_pickle
from fmrl.datasets.registry import dataset
from fmrl.errors import FetchError, LayoutError

SPLITS = ("train", "val", "test")
_PIXELS = 1 << 26  # no image of these sets comes near; a larger claim is a decompression bomb
_SIDE = 105  # of Omniglot's drawings
_AGAIN = "get it again"
_PICKLES = {
    "train": re.compile(r"cache-train|split_train_phase_train(?!.*_ordered)|^train\."),
    "val": re.compile(r"cache-val|split_val|^val\."),
    "test": re.compile(r"cache-test|split_test|^test\."),
}


def load_omniglot(
    source: str | os.PathLike | None = None,
    *,
    size: int | None = 28,
    data: str | os.PathLike | None = None,
    expect: tuple[int, int] | None = (1623, 20),
) -> ImageSet:
    """Omniglot as one set of 1,623 classes, paper 1 and ink 0; the first 964 are the background
    set.

    Args:
        source: ``omniglot_105_packed.npz``, or a folder that holds images_background(.zip) and
            images_evaluation(.zip) (default: the registry's copy).
        size: Side of the drawings, resized by nearest neighbour as uint8 [N, size, size]; None
            keeps the 105x105 originals at one bit a pixel.
        data: The folder of local copies (default: ``FMRL_DATA``).
        expect: (classes, drawings per class), verified; None takes what is there.
    """
    paths = get("omniglot", data).paths if source is None else _omniglot_paths(Path(source))
    read = _omniglot_packed if paths[0].suffix == ".npz" else _omniglot_drawings
    packed, names, counts = read(paths)
    if expect is not None:
        _check_counts("Omniglot", names, counts, expect, ("characters", "drawings", "expect=None"))
    starts = np.cumsum([0, *counts])
    rows = np.arange(starts[-1])
    if size is None:
        return ImageSet("Omniglot", packed, rows, starts, names, side=_SIDE)
    # The pixel at the centre of each cell, which is what nearest-neighbour resizing takes.
    at = ((np.arange(size) + 0.5) * _SIDE / size).astype(int)
    images = np.empty((len(packed), size, size), dtype=np.uint8)
    for i in range(0, len(packed), 2048):
        bits = np.unpackbits(packed[i : i + 2048], axis=1)[:, : _SIDE**2]
        images[i : i + 2048] = bits.reshape(-1, _SIDE, _SIDE)[:, at[:, None], at]
    return ImageSet("Omniglot", images, rows, starts, names)


def load_mini_imagenet(
    source: str | os.PathLike | None = None,
    *,
    split: str = "train",
    size: int | None = 84,
    data: str | os.PathLike | None = None,
    strict: bool = True,
) -> ImageSet:
    """One split of Mini-ImageNet, uint8 [N, 84, 84, 3].

    The common pickles (``mini-imagenet-cache-*.pkl`` and ``miniImageNet_category_split_*.pickle``)
    are read as data, never executed, and their pixels are used without a copy.

    Args:
        source: The folder of ``train|val|test/<wnid>/*.jpg``, its zip, or a pickle or a folder of
            them (default: the registry's copy).
        split: 'train', 'val' or 'test'.
        size: Side of the images; None keeps those of the files.
        data: The folder of local copies (default: ``FMRL_DATA``).
        strict: Verify 64, 16, 20 classes of 600 images; False takes what is there.
    """
    return _load("mini-imagenet", source, split, size, data, strict)


def load_tiny_imagenet_100(
    source: str | os.PathLike | None = None,
    *,
    split: str = "train",
    size: int | None = None,
    data: str | os.PathLike | None = None,
    strict: bool = True,
) -> ImageSet:
    """One split of Tiny ImageNet-100, uint8 [N, 64, 64, 3].

    Args:
        source: Its zip or the unpacked folder (default: the registry's copy).
        split: 'train', 'val' or 'test'.
        size: Side of the images; None keeps those of the files.
        data: The folder of local copies (default: ``FMRL_DATA``).
        strict: Verify 64, 16, 20 classes of 140 images; False takes what is there.
    """
    return _load("tiny-imagenet-100", source, split, size, data, strict)


def count_omniglot(name: str, path: Path) -> dict[str, int]:
    """Counts of a copy of Omniglot."""
    held = load_omniglot(path if path.suffix == ".npz" else path.parent, size=None)
    return {"classes": len(held.names), "drawings per class": held.sizes[0]}


def count_splits(name: str, path: Path) -> dict[str, int]:
    """Counts of a set in Mini-ImageNet's layout."""
    out = {}
    for split in SPLITS:
        held = _load(name, path, split, 84 if name == "mini-imagenet" else None, None, True)
        out |= {f"{split} classes": len(held.names), "images per class": held.sizes[0]}
    return out


def _load(name: str, source, split: str, size: int | None, data, strict: bool) -> ImageSet:
    path = get(name, data).path if source is None else Path(source)
    title, counts = dataset(name).title.partition(":")[0], dataset(name).counts
    if split not in SPLITS:
        raise LayoutError(f"split={split!r} is unknown", fix="use 'train', 'val' or 'test'")
    if not path.exists():
        raise LayoutError(f"{path} does not exist", fix="give the folder, zip or pickle of the set")
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    pickled = [p for p in found if p.suffix in (".pkl", ".pickle")]
    pickled = [p for p in pickled if p == path or _PICKLES[split].search(p.name)]
    out = _from_pickle(title, pickled[0]) if pickled else _from_jpegs(title, path, split, size)
    if strict:
        expect = counts[f"{split} classes"], counts["images per class"]
        words = ("classes", "images", "strict=False")
        _check_counts(f"{title} {split}", out.names, out.sizes, expect, words)
    return out


def _check_counts(
    title: str, names: Sequence[str], sizes: Sequence[int], expect: tuple, words: tuple
) -> None:
    """Raise LayoutError unless there are as many classes, and images in each, as expected."""
    classes, images, option = words
    wrong = [(n, s) for n, s in zip(names, sizes, strict=True) if s != expect[1]]
    if len(names) != expect[0] or wrong:
        what = f"{title} has {len(names):,} {classes} ({expect[0]:,} expected)"
        for name, size in wrong[:1]:
            what += f"; {name} has {size} {images} ({expect[1]} expected)"
        raise LayoutError(what, fix=f"the copy is incomplete: {_AGAIN}, or pass {option}")


def _image_set(title: str, images: np.ndarray, rows: Mapping[str, np.ndarray], names) -> ImageSet:
    starts = np.cumsum([0, *(len(rows[n]) for n in names)])
    joined = np.concatenate([rows[n] for n in names]).astype(np.int64)
    return ImageSet(title, images, joined, starts, tuple(names))


def _from_pickle(title: str, path: Path) -> ImageSet:
    held = read_pickle(path)
    images, groups = held.get("image_data", held.get("data")), held.get("class_dict")

    def wrong(what: str, fix: str = _AGAIN) -> LayoutError:
        return LayoutError(f"{path.name}{what}", fix=fix)

    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        fix = "give a pickle with 'image_data' or 'data' [N, H, W, 3]"
        raise wrong(" has no uint8 image array", fix)
    if groups is None:
        labels = np.asarray(held.get("labels", []))
        if labels.ndim != 1 or labels.dtype.kind not in "iuSU":
            raise wrong(" has labels that are neither whole numbers nor names")
        if len(labels) != len(images):
            raise wrong(f" has {len(images)} images but {len(labels)} labels")
        groups = {str(c): np.flatnonzero(labels == c) for c in np.unique(labels)}
    if not isinstance(groups, dict) or not groups:
        raise wrong(" has no classes", "give a pickle with 'class_dict' or 'labels'")
    parts = {n: np.asarray(rows) for n, rows in groups.items()}
    for n, part in parts.items():
        if part.ndim != 1 or not part.size or part.dtype.kind not in "iu":
            raise wrong(f": the class {n!r} is not a list of image numbers")
    out = _image_set(title, images, parts, sorted(parts, key=lambda n: (len(n), n)))
    if len(np.unique(out.rows)) < len(out.rows):
        raise wrong(": class_dict names an image twice")
    if out.rows.min() < 0 or out.rows.max() >= len(images):
        raise wrong(": class_dict names an image that is not there")
    return out


def _from_jpegs(title: str, path: Path, split: str, size: int | None) -> ImageSet:
    flat: list[np.ndarray] = []
    rows: dict[str, list[int]] = {}
    for name, content in _image_files(path, split):
        rows.setdefault(name.split("/")[-2], []).append(len(flat))
        flat.append(_decode(content, name, "RGB", size))
    if not flat:
        fix = "give the folder or zip that holds train/, val/ and test/"
        raise LayoutError(f"{path} has no {split}/<wnid>/*.jpg", fix=fix)
    if len(shapes := {i.shape for i in flat}) > 1:
        what = f"{title} {split} mixes image sizes {sorted(shapes)[:3]}"
        raise LayoutError(what, fix="pass size= to resize them")
    return _image_set(title, np.stack(flat), rows, sorted(rows))


def _image_files(path: Path, split: str) -> Iterator[tuple[str, bytes]]:
    wanted = re.compile(rf"(?:^|/){split}/[^/]+/[^/]+\.(?:jpe?g|JPE?G|png)$")
    if path.is_file():
        yield from sorted((n, c) for n, c in archive.members(path) if wanted.search(n))
        return
    for file in sorted((path / split).glob("*/*")):
        if wanted.search(file.as_posix()):
            yield file.relative_to(path).as_posix(), file.read_bytes()


def _decode(content: bytes, name: str, mode: str, size: int | None) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        fix = "install the extra: pip install 'fmrl[images]'"
        raise FetchError("reading JPEG and PNG files needs Pillow", fix=fix) from None
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            if image.width * image.height > _PIXELS:
                what = f"{name} claims {image.width}x{image.height} pixels"
                raise LayoutError(what, fix="do not use this file")
            image = image.convert(mode)
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except LayoutError:
        raise
    except Exception as e:
        raise LayoutError(f"{name} is not a readable image ({e})", fix=_AGAIN) from e


def _omniglot_paths(source: Path) -> tuple[Path, ...]:
    if source.is_file():
        return (source,)
    for variant in dataset("omniglot").variants:
        paths = tuple(source / item.name for item in variant)
        if all(p.exists() for p in paths):
            return paths
    fix = "give omniglot_105_packed.npz, or the folder that holds images_background(.zip) and "
    fix += "images_evaluation(.zip)"
    raise LayoutError(f"{source} holds no copy of Omniglot", fix=fix)


def _omniglot_packed(paths: Sequence[Path]) -> tuple[np.ndarray, tuple[str, ...], list[int]]:
    path = paths[0]
    archive.refuse_bomb(path)
    try:
        with np.load(path, allow_pickle=False) as z:
            packed, names = z["packed"], [str(n) for n in z["names"]]
            background = int(z["n_background"]) if "n_background" in z else len(names)
    except Exception as e:
        what = f"{path.name} is truncated or not the packed Omniglot ({e})"
        raise LayoutError(what, fix=_AGAIN) from e
    fits = packed.ndim == 2 and packed.shape[1] * 8 >= _SIDE**2
    if not fits or not names or len(packed) % len(names):
        what = f"{path.name} has {packed.shape} packed drawings for {len(names)} characters"
        raise LayoutError(what, fix=_AGAIN)
    # In name order within the background and the evaluation set, like the zips, so that a class has
    # one number everywhere.
    order = sorted(range(len(names)), key=lambda i: (i >= background, names[i]))
    packed = packed.reshape(len(names), -1, packed.shape[1])[order].reshape(packed.shape)
    return packed, tuple(names[i] for i in order), [len(packed) // len(names)] * len(names)


def _omniglot_drawings(paths: Iterable[Path]) -> tuple[np.ndarray, tuple[str, ...], list[int]]:
    rows: list[np.ndarray] = []
    counts: dict[tuple[int, str], int] = {}
    pattern = re.compile(r"([^/]+/character\d+)/[^/]+\.png$")
    for part, path in enumerate(paths):
        found: dict[str, list[np.ndarray]] = {}
        for name, content in sorted(archive.entries(path, "*.png")):
            if m := pattern.search(name):
                pixels = _decode(content, name, "1", None)
                if pixels.shape != (_SIDE, _SIDE):
                    what = f"{name} is {pixels.shape}, drawings are {_SIDE}x{_SIDE}"
                    raise LayoutError(what, fix=_AGAIN)
                found.setdefault(m[1], []).append(np.packbits(pixels.reshape(-1)))
        for character in sorted(found):
            counts[part, character] = len(found[character])
            rows += found[character]
    if not rows:
        raise LayoutError("there is no Alphabet/characterNN/*.png", fix=_AGAIN)
    return np.stack(rows), tuple(name for _, name in counts), list(counts.values())

"""Omniglot, Mini-ImageNet and Tiny ImageNet-100 from every layout they are found in."""

import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fmrl.datasets import archive
from fmrl.datasets.fetch import get
from fmrl.datasets.imagesets import ImageSet
from fmrl.datasets.pickles import read_pickle
from fmrl.datasets.registry import dataset
from fmrl.errors import FetchError, LayoutError

SPLITS = ("train", "val", "test")
_PIXELS = 1 << 26  # no image of these sets comes near; a larger claim is a decompression bomb
_OMNIGLOT_SIDE = 105
_PICKLES = {
    "train": re.compile(r"cache-train|split_train_phase_train(?!.*_ordered)|^train\."),
    "val": re.compile(r"cache-val|split_val|^val\."),
    "test": re.compile(r"cache-test|split_test|^test\."),
}


def load_omniglot(
    source: str | os.PathLike | None = None,
    *,
    size: int | None = 28,
    data=None,
    expect: tuple[int, int] | None = (1623, 20),
) -> ImageSet:
    """Omniglot as one set of 1,623 classes, paper 1 and ink 0; the first 964 are the background
    set.

    source: ``omniglot_105_packed.npz``, a folder that holds images_background(.zip) and
    images_evaluation(.zip), or by default the registry's copy. size: side of the drawings, resized
    by nearest neighbour as uint8 [N, size, size]; None keeps the 105x105 originals at one bit a
    pixel. expect: (classes, drawings per class), verified; None takes what is there."""
    paths = get("omniglot", data).paths if source is None else _omniglot_paths(Path(source))
    packed, names, counts = (
        _omniglot_packed(paths[0]) if paths[0].suffix == ".npz" else _omniglot_drawings(paths)
    )
    if expect is not None:
        wrong = [n for n, c in zip(names, counts, strict=True) if c != expect[1]]
        if len(names) != expect[0] or wrong:
            what = f"Omniglot has {len(names):,} characters ({expect[0]:,} expected)"
            what += (
                f"; {wrong[0]} has {counts[names.index(wrong[0])]} drawings ({expect[1]} expected)"
                if wrong
                else ""
            )
            raise LayoutError(
                what, fix="the copy is incomplete: fetch it again, or pass expect=None"
            )
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.arange(starts[-1])
    if size is None:
        return ImageSet("Omniglot", packed, rows, starts, names, side=_OMNIGLOT_SIDE)
    # The pixel at the centre of each cell, which is what nearest-neighbour resizing takes.
    at = ((np.arange(size) + 0.5) * _OMNIGLOT_SIDE / size).astype(int)
    images = np.empty((len(packed), size, size), dtype=np.uint8)
    for i in range(0, len(packed), 2048):
        bits = np.unpackbits(packed[i : i + 2048], axis=1)[:, : _OMNIGLOT_SIDE**2]
        images[i : i + 2048] = bits.reshape(-1, _OMNIGLOT_SIDE, _OMNIGLOT_SIDE)[:, at[:, None], at]
    return ImageSet("Omniglot", images, rows, starts, names)


def load_mini_imagenet(
    source: str | os.PathLike | None = None,
    *,
    split: str = "train",
    size: int | None = 84,
    data=None,
    strict: bool = True,
) -> ImageSet:
    """One split of Mini-ImageNet, uint8 [N, 84, 84, 3], from ``train|val|test/<wnid>/*.jpg`` or
    from the common pickles.

    The pickles (``mini-imagenet-cache-*.pkl`` and ``miniImageNet_category_split_*.pickle``) are
    read as data, never executed, and their pixels are used where they lie. strict: verify 64, 16,
    20 classes of 600 images; False takes what is there."""
    path = get("mini-imagenet", data).path if source is None else Path(source)
    return _load_folder_set("mini-imagenet", "Mini-ImageNet", path, split, size, strict)


def load_tiny_imagenet_100(
    source: str | os.PathLike | None = None,
    *,
    split: str = "train",
    size: int | None = None,
    data=None,
    strict: bool = True,
) -> ImageSet:
    """One split of Tiny ImageNet-100, uint8 [N, 64, 64, 3], from its zip or the unpacked folder;
    64, 16, 20 classes of 140 images.
    """
    path = get("tiny-imagenet-100", data).path if source is None else Path(source)
    return _load_folder_set("tiny-imagenet-100", "Tiny ImageNet-100", path, split, size, strict)


def _load_folder_set(
    name: str, title: str, path: Path, split: str, size: int | None, strict: bool
) -> ImageSet:
    if split not in SPLITS:
        raise LayoutError(f"split={split!r} is unknown", fix="use 'train', 'val' or 'test'")
    found = [p for p in path.iterdir() if p.suffix in (".pkl", ".pickle")] if path.is_dir() else []
    pickled = (
        [path]
        if path.suffix in (".pkl", ".pickle")
        else [p for p in sorted(found) if _PICKLES[split].search(p.name)]
    )
    if not path.exists():
        raise LayoutError(f"{path} does not exist", fix="give the folder, zip or pickle of the set")
    out = _from_pickle(title, pickled[0]) if pickled else _from_jpegs(title, path, split, size)
    counts = dataset(name).counts
    expected = (counts[f"{split} classes"], counts["images per class"])
    if strict:
        wrong = [n for n, c in zip(out.names, out.sizes, strict=True) if c != expected[1]]
        if len(out.names) != expected[0] or wrong:
            what = f"{title} {split} has {len(out.names)} classes ({expected[0]} expected)"
            what += (
                f"; {wrong[0]} has {out.sizes[out.names.index(wrong[0])]} images ({expected[1]} expected)"
                if wrong
                else ""
            )
            raise LayoutError(
                what, fix="the copy is incomplete: get it again, or pass strict=False"
            )
    return out


def _from_pickle(title: str, path: Path) -> ImageSet:
    held = read_pickle(path)
    images = held.get("image_data", held.get("data"))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        raise LayoutError(
            f"{path.name} has no uint8 image array",
            fix="give a pickle with 'image_data' or 'data' [N, H, W, 3]",
        )
    groups = held.get("class_dict")
    if groups is None:
        labels = np.asarray(held.get("labels", []))
        if labels.ndim != 1 or labels.dtype.kind not in "iuSU":
            raise LayoutError(
                f"{path.name} has labels that are neither whole numbers nor names",
                fix="get the file again",
            )
        groups = {str(c): np.flatnonzero(labels == c) for c in np.unique(labels)}
        if len(labels) != len(images):
            raise LayoutError(
                f"{path.name} has {len(images)} images but {len(labels)} labels",
                fix="get the file again",
            )
    if not isinstance(groups, dict) or not groups:
        raise LayoutError(
            f"{path.name} has no classes", fix="give a pickle with 'class_dict' or 'labels'"
        )
    names = tuple(sorted(groups, key=lambda n: (len(n), n)))
    parts = [np.asarray(groups[n]) for n in names]
    for n, part in zip(names, parts, strict=True):
        if part.ndim != 1 or not part.size or part.dtype.kind not in "iu":
            raise LayoutError(
                f"{path.name}: the class {n!r} is no list of image numbers",
                fix="get the file again",
            )
    rows = np.concatenate(parts).astype(np.int64)
    if len(np.unique(rows)) < len(rows):
        raise LayoutError(f"{path.name}: class_dict names an image twice", fix="get the file again")
    if rows.min() < 0 or rows.max() >= len(images):
        raise LayoutError(
            f"{path.name}: class_dict names an image that is not there", fix="get the file again"
        )
    return ImageSet(
        title, images, rows, np.concatenate([[0], np.cumsum([len(p) for p in parts])]), names
    )


def _from_jpegs(title: str, path: Path, split: str, size: int | None) -> ImageSet:
    entries: dict[str, list[np.ndarray]] = {}
    for name, content in _image_files(path, split):
        entries.setdefault(name.split("/")[-2], []).append(_decode(content, name, "RGB", size))
    if not entries:
        raise LayoutError(
            f"{path} has no {split}/<wnid>/*.jpg",
            fix="give the folder or zip that holds train/, val/ and test/",
        )
    names = tuple(sorted(entries))
    flat = [image for n in names for image in entries[n]]
    shapes = {i.shape for i in flat}
    if len(shapes) > 1:
        raise LayoutError(
            f"{title} {split} mixes image sizes {sorted(shapes)[:3]}",
            fix="pass size= to resize them",
        )
    starts = np.concatenate([[0], np.cumsum([len(entries[n]) for n in names])])
    return ImageSet(title, np.stack(flat), np.arange(starts[-1]), starts, names)


def _image_files(path: Path, split: str) -> Iterator[tuple[str, bytes]]:
    wanted = re.compile(rf"(?:^|/){split}/[^/]+/[^/]+\.(?:jpe?g|JPE?G|png)$")
    if path.is_dir():
        for file in sorted((path / split).glob("*/*")):
            if wanted.search(file.as_posix()):
                yield file.relative_to(path).as_posix(), file.read_bytes()
    elif path.is_file():
        yield from sorted((n, c) for n, c in archive.members(path) if wanted.search(n))
    else:
        raise LayoutError(
            f"{path} does not exist", fix="give the folder or zip that holds train/, val/ and test/"
        )


def _decode(content: bytes, name: str, mode: str, size: int | None) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        fix = "install the extra: pip install 'fmrl[images]'"
        raise FetchError("reading JPEG and PNG files needs Pillow", fix=fix) from None
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            if image.width * image.height > _PIXELS:
                raise LayoutError(
                    f"{name} claims {image.width}x{image.height} pixels", fix="do not use this file"
                )
            image = image.convert(mode)
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except LayoutError:
        raise
    except Exception as e:
        raise LayoutError(f"{name} is not a readable image ({e})", fix="get the set again") from e


def _omniglot_paths(source: Path) -> tuple[Path, ...]:
    if source.is_file():
        return (source,)
    for variant in dataset("omniglot").variants:
        paths = tuple(source / item.name for item in variant)
        if all(p.exists() for p in paths):
            return paths
    fix = "give omniglot_105_packed.npz, or the folder that holds images_background(.zip) and images_evaluation(.zip)"
    raise LayoutError(f"{source} holds no copy of Omniglot", fix=fix)


def _omniglot_packed(path: Path) -> tuple[np.ndarray, tuple[str, ...], list[int]]:
    archive.refuse_bomb(path)
    try:
        with np.load(path, allow_pickle=False) as z:
            packed, names = z["packed"], [str(n) for n in z["names"]]
            background = int(z["n_background"]) if "n_background" in z else len(names)
    except Exception as e:
        raise LayoutError(
            f"{path.name} is truncated or not the packed Omniglot ({e})", fix="get it again"
        ) from e
    if (
        packed.ndim != 2
        or packed.shape[1] * 8 < _OMNIGLOT_SIDE**2
        or not names
        or len(packed) % len(names)
    ):
        raise LayoutError(
            f"{path.name} has {packed.shape} packed drawings for {len(names)} characters",
            fix="get it again",
        )
    # In name order within the background and the evaluation set, like the zips, so that a class has
    # one number everywhere.
    order = sorted(range(len(names)), key=lambda i: (i >= background, names[i]))
    packed = packed.reshape(len(names), -1, packed.shape[1])[order].reshape(packed.shape)
    return packed, tuple(names[i] for i in order), [len(packed) // len(names)] * len(names)


def _omniglot_drawings(paths: Iterable[Path]) -> tuple[np.ndarray, tuple[str, ...], list[int]]:
    rows, names, counts = [], [], []
    for path in paths:
        found: dict[str, list[np.ndarray]] = {}
        pattern = re.compile(r"([^/]+/character\d+)/[^/]+\.png$")
        for name, content in sorted(archive.entries(path, "*.png")):
            if m := pattern.search(name):
                pixels = _decode(content, name, "1", None)
                if pixels.shape != (_OMNIGLOT_SIDE, _OMNIGLOT_SIDE):
                    raise LayoutError(
                        f"{name} is {pixels.shape}, drawings are 105x105", fix="get the set again"
                    )
                found.setdefault(m[1], []).append(np.packbits(pixels.reshape(-1)))
        for character in sorted(found):
            names.append(character)
            counts.append(len(found[character]))
            rows += found[character]
    if not rows:
        raise LayoutError("there is no Alphabet/characterNN/*.png", fix="get the set again")
    return np.stack(rows), tuple(names), counts

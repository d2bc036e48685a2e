"""Reading a data set to its end and counting what is there."""

from fmrl.datasets.fetch import Found
from fmrl.datasets.registry import dataset
from fmrl.errors import LayoutError


def count(found: Found) -> dict[str, int]:
    """The counts of a data set that is here; raises the loader's own error when it is not what the
    registry says.
    """
    name, path = found.name, found.path
    counts = _COUNTERS[name](path)
    expected = dataset(name).counts
    for key, value in counts.items():
        if key in expected and value != expected[key]:
            raise LayoutError(
                f"{name} has {value:,} {key}, {expected[key]:,} expected",
                fix="the copy is incomplete: get it again",
            )
    return counts


def _miniwiki(path) -> dict[str, int]:
    from fmrl.datasets.miniwiki import parse, read_tasks

    files, ids = read_tasks(path, 1)
    labels = {
        label
        for t, ((i, s), content) in enumerate(files)
        for label in parse(content, f"{s}/{i}.txt", t, 1)[0]
    }
    return {"tasks": len(ids), "classes": len(labels)}


def _rebuilt(path) -> dict[str, int]:
    from fmrl.datasets.manifest import check_manifest, read_manifest
    from fmrl.datasets.miniwiki import listing, read_tasks

    manifest = read_manifest(path) or {}
    if "folders" not in manifest:
        fix = "build it again with `fmrl data build mini-wiki`"
        raise LayoutError(f"{path} has no manifest.json that lists its files", fix=fix)
    for shots in (*manifest.get("shots", ()), None):
        check_manifest(manifest, listing(read_tasks(path, shots)[0], shots), shots)
    return _miniwiki(path)


def _wiki3029(path) -> dict[str, int]:
    from fmrl.datasets.miniwiki_build import read_wiki3029

    # Repeated sentences are dropped on reading, so pages are what can be compared; the authors'
    # archive has one more.
    return {"pages" if path.suffix == ".xz" else "pages in the archive": len(read_wiki3029(path))}


def _wordnet(path) -> dict[str, int]:
    from fmrl.datasets.wordnet import WordNet

    return {"noun synsets": len(WordNet.load(path).synsets)}


def _omniglot(path) -> dict[str, int]:
    from fmrl.datasets.images import load_omniglot

    held = load_omniglot(
        path if path.is_file() and path.suffix == ".npz" else path.parent, size=None
    )
    return {"classes": len(held.names), "drawings per class": held.sizes[0]}


def _folders(load):
    def counter(path) -> dict[str, int]:
        out = {}
        for split in ("train", "val", "test"):
            held = load(path, split=split)
            out |= {f"{split} classes": len(held.names), "images per class": held.sizes[0]}
        return out

    return counter


def _mini_imagenet(path) -> dict[str, int]:
    from fmrl.datasets.images import load_mini_imagenet

    return _folders(load_mini_imagenet)(path)


def _tiny_imagenet(path) -> dict[str, int]:
    from fmrl.datasets.images import load_tiny_imagenet_100

    return _folders(load_tiny_imagenet_100)(path)


def _shakespeare(path) -> dict[str, int]:
    from fmrl.datasets.shakespeare import load_shakespeare

    return {"roles": len(load_shakespeare(path))}


_COUNTERS = {
    "mini-wiki": _miniwiki,
    "mini-wiki-rebuilt": _rebuilt,
    "wiki3029": _wiki3029,
    "wordnet": _wordnet,
    "omniglot": _omniglot,
    "mini-imagenet": _mini_imagenet,
    "tiny-imagenet-100": _tiny_imagenet,
    "leaf-shakespeare": _shakespeare,
}

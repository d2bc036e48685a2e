"""What is known of each data set: origin, licence, counts, and what its files hash to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fmrl.errors import FetchError


@dataclass(frozen=True)
class Item:
    """One file or folder of a data set.

    A file with neither sha256 nor md5 is checked by its length, by opening it and by its counts;
    the hash seen at the first download is kept beside it and held to from then on.

    Args:
        name: Its name in a data folder or in the cache.
        url: Its original home; None where it must be placed by hand.
        sha256: Of its bytes.
        md5: For files whose publisher gives only that.
        folder: It is a folder.
    """

    name: str
    url: str | None = None
    sha256: str | None = None
    md5: str | None = None
    folder: bool = False


@dataclass(frozen=True)
class Dataset:
    """A named data set.

    Args:
        name: As it is asked for.
        title: What it is.
        origin: Where it comes from.
        licence: Under which it is published.
        variants: Alternative sets of items, any one of which is enough, best first.
        counts: How many things of each kind it holds.
        fix: What to do where it cannot be downloaded.
        counter: 'module:function' that reads a copy to its end: (name, path) -> counts.

    >>> counts = DATASETS["omniglot"].counts
    >>> counts["classes"] * counts["drawings per class"]
    32460
    """

    name: str
    title: str
    origin: str
    licence: str
    variants: tuple[tuple[Item, ...], ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    fix: str = ""
    counter: str = ""

    @property
    def downloads(self) -> tuple[Item, ...]:
        """The first variant whose every item has an address; empty when there is none."""
        return next((v for v in self.variants if all(i.url for i in v)), ())


def _file(name: str, url: str | None = None, md5: str | None = None) -> Item:
    return Item(name, url, _SHA256.get(name), md5)


def _folders(*names: str) -> tuple[Item, ...]:
    return tuple(Item(name, folder=True) for name in names)


_SHA256 = {
    "wiki3029.tsv.xz": "5f05d1d79d20126f1cd4a6d3ce436b3e6eed6177d554ba3790eee0139615976c",
    "wordnet-3.0-dict.tar.xz": "f0fd45a248565896723eb3e0c3a4d31c14ce309f6500b075485c5d95ced68628",
    "WordNet-3.0.tar.bz2": "6c492d0c7b4a40e7674d088191d3aa11f373bb1da60762e098b8ee2dda96ef22",
    "omniglot_105_packed.npz": "8c8d56aa2f5c8944bd3224dacb6725d2ae39e66512b8fa6c5f42a87de7d20ed1",
    "tiny_imagenet_100_jpeg.zip": (
        "06406827c3ea35c99d5a65246ea5a51610a2a040695f55b7bbd85d171c644eae"
    ),
    "leaf_shakespeare_by_play_and_character.tar.xz": (
        "f653ab6c9724ac73cb75bad1345e6022e16c76b63a9a21db58b4b4b42449c56d"
    ),
}
_MINI_WIKI = "https://github.com/mkhodak/FMRL/raw/master/data/miniwikipedia.tar.gz"
_WIKI3029 = "https://nlp.cs.princeton.edu/CURL/Wiki-3029.tar.gz"
_WORDNET = "https://wordnetcode.princeton.edu/3.0/WordNet-3.0.tar.bz2"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/images_"
_SPLITS = {"train classes": 64, "val classes": 16, "test classes": 20}

_ALL = (
    Dataset(
        "mini-wiki",
        "Mini-Wikipedia (Khodak, Balcan & Talwalkar 2019)",
        "https://github.com/mkhodak/FMRL",
        "Wikipedia text, CC BY-SA",
        ((_file("miniwikipedia.tar.gz", _MINI_WIKI),), _folders("miniwikinet")),
        {"tasks": 812, "classes": 4},
        "or rebuild a stand-in with `fmrl data build mini-wiki`",
        "fmrl.datasets.miniwiki:count",
    ),
    Dataset(
        "mini-wiki-rebuilt",
        "Mini-Wiki (rebuilt) from Wiki3029 and WordNet 3.0",
        "built here by the recipe of the paper's appendix",
        "Wikipedia text, CC BY-SA; WordNet licence",
        (_folders("mini-wiki-rebuilt"),),
        {"classes": 4},
        "build it with `fmrl data build mini-wiki --wiki3029 FILE --wordnet FILE`",
        "fmrl.datasets.miniwiki:count",
    ),
    Dataset(
        "wiki3029",
        "Wiki3029: 200 sentences from each of 3,028 Wikipedia pages (Arora et al. 2019)",
        "https://nlp.cs.princeton.edu/CURL/",
        "Wikipedia text, CC BY-SA",
        ((_file("wiki3029.tsv.xz"),), (_file("Wiki-3029.tar.gz", _WIKI3029),)),
        {"pages": 3028, "sentences per page": 200},
        counter="fmrl.datasets.miniwiki_build:count_pages",
    ),
    Dataset(
        "wordnet",
        "WordNet 3.0 database files",
        "https://wordnet.princeton.edu",
        "WordNet 3.0 licence",
        ((_file("wordnet-3.0-dict.tar.xz"),), (_file("WordNet-3.0.tar.bz2", _WORDNET),)),
        {"noun synsets": 82115},
        counter="fmrl.datasets.wordnet:count_synsets",
    ),
    Dataset(
        "omniglot",
        "Omniglot: 1,623 handwritten characters, 20 drawings each (Lake et al. 2015)",
        "https://github.com/brendenlake/omniglot",
        "MIT",
        (
            (_file("omniglot_105_packed.npz"),),
            tuple(
                _file(f"images_{part}.zip", f"{_OMNIGLOT}{part}.zip", md5)
                for part, md5 in (
                    ("background", "68d2efa1b9178cc56df9314c21c6e718"),
                    ("evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
                )
            ),
            _folders("images_background", "images_evaluation"),
        ),
        {"classes": 1623, "background classes": 964, "drawings per class": 20},
        counter="fmrl.datasets.images:count_omniglot",
    ),
    Dataset(
        "mini-imagenet",
        "Mini-ImageNet: 100 classes, 600 images each (Vinyals et al. 2016; split of Ravi & "
        "Larochelle 2017)",
        "derived from https://image-net.org",
        "ImageNet terms, research use",
        (_folders("mini-imagenet"),),
        _SPLITS | {"images per class": 600},
        "its images belong to ImageNet and have no open home: put train/, val/ and test/ (one "
        "folder of JPEGs per WordNet id), or the three common pickles, under mini-imagenet/ in the "
        "data folder",
        "fmrl.datasets.images:count_splits",
    ),
    Dataset(
        "tiny-imagenet-100",
        "Tiny ImageNet-100: 100 of Tiny ImageNet's classes, 140 images each, 64x64, in "
        "Mini-ImageNet's folder layout",
        "derived from http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "ImageNet terms, research use",
        ((_file("tiny_imagenet_100_jpeg.zip"),), _folders("tiny-imagenet-100")),
        _SPLITS | {"images per class": 140},
        "put tiny_imagenet_100_jpeg.zip, or its train/, val/ and test/ under tiny-imagenet-100/, "
        "in the data folder",
        "fmrl.datasets.images:count_splits",
    ),
    Dataset(
        "leaf-shakespeare",
        "LEAF Shakespeare: the plays' text by role (Caldas et al. 2018)",
        "https://github.com/TalwalkarLab/leaf",
        "public-domain text; LEAF BSD-2-Clause",
        (
            (_file("leaf_shakespeare_by_play_and_character.tar.xz"),),
            _folders("by_play_and_character"),
        ),
        {"roles": 1144},
        "run LEAF's data/shakespeare/preprocess.sh and put its raw_data/by_play_and_character in "
        "the data folder",
        "fmrl.datasets.shakespeare:count",
    ),
)

DATASETS: Mapping[str, Dataset] = {d.name: d for d in _ALL}


def dataset(name: str) -> Dataset:
    """The registry's entry, or an error that lists the names there are.

    Args:
        name: A key of ``DATASETS``.

    >>> dataset("omniglot").licence
    'MIT'
    """
    if name not in DATASETS:
        fix = f"choose from {', '.join(DATASETS)}"
        raise FetchError(f"no data set is called {name!r}", fix=fix)
    return DATASETS[name]

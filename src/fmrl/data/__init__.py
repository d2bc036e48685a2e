"""Data sets with checks, any user's table, and synthetic tasks with known optima."""

from fmrl.data.encode import Encoder, Policy
from fmrl.data.encode_fit import fit_encoder
from fmrl.data.episodes import Batch, Episodes, shuffled
from fmrl.data.errors import (
    ArchiveError,
    ChecksumError,
    DataError,
    FetchError,
    LayoutError,
    PickleError,
    TableError,
)
from fmrl.data.fetch import get, locate
from fmrl.data.frames import tasks_from_frame
from fmrl.data.glove import Glove
from fmrl.data.images import load_mini_imagenet, load_omniglot, load_tiny_imagenet_100
from fmrl.data.imagesets import ImageSet
from fmrl.data.miniwiki import MiniWiki, load_miniwiki
from fmrl.data.registry import DATASETS, Dataset, dataset
from fmrl.data.shakespeare import Shakespeare, load_shakespeare
from fmrl.data.synthetic import Synthetic, evolving, experts, gaussian_mixtures, linear_regressions
from fmrl.data.taskstream import TaskStream
from fmrl.data.training import training_ids

__all__ = [
    "DATASETS",
    "ArchiveError",
    "Batch",
    "ChecksumError",
    "DataError",
    "Dataset",
    "Encoder",
    "Episodes",
    "FetchError",
    "Glove",
    "ImageSet",
    "LayoutError",
    "MiniWiki",
    "PickleError",
    "Policy",
    "Shakespeare",
    "Synthetic",
    "TableError",
    "TaskStream",
    "dataset",
    "evolving",
    "experts",
    "fit_encoder",
    "gaussian_mixtures",
    "get",
    "linear_regressions",
    "load_mini_imagenet",
    "load_miniwiki",
    "load_omniglot",
    "load_shakespeare",
    "load_tiny_imagenet_100",
    "locate",
    "shuffled",
    "tasks_from_frame",
    "training_ids",
]

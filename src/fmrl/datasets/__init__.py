"""Data sets with checks, any user's table, and synthetic tasks with known optima."""

from fmrl.datasets.episodes import Batch, Episodes, ImageSet, shuffled
from fmrl.datasets.fetch import get, locate
from fmrl.datasets.glove import Glove
from fmrl.datasets.images import load_mini_imagenet, load_omniglot, load_tiny_imagenet_100
from fmrl.datasets.miniwiki import MiniWiki, load_miniwiki
from fmrl.datasets.registry import DATASETS, Dataset, dataset
from fmrl.datasets.shakespeare import Shakespeare, load_shakespeare
from fmrl.datasets.synthetic import (
    Synthetic,
    evolving,
    experts,
    gaussian_mixtures,
    linear_regressions,
)
from fmrl.errors import (
    ArchiveError,
    ChecksumError,
    DataError,
    FetchError,
    LayoutError,
    PickleError,
    TableError,
)
from fmrl.tables import (
    Encoder,
    Policy,
    TaskStream,
    fit_encoder,
    infer_loss,
    tasks_from_frame,
    training_ids,
)

__all__ = [
    "DATASETS", "ArchiveError", "Batch", "ChecksumError", "DataError", "Dataset", "Encoder",
    "Episodes", "FetchError", "Glove", "ImageSet", "LayoutError", "MiniWiki", "PickleError",
    "Policy", "Shakespeare", "Synthetic", "TableError", "TaskStream", "dataset", "evolving",
    "experts", "fit_encoder", "gaussian_mixtures", "get", "infer_loss", "linear_regressions",
    "load_mini_imagenet", "load_miniwiki", "load_omniglot", "load_shakespeare",
    "load_tiny_imagenet_100", "locate", "shuffled", "tasks_from_frame", "training_ids",
]  # fmt: skip

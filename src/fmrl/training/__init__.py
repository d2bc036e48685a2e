"""Training runs as folders: from a table to a model with its history, held-out scores and record, and on to new tasks."""

from fmrl.training.options import Options
from fmrl.training.run import Run
from fmrl.training.train import Stopped, train

__all__ = ["Options", "Run", "Stopped", "train"]

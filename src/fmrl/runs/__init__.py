"""Training runs as folders: from a table to a model with its history, held-out scores and record,
and on to new tasks.
"""

from fmrl.runs.options import Options
from fmrl.runs.run import Run
from fmrl.runs.train import Stopped, train

__all__ = ["Options", "Run", "Stopped", "train"]

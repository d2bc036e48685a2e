"""FMRL (say "ephemeral"): gradient-based meta-learning with guarantees.

The five ingredients of Algorithm 2 are values; `FMRL` composes them; `run` plays tasks and returns a `History`.
"""

from importlib import import_module
from typing import Any

from fmrl import adversary, growth, transfer
from fmrl.core import presets
from fmrl.core.algorithm import FMRL, Round, State
from fmrl.core.checkpoint import load_history, load_state, save_history, save_state
from fmrl.core.domains import Ball, Box, Domain, Euclidean
from fmrl.core.errors import FMRLError
from fmrl.core.history import History
from fmrl.core.losses import Hinge, Linear, Logistic, Loss, OneVsAll, Softmax, Squared
from fmrl.core.meta import AdaptiveOGD, Fixed, FollowLeader, Interpolate, LastUpdate
from fmrl.core.parse import parse
from fmrl.core.run import run
from fmrl.core.similarity import AverageDeviation, Doubling, Known, ReleasedDoubling
from fmrl.core.simplex import Simplex
from fmrl.core.solver import Solution, minimise
from fmrl.core.tasks import Game, Task, stack
from fmrl.core.update import FAL, FLIBatch, FLIOnline
from fmrl.core.within import FTRL, OGD, OMD, Play, play
from fmrl.similar import SimilarityReport, similarity_report

__version__ = "0.1.0"
__all__ = [
    "FAL",
    "FMRL",
    "FTRL",
    "OGD",
    "OMD",
    "AdaptiveOGD",
    "AverageDeviation",
    "Ball",
    "Box",
    "Domain",
    "Doubling",
    "Euclidean",
    "FLIBatch",
    "FLIOnline",
    "FMRLError",
    "Fixed",
    "FollowLeader",
    "Game",
    "Hinge",
    "History",
    "Interpolate",
    "Known",
    "LastUpdate",
    "Linear",
    "Logistic",
    "Loss",
    "OneVsAll",
    "Play",
    "ReleasedDoubling",
    "Round",
    "SimilarityReport",
    "Simplex",
    "Softmax",
    "Solution",
    "Squared",
    "State",
    "Task",
    "adversary",
    "growth",
    "load_history",
    "load_state",
    "minimise",
    "parse",
    "play",
    "presets",
    "run",
    "save_history",
    "save_state",
    "similarity_report",
    "stack",
    "transfer",
]

# Names whose modules import more than numpy, loaded when first asked for.
_LATER = {
    "Certificate": "fmrl.certificate:Certificate",
    "MetaClassifier": "fmrl.estimators:MetaClassifier",
    "MetaRegressor": "fmrl.estimators:MetaRegressor",
    "bounds": "fmrl.bounds",
    "certify": "fmrl.certificate:certify",
    "data": "fmrl.data",
    "scale": "fmrl.scale",
    "tasks_from_frame": "fmrl.data:tasks_from_frame",
}
__all__ += _LATER


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fmrl' has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)

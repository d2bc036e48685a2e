"""FMRL (say "ephemeral"): gradient-based meta-learning with guarantees.

The five ingredients of Algorithm 2 are values; `FMRL` composes them; `run` plays tasks and
returns a `History`."""

from importlib import import_module
from typing import Any

from fmrl.core import presets
from fmrl.core.algorithm import FMRL, Round
from fmrl.core.checkpoint import load_history, load_state, save_history, save_state
from fmrl.core.domains import Ball, Box, Domain, Euclidean, Simplex
from fmrl.core.history import History
from fmrl.core.losses import Hinge, Linear, Logistic, Loss, OneVsAll, Softmax, Squared
from fmrl.core.meta_level import State
from fmrl.core.rules.meta import AdaptiveOGD, Fixed, FollowLeader, Interpolate, LastUpdate
from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known, ReleasedDoubling
from fmrl.core.rules.update import FAL, FLIBatch, FLIOnline
from fmrl.core.rules.within import FTRL, OGD, OMD, Play, play
from fmrl.core.run import run
from fmrl.core.solve.minimise import Solution, minimise
from fmrl.core.tasks import Game, Task, stack
from fmrl.core.values import parse
from fmrl.errors import FMRLError
from fmrl.theory import adversary, growth, transfer
from fmrl.theory.similarity import SimilarityReport, similarity_report

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
    "Certificate": "fmrl.theory.certificate:Certificate",
    "MetaClassifier": "fmrl.estimators:MetaClassifier",
    "MetaRegressor": "fmrl.estimators:MetaRegressor",
    "bounds": "fmrl.theory.bounds",
    "cluster": "fmrl.cluster",
    "certify": "fmrl.theory.certificate:certify",
    "data": "fmrl.datasets",
    "datasets": "fmrl.datasets",
    "deep": "fmrl.deep",
    "report": "fmrl.report",
    "scale": "fmrl.cluster",
    "tables": "fmrl.tables",
    "tasks_from_frame": "fmrl.tables.frames:tasks_from_frame",
    "theory": "fmrl.theory",
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

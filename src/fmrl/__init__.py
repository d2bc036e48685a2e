"""FMRL (say "ephemeral"): gradient-based meta-learning with guarantees.

The five ingredients of Algorithm 2 are values; `FMRL` composes them; `run` plays tasks and
returns a `History`."""

from importlib import import_module
from typing import Any

from fmrl.core import presets
from fmrl.core.algorithm import FMRL, Round
from fmrl.core.checkpoint import load_history, load_state, save_history, save_state
from fmrl.core.domains import Ball, Box, Domain, Euclidean, Simplex
from fmrl.core.ensemble import Centres, Hedge
from fmrl.core.history import History
from fmrl.core.losses import Hinge, Linear, Logistic, Loss, OneVsAll, Softmax, Squared
from fmrl.core.meta_level import State
from fmrl.core.metric import Diagonal, Full, Metric, Spiked
from fmrl.core.prior.gaussian import Gaussian, prior
from fmrl.core.prior.marginal import estimate_prior
from fmrl.core.rules.covariance import Covariance
from fmrl.core.rules.descent import MetaSGD, Observed
from fmrl.core.rules.ewoo import EWOO
from fmrl.core.rules.meta import (
    AdaptiveOGD,
    Fixed,
    FollowLeader,
    Interpolate,
    LastUpdate,
    MetaUpdate,
)
from fmrl.core.rules.moving import Conditional, Discounted, Mixture, Restart, Window
from fmrl.core.rules.private import NoisyGradients, Tree
from fmrl.core.rules.shape import FullMatrix, Isotropic, KnownStep, LowRank, PerCoordinate
from fmrl.core.rules.similarity import (
    AverageDeviation,
    Doubling,
    Known,
    ReleasedDoubling,
    SimilarityRule,
)
from fmrl.core.rules.update import FAL, FLIBatch, FLIOnline, UpdateRule
from fmrl.core.rules.within import FTRL, OGD, OMD, Learner, Play, play
from fmrl.core.run import run
from fmrl.core.solve import Solution, minimise
from fmrl.core.tasks import Game, Task, stack
from fmrl.core.values import parse
from fmrl.errors import FMRLError
from fmrl.theory import adversary, growth, transfer
from fmrl.theory.similarity import SimilarityReport, similarity_report

__version__ = "0.1.0"
__all__ = [
    "EWOO",
    "FAL",
    "FMRL",
    "FTRL",
    "OGD",
    "OMD",
    "AdaptiveOGD",
    "AverageDeviation",
    "Ball",
    "Box",
    "Centres",
    "Conditional",
    "Covariance",
    "Diagonal",
    "Discounted",
    "Domain",
    "Doubling",
    "Euclidean",
    "FLIBatch",
    "FLIOnline",
    "FMRLError",
    "Fixed",
    "FollowLeader",
    "Full",
    "FullMatrix",
    "Game",
    "Gaussian",
    "Hedge",
    "Hinge",
    "History",
    "Interpolate",
    "Isotropic",
    "Known",
    "KnownStep",
    "LastUpdate",
    "Learner",
    "Linear",
    "Logistic",
    "Loss",
    "LowRank",
    "MetaSGD",
    "MetaUpdate",
    "Metric",
    "Mixture",
    "NoisyGradients",
    "Observed",
    "OneVsAll",
    "PerCoordinate",
    "Play",
    "ReleasedDoubling",
    "Restart",
    "Round",
    "SimilarityReport",
    "SimilarityRule",
    "Simplex",
    "Softmax",
    "Solution",
    "Spiked",
    "Squared",
    "State",
    "Task",
    "Tree",
    "UpdateRule",
    "Window",
    "adversary",
    "estimate_prior",
    "growth",
    "load_history",
    "load_state",
    "minimise",
    "parse",
    "play",
    "presets",
    "prior",
    "run",
    "save_history",
    "save_state",
    "similarity_report",
    "stack",
    "transfer",
]  # fmt: skip

# Names whose modules import more than numpy, loaded when first asked for.
_LATER = {
    "Certificate": "fmrl.theory.certificate:Certificate",
    "FewShotScorer": "fmrl.estimators:FewShotScorer",
    "FewShotSplit": "fmrl.estimators:FewShotSplit",
    "InputWarning": "fmrl.estimators:InputWarning",
    "MetaClassifier": "fmrl.estimators:MetaClassifier",
    "MetaRegressor": "fmrl.estimators:MetaRegressor",
    "adapt": "fmrl.estimators:adapt",
    "bounds": "fmrl.theory.bounds",
    "cluster": "fmrl.cluster",
    "certify": "fmrl.theory.certificate:certify",
    "data": "fmrl.datasets",
    "datasets": "fmrl.datasets",
    "deep": "fmrl.deep",
    "federated": "fmrl.federated",
    "estimators": "fmrl.estimators",
    "few_shot_score": "fmrl.estimators:few_shot_score",
    "report": "fmrl.report",
    "runs": "fmrl.runs",
    "playground": "fmrl.playground",
    "scale": "fmrl.cluster",
    "tables": "fmrl.tables",
    "tasks_from_frame": "fmrl.tables.frames:tasks_from_frame",
    "theory": "fmrl.theory",
}
__all__ += sorted(_LATER.keys() - {"deep"})  # ``import *`` would ask an extra for that


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fmrl' has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATER})

"""FMRL (say "ephemeral"): gradient-based meta-learning with guarantees.

The five ingredients of Algorithm 2 are values; `FMRL` composes them; `run` plays tasks and returns a `History`.
"""

from fmrl.core import presets
from fmrl.core.algorithm import FMRL, Round, State
from fmrl.core.checkpoint import load_state, save_state
from fmrl.core.domains import Ball, Box, Domain, Euclidean
from fmrl.core.errors import FMRLError
from fmrl.core.history import History
from fmrl.core.losses import Hinge, Linear, Logistic, Loss, OneVsAll, Softmax, Squared
from fmrl.core.meta import AdaptiveOGD, Fixed, FollowLeader, Interpolate, LastUpdate
from fmrl.core.run import run
from fmrl.core.similarity import AverageDeviation, Doubling, Known, ReleasedDoubling
from fmrl.core.simplex import Simplex
from fmrl.core.solver import Solution, minimise
from fmrl.core.tasks import Game, Task, stack
from fmrl.core.update import FAL, FLIBatch, FLIOnline
from fmrl.core.within import FTRL, OGD, OMD, Play, play

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
    "Simplex",
    "Softmax",
    "Solution",
    "Squared",
    "State",
    "Task",
    "load_state",
    "minimise",
    "play",
    "presets",
    "run",
    "save_state",
    "stack",
]

"""Meta-learning of networks: train any nn.Module across tasks, adapt it, evaluate it.

Needs the extra ``fmrl[deep]``."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    text = "fmrl.deep needs torch; install it with: pip install 'fmrl[deep]'"
    raise ModuleNotFoundError(text, name="torch") from None

from fmrl.core.rules.descent import MetaSGD, Observed
from fmrl.core.rules.meta import AdaptiveOGD, FollowLeader, Interpolate
from fmrl.core.rules.shape import Isotropic, PerCoordinate
from fmrl.core.rules.similarity import AverageDeviation, Doubling, Known
from fmrl.core.rules.update import FLIBatch, FLIOnline
from fmrl.deep.adaptation import adapt, gradient_norm
from fmrl.deep.checkpoint import load, save
from fmrl.deep.evaluate import evaluate
from fmrl.deep.evaluation import BothProtocols, Evaluation
from fmrl.deep.losses import cross_entropy, squared_error, summed_cross_entropy
from fmrl.deep.maml import MAML
from fmrl.deep.meta_level import LongRun
from fmrl.deep.networks import Layout, SameConv2d, mini_imagenet_net, omniglot_net
from fmrl.deep.ranks import Ranks
from fmrl.deep.tasks import Arrays, FewShot, Pool
from fmrl.deep.trainer import MetaTrainer, Progress, TensorBoard
from fmrl.deep.within import SGD, Adam, DoG, Fading

__all__ = [
    "MAML", "SGD", "Adam", "AdaptiveOGD", "Arrays", "AverageDeviation", "BothProtocols", "DoG",
    "Doubling", "Evaluation", "FLIBatch", "FLIOnline", "Fading", "FewShot", "FollowLeader",
    "Interpolate", "Isotropic", "Known", "Layout", "LongRun", "MetaSGD", "MetaTrainer", "Observed",
    "PerCoordinate", "Pool", "Progress", "Ranks", "SameConv2d", "TensorBoard", "adapt",
    "cross_entropy", "evaluate", "gradient_norm", "load", "mini_imagenet_net", "omniglot_net",
    "save", "squared_error", "summed_cross_entropy",
]  # fmt: skip

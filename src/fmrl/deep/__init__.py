"""Meta-learning of networks: train any nn.Module across tasks, adapt it, evaluate it. Needs the extra ``fmrl[deep]``."""

from fmrl.core.meta import AdaptiveOGD, FollowLeader, Interpolate
from fmrl.core.similarity import AverageDeviation, Doubling, Known
from fmrl.core.update import FLIBatch, FLIOnline
from fmrl.deep.checkpoint import load, save
from fmrl.deep.evaluate import Evaluation, adapt, evaluate, gradient_norm
from fmrl.deep.inner import cross_entropy, squared_error, summed_cross_entropy
from fmrl.deep.layout import Layout
from fmrl.deep.models import SameConv2d, mini_imagenet_net, omniglot_net
from fmrl.deep.ranks import Ranks
from fmrl.deep.state import LongRun
from fmrl.deep.tasks import Arrays, FewShot, Pool
from fmrl.deep.trainer import MetaTrainer
from fmrl.deep.within import SGD, Adam

__all__ = [
    "SGD",
    "Adam",
    "AdaptiveOGD",
    "Arrays",
    "AverageDeviation",
    "Doubling",
    "Evaluation",
    "FLIBatch",
    "FLIOnline",
    "FewShot",
    "FollowLeader",
    "Interpolate",
    "Known",
    "Layout",
    "LongRun",
    "MetaTrainer",
    "Pool",
    "Ranks",
    "SameConv2d",
    "adapt",
    "cross_entropy",
    "evaluate",
    "gradient_norm",
    "load",
    "mini_imagenet_net",
    "omniglot_net",
    "save",
    "squared_error",
    "summed_cross_entropy",
]

"""Estimators: a prior over the models of many small tasks, with scikit-learn's manners."""

from fmrl.errors import InputWarning
from fmrl.estimators.few_shot import FewShotScorer, FewShotSplit, adapt, few_shot_score
from fmrl.estimators.prior import Prior
from fmrl.estimators.public import MetaClassifier, MetaRegressor
from fmrl.estimators.stream import TaskStream
from fmrl.estimators.task_model import TaskClassifier, TaskRegressor

__all__ = [
    "FewShotScorer", "FewShotSplit", "InputWarning", "MetaClassifier", "MetaRegressor", "Prior",
    "TaskClassifier", "TaskRegressor", "TaskStream", "adapt", "few_shot_score",
]  # fmt: skip

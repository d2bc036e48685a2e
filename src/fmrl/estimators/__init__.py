"""Estimators: Algorithm 2 for people with a table of many small tasks, with scikit-learn's
manners.
"""

from fmrl.errors import InputWarning
from fmrl.estimators.estimators import MetaClassifier, MetaRegressor
from fmrl.estimators.few_shot import FewShotScorer, FewShotSplit, adapt, few_shot_score
from fmrl.estimators.task_models import Prior, TaskClassifier, TaskRegressor

__all__ = [
    "FewShotScorer", "FewShotSplit", "InputWarning", "MetaClassifier", "MetaRegressor", "Prior",
    "TaskClassifier", "TaskRegressor", "adapt", "few_shot_score",
]  # fmt: skip

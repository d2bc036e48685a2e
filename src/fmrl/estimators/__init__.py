"""Estimators: Algorithm 2 for people with a table of many small tasks, with scikit-learn's
manners.
"""

from fmrl.estimators.estimators import MetaClassifier, MetaRegressor
from fmrl.estimators.task_models import Prior, TaskClassifier, TaskRegressor

__all__ = ["MetaClassifier", "MetaRegressor", "Prior", "TaskClassifier", "TaskRegressor"]

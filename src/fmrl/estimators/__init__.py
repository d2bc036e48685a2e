"""Estimators: Algorithm 2 for people with a table of many small tasks, with scikit-learn's manners."""

from fmrl.estimators.linear import Prior, TaskClassifier, TaskRegressor
from fmrl.estimators.meta import MetaClassifier, MetaRegressor

__all__ = ["MetaClassifier", "MetaRegressor", "Prior", "TaskClassifier", "TaskRegressor"]

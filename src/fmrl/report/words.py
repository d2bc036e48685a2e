"""The words for scores, families and methods: one place for the page and the command line."""

from __future__ import annotations

METRICS = {"log_loss": "log-loss", "r2": "R²", "accuracy": "accuracy"}
BASELINES = {"per-task": "fitting each task alone", "pooled": "one pooled model"}
CHECKS = {
    "accuracy": "accuracy",
    "calibration": "calibration error",
    "coverage": "90\xa0% intervals cover",
    "width": "90\xa0% intervals, width",
}
FAMILIES = {
    "none": "not at all",
    "intercept": "by a constant",
    "alike": "in every column alike",
    "columns": "in every column by its own deviation",
    "full": "in any direction",
    "apart alike": "in every column alike, without a mean",
    "apart full": "in any direction, without a mean",
}


def called(against: str) -> str:
    """A baseline in words.

    >>> called("pooled"), called("trees")
    ('one pooled model', 'trees')
    """
    return BASELINES.get(against, str(against))


def family(name: str) -> str:
    """In which way tasks differ, in words.

    >>> family("intercept"), family("common full")
    ('by a constant', 'in any direction, around a common part that is not linear')
    >>> family("alike, 3 centres")
    'in every column alike, around 3 centres'
    """
    plain, _, centres = name.removeprefix("common ").partition(", ")
    said = FAMILIES.get(plain, plain) + (f", around {centres}" if centres else "")
    common = ", around a common part that is not linear"
    return said + common * name.startswith("common ")

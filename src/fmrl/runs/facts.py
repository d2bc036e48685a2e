"""The facts of a run, as the report page reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from fmrl import report
from fmrl.runs import folder
from fmrl.runs.cite import cite
from fmrl.runs.run import Run
from fmrl.theory.certificate import certify


def facts(run: Run) -> report.Facts:
    """Everything that is known of a run."""
    record, history, options = run.record, run.history, run.settings.options
    names = pl.read_parquet(run.file(folder.TASKS))["task"].to_list()
    classes = record["classes"]
    missing: dict[str, Any] = {}
    found: dict[str, Any] = {
        "title": f"{options.target} by {options.task}",
        "data": {
            **{key: record[key] for key in ("kind", "tasks", "heldout_tasks", "rows", "rows_per_task")},
            "features": len(record["features"]),
            "source": ", ".join(d["name"] for d in record["data"][:3]) + (" …" if len(record["data"]) > 3 else ""),
            "task_column": options.task,
            "target_column": options.target,
        },
        "learned": _learned(run),
        "curves": report.curves(history, names),
        "certificate": report.certificate_facts(certify(history, loss=run.settings.loss)),
        "run": {
            "composition": record["composition"],
            "configuration": record["configuration"],
            "versions": record["versions"],
            "data": record["data"],
            "command": record["command"],
            "seconds": record["seconds"],
        },
        "bibtex": "\n\n".join(entry["bibtex"] for entry in cite(run)),
        "missing": missing,
    }
    if classes is not None:
        found["data"]["classes"] = [str(c) for c in classes]
    if history.keep == "scalars":
        missing["similarity"] = {"why": "The run was too large to keep the optima of its tasks."}
    else:
        found["similarity"] = report.similarity_map(history.optimum, names, phi=history.state.phi)
    if record["heldout"]["methods"]:
        found["heldout"] = record["heldout"]
    else:
        missing["heldout"] = {"why": "The held-out tasks have too few rows to learn from and to score on."}
        if not record["heldout_tasks"]:
            again = replace(options, holdout=0.2).command("RUN")
            missing["heldout"] = {"why": "No task was held out.", "command": again}
    return found  # type: ignore[return-value]


def _learned(run: Run) -> Any:
    """phi's coefficients, of the columns as they were encoded: scaled, they can be compared with
    each other.
    """
    prior = run.prior
    coef, _ = run.start
    note = {
        "standard": "per standard deviation of a feature",
        "range": "per range of a feature",
        "none": "per unit of a feature",
    }
    outputs = None if len(coef) == 1 else [str(c) for c in prior.classes]  # type: ignore[union-attr]
    return report.coefficients(coef, run.encoder.names, outputs, note=note[run.encoder.policy.scale])

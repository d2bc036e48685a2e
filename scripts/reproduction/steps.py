"""docs/steps.md, written from the record of `fmrl reproduce steps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fmrl.reproduce.steps.claims import INDUCTIVE, TRANSDUCTIVE, judge
from fmrl.reproduce.steps.claims import table as accuracies
from fmrl.reproduce.steps.methods import (
    ADAM,
    ARUBA,
    DISTANCE,
    ENVIRONMENTS,
    FIXED,
    META,
    ONE,
    PLUS,
    RADIUS,
    THEORY,
    Plan,
)  # fmt: skip
from reproduction.markdown import YES, read_record, table

COMMAND = "fmrl reproduce steps"
HEAD = f"""# Do networks gain from learned steps?

This page is written by `python scripts/write_reproduction.py` from the records in `results/steps`,
which `{COMMAND}` leaves. Edit neither by hand."""
FIRST = ", ".join(f"{e.step} on {e.name}" for e in ENVIRONMENTS)
STEPS = {
    ADAM: "Adam with the authors' step; its second moments pass from task to task",
    FIXED: f"one fixed step of plain gradients ({FIRST})",
    ONE: "`Isotropic`: how far tasks ended from phi over the gradients they met",
    ARUBA: "`PerCoordinate`: the same for every parameter",
    PLUS: "ARUBA's step, which falls on a test task with that task's own gradients (`Fading`); its "
    "weight is searched on tasks of training classes",
    META: "`MetaSGD`: a step for every parameter by gradient descent on the losses met inside "
    "tasks. The printed Meta-SGD differentiates through the steps, on other samples",
    THEORY: "the paper's step: `Doubling` guesses D, the gradients that were met stand for G²m",
    DISTANCE: "`DoG` with the radius that `AverageDeviation` learns, at first from "
    f"D = {RADIUS:g}; no step is chosen",
}
TRIED = f"""## What is tried

All are Reptile: the meta-step falls from 1 to 0, a task is its last iterate, and 5-way and 20-way
Omniglot and 5-way Tiny ImageNet-100 have the sizes of the authors' settings
([reproduction](reproduction.md)). They differ in the inner step.

{table(["method", "inner step"], STEPS.items())}

**learned** says what a test task is given: *both*, the learned start with the learned step;
*start*, the learned start with the first step; *step*, the random start with the learned step;
*neither*. Of Adam the step is its second moments. The first step is the same for all but Adam and
DoG, so Reptile's *neither* is that of all of them."""
CAVEAT = """The numbers in brackets are printed in ARUBA's paper (transductive; we have not checked
them). Of Mini-ImageNet only the order is judged, since ours are of Tiny ImageNet-100. A method is
*ahead* when its mean over seeds is, by more than two standard errors of the difference, and so is
every seed; methods are *level* within 1.5 points or two standard errors. Intervals are 95 % over
test tasks, seeds averaged; how far seeds differ is in the record."""


def document(folder: Path) -> str:
    """The page in Markdown; without a record, that there is none."""
    if not (Path(folder) / "results.json").exists():
        none = f"## Not run\n\n`{COMMAND}` runs it; no record of a run exists, and none is claimed."
        return "\n\n".join([HEAD, TRIED, none]) + "\n"
    found = read_record(Path(folder))
    rows, results = found["results"]["rows"], found["results"]
    settings = list(dict.fromkeys(r["setting"] for r in rows))
    parts = [HEAD, run(results, found["record"]), TRIED]
    for protocol in (TRANSDUCTIVE, INDUCTIVE):
        lines = accuracies(rows, protocol)
        parts += [f"## {protocol.capitalize()}", table(["method", "learned", *settings], lines)]
    parts += ["## Verdicts", CAVEAT, verdicts(rows)]
    return "\n\n".join(parts) + "\n"


def run(results: dict[str, Any], record: dict[str, Any]) -> str:
    """What was run, where and for how long."""
    plan, usual = Plan(**results["plan"]), Plan()
    words = [COMMAND]
    for name in ("iterations", "tasks", "seeds"):
        if (value := getattr(plan, name)) != getattr(usual, name):
            words.append(f"--{name} {value}")
    lengths = ", ".join(f"{plan.length(e.on):,} on {e.name}" for e in ENVIRONMENTS)
    device = record["configuration"]["device"]
    told = [
        f"`{' '.join(words)}` on one {device}: {plan.seeds} seeds, meta-iterations {lengths} "
        f"(the authors of the paper ran 20,000), {plan.tasks} test tasks a seed, "
        f"{sum(results['seconds'].values()):,.0f} seconds."
    ]
    if not record["finished"]:
        told.append("**It was stopped before its end; what is missing is left out.**")
    weights = ", ".join(f"{w:g} (`{name}`)" for name, w in results["weights"].items())
    told.append(f"Weights chosen for ARUBA++: {weights}.")
    for name, methods in results["failed"].items():
        told.append(f"On {name} the loss became infinite with {', '.join(methods)}.")
    return " ".join(told)


def verdicts(rows: list[dict[str, Any]]) -> str:
    """All verdicts, those on the printed table first."""
    found = sorted(judge(rows), key=lambda v: v.source != "printed")
    decided = [v.passed for v in found if v.passed is not None]
    lines = [[v.figure, v.source, v.claim, YES[v.passed], v.numbers] for v in found]
    lead = f"{sum(decided)} of {len(decided)} claims hold."
    return f"{lead}\n\n" + table(["setting", "source", "claim", "holds", "numbers"], lines)

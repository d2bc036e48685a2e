"""``fmrl adapt`` and ``fmrl predict``: a run used on new tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fmrl.cli.guard import Json, RunFolder, bar, say
from fmrl.errors import FMRLError, warn

New = typer.Argument(
    help="Table of new tasks with a few labelled rows each; columns as in training."
)
ModelsFile = typer.Option(
    help=".safetensors or .json file of models (default: adapted.safetensors in RUN)."
)
Rows = typer.Argument(help="Table of rows to predict; the target column need not be there.")
Predictions = typer.Option(help="File of predictions: .csv, .tsv, .parquet or .arrow.")
Adapted = typer.Option(
    help="Models that fmrl adapt wrote (default: adapted.safetensors in RUN, if it is there)."
)
ALONE, ALL = "the new model is of the rows given now alone", "give all rows of a task at once"


def adapt_command(
    run: RunFolder,
    table: Annotated[str, New],
    out: Annotated[Path | None, ModelsFile] = None,
    as_json: Json = False,
) -> None:
    """Adapt to new tasks: one linear model per task of a table, from its few rows.

    The models are written with the names and in the units of the table's columns.
    Those in RUN's own adapted.safetensors, the default, are used by fmrl predict
    without being named; adapting again adds to them, and replaces a task's model by
    its new one. A model is of the rows of TABLE alone, also where the task was seen
    in training or adapted to before: give all its rows at once.

    Examples:

        fmrl adapt run new-shops.csv

        fmrl adapt run new-shops.csv --out models.json
    """
    from fmrl.report.html import plural
    from fmrl.runs.folder import ADAPTED, MODELS, Run
    from fmrl.runs.models import Models, adapt, rows_seen

    found, kept = Run.load(run), 0
    path = run / ADAPTED if out is None else out
    if path.resolve().parent == run.resolve() and path.name in found.record["files"]:
        raise FMRLError(f"{path} belongs to the run", fix="name another file, or leave --out away")
    with bar("tasks") as show:
        models = adapt(found, table, lambda done: show("adapting", done, None))
    tasks, rows = rows_seen(found, models)
    if tasks:
        less = f"without the {plural(rows, 'row')} of training"
        back = f"delete {path}" if out is None else "leave --adapted away"
        back = f", or {back}: fmrl predict then uses the model of training"
        back *= MODELS in found.record["files"]
        warn(f"{plural(tasks, 'task')} seen in training: {ALONE}, {less}; {ALL}{back}")
    if out is None and path.exists():
        old = Models.load(path)
        if old.run == models.run:
            both = models.over(old)
            kept = len(both.ids) - len(models.ids)
            if again := len(old.ids) - kept:
                less = "without those of the model that it replaces"
                warn(f"{plural(again, 'task')} adapted to before: {ALONE}, {less}; {ALL}")
            models = both
    models.save(path)
    if as_json:
        about = {"tasks": len(models.ids), "features": models.features, "classes": models.classes}
        typer.echo(json.dumps(about | {"out": str(path)}))
    else:
        before = f", {kept:,} of them from before" if kept else ""
        say(f"models of {len(models.ids):,} tasks in {path}{before}")


def predict_command(
    run: RunFolder,
    table: Annotated[str, Rows],
    out: Annotated[Path, Predictions],
    adapted: Annotated[Path | None, Adapted] = None,
    as_json: Json = False,
) -> None:
    """Predict every row of a table, in its order.

    A row is predicted by the model of its task: one that was adapted, else one
    seen in training, else the start, what is known before any row of a task. The
    column "model" says which: adapted, seen or start. Classes come with their
    probabilities, p_…, numbers with an interval that covers 90 % of the rows of new
    tasks, low and high.

    Examples:

        fmrl predict run visits.csv --out predictions.csv

        fmrl predict run new-visits.csv --adapted models.json --out predictions.parquet
    """
    from fmrl.runs.folder import ADAPTED, Run
    from fmrl.runs.models import Models
    from fmrl.runs.predictions import predict

    found = Run.load(run)
    path = run / ADAPTED if adapted is None else adapted
    models = Models.load(path) if adapted is not None or path.exists() else None
    with bar("rows") as show:
        counts = predict(found, table, out, models, lambda done: show("predicting", done, None))
    total = sum(counts.values())
    if as_json:
        typer.echo(json.dumps({"rows": total, "by": counts, "out": str(out)}))
    else:
        names = {"start": "the start", "seen": "models seen", "adapted": "models adapted"}
        parts = ", ".join(f"{n:,} by {names[kind]}" for kind, n in counts.items() if n)
        say(f"{total:,} rows in {out}: {parts}")

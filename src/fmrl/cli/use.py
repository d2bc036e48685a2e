"""``fmrl adapt``, ``fmrl predict``, ``fmrl report`` and ``fmrl cite``: what to do with a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fmrl.cli.guard import bar, guarded
from fmrl.errors import FMRLError

RunFolder = Annotated[Path, typer.Argument(help="Folder that fmrl train made.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _say(text: str) -> None:
    Console().print(escape(text), highlight=False, soft_wrap=True)


def adapt_command(
    run: RunFolder,
    table: Annotated[
        str,
        typer.Argument(
            help="Table of new tasks with a few labelled rows each; columns as in training."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help=".safetensors or .json file of models (default: adapted.safetensors in RUN)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Adapt to new tasks: one linear model per task of a table, from its few rows.

    The models are written with the names and in the units of the table's columns.
    Those in RUN's own adapted.safetensors, the default, are used by fmrl predict
    without being named; adapting again adds to them, and replaces a task's model by
    its new one.

    Examples:

        fmrl adapt run new-shops.csv

        fmrl adapt run new-shops.csv --out models.json
    """
    from fmrl.runs import Run, folder
    from fmrl.runs.models import Models
    from fmrl.runs.predict import adapt

    with guarded(), bar("tasks") as show:
        done = 0

        def progress(n: int) -> None:
            nonlocal done
            done += n
            show("adapting", done, None)

        found = Run.load(run)
        path = run / folder.ADAPTED if out is None else out
        if path.resolve().parent == run.resolve() and path.name in found.record["files"]:
            raise FMRLError(
                f"{path} belongs to the run", fix="name another file, or leave --out away"
            )
        models = adapt(found, table, progress)
        kept = 0
        if out is None and path.exists():
            old = Models.load(path)
            if old.run == models.run:
                both = models.over(old)
                kept, models = len(both.ids) - len(models.ids), both
        models.save(path)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "tasks": len(models.ids),
                    "features": models.features,
                    "classes": models.classes,
                    "out": str(path),
                }
            )
        )
    else:
        _say(
            f"models of {len(models.ids):,} tasks in {path}"
            + (f", {kept:,} of them from before" if kept else "")
        )


def predict_command(
    run: RunFolder,
    table: Annotated[
        str, typer.Argument(help="Table of rows to predict; the target column need not be there.")
    ],
    out: Annotated[Path, typer.Option(help="File of predictions: .csv, .tsv, .parquet or .arrow.")],
    adapted: Annotated[
        Path | None,
        typer.Option(
            help="Models that fmrl adapt wrote (default: adapted.safetensors in RUN, if it is there)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict every row of a table, in its order.

    A row is predicted by the model of its task: one that was adapted, else one
    seen in training, else the start, what is known before any row of a task. The
    column "model" says which: adapted, seen or start. Classes come with their probabilities, p_….

    Examples:

        fmrl predict run visits.csv --out predictions.csv

        fmrl predict run new-visits.csv --adapted models.json --out predictions.parquet
    """
    from fmrl.runs import Run, folder
    from fmrl.runs.models import Models
    from fmrl.runs.predict import predict

    with guarded(), bar("rows") as show:
        done = 0

        def progress(n: int) -> None:
            nonlocal done
            done += n
            show("predicting", done, None)

        found = Run.load(run)
        path = run / folder.ADAPTED if adapted is None else adapted
        models = Models.load(path) if adapted is not None or path.exists() else None
        counts = predict(found, table, out, models, progress)
    if as_json:
        typer.echo(json.dumps({"rows": sum(counts.values()), "by": counts, "out": str(out)}))
    else:
        parts = ", ".join(
            f"{n:,} by {'the start' if kind == 'start' else 'models ' + kind}"
            for kind, n in counts.items()
            if n
        )
        _say(f"{sum(counts.values()):,} rows in {out}: {parts}")


def report_command(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="The page (default: report.html in RUN).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a run.

    It says whether meta-learning helped, what was learned, what is proved, and how
    to repeat it. The page needs nothing else and opens offline. --json prints the
    facts it shows.

    Examples:

        fmrl report run

        fmrl report run --out shops.html
    """
    from fmrl import report
    from fmrl.records import plain
    from fmrl.runs import Run
    from fmrl.runs.facts import facts

    with guarded():
        found = facts(Run.load(run))
        path = report.write(found, run / "report.html" if out is None else out)
    if as_json:
        typer.echo(json.dumps(plain(found), ensure_ascii=False))
    else:
        _say(str(path))


def cite_command(run: RunFolder, as_json: Json = False) -> None:
    """Print the references of exactly what a run used, as BibTeX: the paper, and who invented the
    parts.

    Example:

        fmrl cite run > references.bib
    """
    from fmrl.runs import Run
    from fmrl.runs.cite import cite

    with guarded():
        found = cite(Run.load(run))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(f"% {entry['for']}\n{entry['bibtex']}" for entry in found))

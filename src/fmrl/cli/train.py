"""``fmrl train``: from a table to a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fmrl.cli.guard import Stop, bar, guarded


def train_command(
    table: Annotated[
        str,
        typer.Argument(
            help="CSV, TSV, Parquet or Arrow file, or a quoted glob of several; for Ray a folder, too."
        ),
    ],
    task: Annotated[
        str, typer.Option(help="Column that names the task of a row: a user, a shop, a sensor.")
    ],
    target: Annotated[str, typer.Option(help="Column to predict: class names, or numbers.")],
    out: Annotated[Path, typer.Option(help="Folder of the run, to be made.")],
    features: Annotated[
        list[str] | None,
        typer.Option(help="Column to learn from; several allowed (default: all others)."),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(help="Column that sorts the rows of a task, e.g. a date; several allowed."),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="classification, regression, or auto: told from the target.")
    ] = "auto",
    holdout: Annotated[
        float,
        typer.Option(help="Share of whole tasks held out to see whether it helps on new ones."),
    ] = 0.1,
    evaluate: Annotated[int, typer.Option(help="Held-out tasks to score, at most.")] = 100,
    checkpoint_every: Annotated[
        int, typer.Option(help="Save after this many tasks (rounded up to a multiple of 1,024).")
    ] = 16_384,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
    keep_models: Annotated[
        bool | None,
        typer.Option(
            help="Store the models of the tasks trained on, for predict (default: up to 10 million numbers)."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of every random choice; which tasks are held out does not depend on it."
        ),
    ] = 0,
    categorical: Annotated[str, typer.Option(help="Text columns: onehot or error.")] = "onehot",
    missing: Annotated[
        str, typer.Option(help="Missing values: indicator (mean and a flag), mean, drop or error.")
    ] = "indicator",
    unknown: Annotated[
        str, typer.Option(help="A level no training task had: zero or error.")
    ] = "zero",
    scale: Annotated[
        str, typer.Option(help="Numbers: standard (mean 0, deviation 1), range or none.")
    ] = "standard",
    levels: Annotated[int, typer.Option(help="Most levels a text column may have.")] = 256,
    apart: Annotated[
        str,
        typer.Option(
            help="Rows of a task that lie apart: gather or error (faster, for sorted files)."
        ),
    ] = "gather",
    one_class: Annotated[
        str, typer.Option(help="A task with one class only: keep, drop or error.")
    ] = "keep",
    rows: Annotated[
        int, typer.Option(help="Rows held in memory at a time when gathering.")
    ] = 1_000_000,
    within: Annotated[
        str | None, typer.Option(help="Learner inside a task: OMD(), OGD(), FTRL().")
    ] = None,
    update: Annotated[
        str | None, typer.Option(help="What a task contributes: FAL(), FLIOnline(), FLIBatch().")
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option(help="How phi moves: FollowLeader(), AdaptiveOGD(), LastUpdate(), …"),
    ] = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            help='How D is guessed: AverageDeviation(), "Doubling(0.1, 1.1)", "Known(0.5)".'
        ),
    ] = None,
    radius: Annotated[
        float | None, typer.Option(help="Of the ball of models (default: from the data).")
    ] = None,
    intercept: Annotated[bool, typer.Option(help="Whether models have an intercept.")] = True,
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray: play the tasks on a Ray cluster (Parquet files sorted by task)."
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the Ray cluster (default: RAY_ADDRESS, or one started here for the run)."
        ),
    ] = None,
    meta_batch: Annotated[
        int,
        typer.Option(
            help="With --engine ray: tasks that share one phi, for FLI updates; 1 is Algorithm 2."
        ),
    ] = 1,
    skip_bad_tasks: Annotated[
        bool,
        typer.Option(
            "--skip-bad-tasks",
            help="With --engine ray: leave out what cannot be read or used, and say so.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record instead of a summary.")
    ] = False,
) -> None:
    """Learn across the tasks of a table, and leave a run in a folder.

    A task is all rows with one value of a column: a user, a shop, a sensor.
    Whole tasks are held out, chosen by a hash of their name; on them the run is
    compared with fitting each task alone and with one pooled model. The folder
    holds the model, the history of every task, the encoding of the columns, the
    scores, and a record of how to repeat it all.

    The table is streamed: memory does not grow with its rows, and with its tasks
    only by a line each (and by their optima, up to ten million numbers).

    Defaults suit a raw table. Text becomes one column a level, numbers are scaled,
    a missing value becomes the mean and a flag; all of it is learned from the
    training tasks. The first 1,024 tasks decide the scale of the models and how
    far a new task may go.

    Killed or interrupted, the same command with --resume goes on from the last
    checkpoint, to the same model bit for bit.

    Exit codes: 0 done; 2 something to correct; 130 stopped by Ctrl-C, with
    everything so far saved.

    Examples:

        fmrl train visits.csv --task shop --target sold --out run

        fmrl train visits.csv --task shop --target amount --kind regression --order day --holdout
        0.2 --out amounts

        fmrl train 'visits-*.parquet' --task shop --target sold --similarity "Doubling(0.1, 1.1)"
        --out doubling --json

        fmrl train visits.csv --task shop --target sold --out run --resume

        fmrl train visits/ --task shop --target sold --engine ray --address auto --out /shared/run
    """
    from fmrl.runs import Options, train

    if address is not None and engine != "ray":
        raise typer.BadParameter(
            "is of a Ray cluster: give --engine ray with it", param_hint="--address"
        )
    with (
        guarded(),
        Stop().listening() as stop,
        _cluster() if engine == "ray" else _here() as (show, view),
    ):
        names = (
            "table",
            "task",
            "target",
            "kind",
            "categorical",
            "missing",
            "unknown",
            "scale",
            "levels",
            "apart",
            "one_class",
            "rows",
        )
        names = (
            *names,
            "holdout",
            "seed",
            "within",
            "update",
            "meta",
            "similarity",
            "radius",
            "intercept",
        )
        names = (*names, "engine", "meta_batch", "skip_bad_tasks")
        given = locals()
        options = Options(
            **{name: given[name] for name in names},
            features=tuple(features or ()),
            order=tuple(order or ()),
        )

        def progress(what: str, done: int, total: int) -> None:
            stop.waits = what == "playing"
            show(what, done, total)

        record = train(
            options,
            out,
            checkpoint_every=checkpoint_every,
            resume=resume,
            keep_models=keep_models,
            evaluate_tasks=evaluate,
            progress=progress,
            stop=stop,
            address=address,
            view=view,
        )
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        _summary(record, out)


@contextmanager
def _here() -> Iterator[tuple]:
    with bar("tasks") as show:
        yield show, lambda ledger: None


@contextmanager
def _cluster() -> Iterator[tuple]:
    """The table of workers in place of the bar; nothing where stderr is no terminal."""
    from fmrl.cluster import watch

    if not sys.stderr.isatty():
        yield (lambda what, done, total: None), lambda ledger: None
        return
    with watch(Console(stderr=True)) as view:
        yield (lambda what, done, total: None), view


def _summary(record: dict[str, Any], out: Path) -> None:
    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    classes = record["classes"]
    kind = record["kind"] if classes is None else f"{record['kind']} of {len(classes):,} classes"
    say(
        f"[bold]{record['tasks']:,}[/] tasks, {record['rows']:,} rows, {len(record['features'])} features, {kind}"
    )
    if (
        classes is not None
        and len(classes) > 20
        and all(isinstance(c, (int, float)) for c in classes)
    ):
        say(
            "the target is whole numbers: if it is a quantity, train with [bold]--kind regression[/]"
        )
    if (engine := record.get("engine", {})).get("name") == "ray":
        batch = "" if engine["meta_batch"] == 1 else f", meta-batches of {engine['meta_batch']:,}"
        say(f"played on Ray: {engine['nodes']:,} nodes, {engine['workers']:,} workers{batch}")
        for place in record["skipped"][:10]:
            say(f"[yellow]skipped[/] {escape(place['where'])}: {escape(place['what'])}")
        if len(record["skipped"]) > 10:
            say(f"… and {len(record['skipped']) - 10:,} more places, in the record")
    say(f"TAR {record['tar'][1]:.4g} (bound {record['bound']:.4g})")
    heldout = record["heldout"]
    if heldout["methods"]:
        what = "accuracy" if heldout["metric"] == "accuracy" else "R²"
        say(f"{what} on {heldout['tasks']} held-out tasks, by shots ({heldout['protocol']}):")
        shown = Table()
        shown.add_column("")
        for shots in heldout["shots"]:
            shown.add_column(str(shots), justify="right")
        for method in heldout["methods"]:
            shown.add_row(
                method["name"], *("–" if m is None else f"{m:.3f}" for m in method["mean"])
            )
        console.print(shown)
    else:
        say(
            "no held-out task to compare on"
            if not record["heldout_tasks"]
            else "the held-out tasks have too few rows to compare on"
        )
    say(
        f"{escape(str(out))}: next, [bold]fmrl report {escape(str(out))}[/] draws it, [bold]fmrl adapt[/] and [bold]fmrl predict[/] use it"
    )

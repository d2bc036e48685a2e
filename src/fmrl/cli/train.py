"""``fmrl train``: from a table to a run."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fmrl.cli.guard import Json, Stop, bar
from fmrl.errors import FMRLError
from fmrl.runs import Options

FEW = 30  # held-out tasks, below which an unclear verdict may be for want of tasks


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of `Options`, which it gets as one value."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    kinds, asked = get_type_hints(Options), []
    for f in fields(Options):
        flags = [f"--{f.name.replace('_', '-')}"] if f.default is False else []
        about = {"help": f.metadata["help"]}
        info = typer.Argument(**about) if f.name == "table" else typer.Option(*flags, **about)
        kind = Annotated[list[str] if f.default == () else kinds[f.name], info]
        default = Parameter.empty if f.default is MISSING else f.default
        asked.append(Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    names = [p.name for p in asked]

    def called(**given: Any) -> None:
        values = {name: given.pop(name) for name in names}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        command(Options(**values), **given)

    parameters = [*asked, *(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__ = command.__doc__
    return called


@_with_options
def train_command(
    options: Options,
    out: Annotated[Path, typer.Option(help="Folder of the run, to be made.")],
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
            help="Store the models of the tasks trained on, for predict "
            "(default: up to 10 million numbers)."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the Ray cluster (default: RAY_ADDRESS, or one started here for the run)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn across the tasks of a table, and leave a run in a folder.

    A task is all rows with one value of a column: a user, a shop, a sensor.
    Whole tasks are held out, chosen by a hash of their name; on them the run is
    compared with fitting each task alone and with one pooled model, by log-loss or
    R² after 0, 1, 2, 4, … rows of a new task. The folder
    holds the model, the history of every task, the encoding of the columns, the
    scores, and a record of how to repeat it all.

    The table is streamed: memory does not grow with its rows, and with its tasks
    only by a line each (and by their optima, up to ten million numbers).

    Defaults suit a raw table. Text becomes one column a level, numbers are scaled,
    a missing value becomes the mean and a flag; all of it is learned from the
    training tasks. The first 1,024 tasks decide the scale of the models; how
    far a new task may go is learned from tasks spread over all.

    Killed or interrupted, the same command with --resume goes on from the last
    checkpoint, to the same model bit for bit.

    Exit codes: 0 done; 2 something to correct; 130 stopped by Ctrl-C, with
    everything so far saved.

    Examples:

        fmrl train visits.csv --task shop --target sold --out run

        fmrl train visits.csv --task shop --target amount --order day --seed 7 --out amounts

        fmrl train 'visits-*.parquet' --task shop --target sold --similarity "Known(1)" --out known

        fmrl train visits.csv --task shop --target sold --out run --resume

        fmrl train visits/ --task shop --target sold --engine ray --address auto --out /shared/run
    """

    from fmrl.runs import train

    ray = options.engine == "ray"
    if address is not None and not ray:
        raise FMRLError("--address is of a Ray cluster", fix="give --engine ray with it")
    with Stop().listening() as stop, _watched(ray) as (show, view):

        def progress(what: str, done: int, total: int | None) -> None:
            stop.waits = what == "playing"
            show(what, done, total)

        given = {"checkpoint_every": checkpoint_every, "evaluate_tasks": evaluate}
        given |= {"resume": resume, "keep_models": keep_models, "address": address, "view": view}
        record = train(options, out, progress=progress, stop=stop, **given)
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        _summary(record, out, options.holdout)


@contextmanager
def _watched(ray: bool) -> Iterator[tuple[Callable, Callable]]:
    """What shows the progress of tasks, and of a cluster: its table of workers replaces the bar,
    and nothing is shown where stderr is no terminal.
    """

    def nothing(*_: Any) -> None:
        pass

    if not ray:
        with bar("tasks") as show:
            yield show, nothing
    elif sys.stderr.isatty():
        from fmrl.cluster import watch

        with watch(Console(stderr=True)) as view:
            yield nothing, view
    else:
        yield nothing, nothing


def _comparison(console: Console, heldout: dict[str, Any], share: float) -> None:
    """Scores on held-out tasks, of which that share was asked for, by shots, what stands beside
    them, and the verdict.
    """
    from fmrl.report.facts import CHECKS, METRICS, hold_out
    from fmrl.report.html import score
    from fmrl.report.verdict import verdict

    what = METRICS[heldout["metric"]]
    lower = ", lower is better" if heldout["metric"] == "log_loss" else ""
    about = f"{what} on held-out tasks{lower}, by shots ({heldout['protocol']}):"
    console.print(escape(about), highlight=False, soft_wrap=True)
    shown = Table("")
    for shots in heldout["shots"]:
        shown.add_column(str(shots), justify="right")
    for method in heldout["methods"]:
        shown.add_row(method["name"], *(score(m, heldout["metric"]) for m in method["mean"]))
    shown.add_section()
    for check in heldout["checks"]:
        name = f"{CHECKS[check['what']]}, {check['method']}"
        shown.add_row(name, *(score(m, check["what"]) for m in check["mean"]))
    shown.add_section()
    shown.add_row("tasks", *map(str, heldout["methods"][0]["tasks"]))
    console.print(shown)
    answer, tone, reasons = verdict(heldout)  # type: ignore[arg-type]
    said = f"[bold]{escape(answer)}[/] {escape(reasons[0] if reasons else '')}"
    if tone in ("mixed", "unknown") and (few := heldout["tasks"]) < FEW:
        said += f" {few:,} held-out task{'s are' if few != 1 else ' is'} few for a verdict"
        option = hold_out(share)
        said += f": [bold]{option}[/] holds out more." if option else "."
    console.print(said, highlight=False, soft_wrap=True)


def _summary(record: dict[str, Any], out: Path, share: float) -> None:
    console, classes = Console(), record["classes"]

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    kind = record["kind"] + (f" of {len(classes):,} classes" if classes is not None else "")
    counts = f"{record['rows']:,} rows, {len(record['features'])} features"
    say(f"[bold]{record['tasks']:,}[/] tasks, {counts}, {kind}")
    if (engine := record.get("engine", {})).get("name") == "ray":
        batch = "" if engine["meta_batch"] == 1 else f", meta-batches of {engine['meta_batch']:,}"
        say(f"played on Ray: {engine['nodes']:,} nodes, {engine['workers']:,} workers{batch}")
        for place in record["skipped"][:10]:
            say(f"[yellow]skipped[/] {escape(place['where'])}: {escape(place['what'])}")
        if len(record["skipped"]) > 10:
            say(f"… and {len(record['skipped']) - 10:,} more places, in the record")
    if record["tasks"] == record["rows"] >= 20:
        say("[yellow]warning:[/] every row is a task of its own: is --task the id of a row?")
    run = escape(str(out))
    bound = f"at most {record['bound']:.4g} by the per-task sum"
    say(f"TAR {record['tar'][1]:.4g}, {bound}; [bold]fmrl certify {run}[/] lists every bound")
    heldout = record["heldout"]
    if heldout["methods"]:
        _comparison(console, heldout, share)
    elif record["heldout_tasks"]:
        say("the held-out tasks have too few rows to compare on")
    else:
        say("no held-out task to compare on")
    if away := record["heldout_tasks"]:
        held = "the held-out task was" if away == 1 else f"the {away:,} held-out tasks were"
        later = "rows of such a task are predicted from the common start until it is adapted to"
        say(f"{held} not learned from: {later}; [bold]--holdout 0[/] trains on all")
    use = "[bold]fmrl adapt[/] and [bold]fmrl predict[/] use it"
    say(f"{run}: next, [bold]fmrl report {run}[/] draws it, {use}")

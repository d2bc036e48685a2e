"""The root of the command line and its first command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fmrl
from fmrl.cli.bench import bench_command
from fmrl.cli.certify import certify_command
from fmrl.cli.data import app as data_app
from fmrl.cli.demonstration import SPREADS, demo
from fmrl.cli.reproduce import app as reproduce_app
from fmrl.cli.train import train_command
from fmrl.cli.use import adapt_command, cite_command, predict_command, report_command
from fmrl.records import plain

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
for name, command in {
    "train": train_command,
    "adapt": adapt_command,
    "predict": predict_command,
    "report": report_command,
    "certify": certify_command,
    "cite": cite_command,
}.items():
    app.command(name)(command)
app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    bench_command
)
app.add_typer(data_app, name="data")
app.add_typer(reproduce_app, name="reproduce")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fmrl {fmrl.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
):
    """FMRL (say "ephemeral"): gradient-based meta-learning with guarantees.

    Start with [bold]fmrl demo[/bold]: it needs no data and takes under a minute.
    """


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the record and the figures.")] = Path(
        "fmrl-demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record instead of the table.")
    ] = False,
):
    """Compare five compositions on two embedded sets.

    Sets: scikit-learn's handwritten digits in consecutive blocks of 24 (74 ten-class tasks), and a
    synthetic stream of 300 regression tasks whose optima lie [italic]spread[/italic] apart.
    Compositions: every task on its own (single-task), starting from the last optimum (strawman),
    Algorithm 2 with exact and with average-iterate updates (FAL, FLI-Batch), and one that was told
    the answer (omniscient). Printed: the task-averaged regret TAR and, in brackets, the proved
    bound on it.

    Examples:

        fmrl demo

        fmrl demo --seed 7 --out somewhere --json > record.json
    """
    console = Console(stderr=True)
    total = (74 + 300 * len(SPREADS)) * 5
    columns = (
        TextColumn("{task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        job = bar.add_task("", total=total)
        entry = demo(out, seed, lambda name, done: bar.update(job, advance=done, description=name))
    if as_json:
        typer.echo(json.dumps(plain(entry)))
        return
    table = Table(title="TAR (and the bound on it)", title_justify="left")
    table.add_column("")
    sets = list(dict.fromkeys(row["data"] for row in entry["rows"]))
    sets = [sets[0], *sets[1::2]]  # every other similarity: the figure has them all
    for name in sets:
        table.add_column(name.replace("synthetic, ", "synthetic\n"), justify="right", no_wrap=True)
    for method in dict.fromkeys(row["method"] for row in entry["rows"]):
        cells = [
            next(r for r in entry["rows"] if r["method"] == method and r["data"] == name)
            for name in sets
        ]
        table.add_row(method, *(f"{c['tar']:.3g} ({c['bound']:.3g})" for c in cells))
    Console(width=max(80, Console().width)).print(table)
    typer.echo(f"{out}: record.json and {len(entry['figures'])} figures, {entry['seconds']:.0f} s")


def run() -> None:
    """Entry point: user errors become one line and exit code 2."""
    try:
        app()
    except fmrl.FMRLError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(130)

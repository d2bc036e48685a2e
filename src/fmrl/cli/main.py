"""The root of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

import fmrl
from fmrl.cli.adapt import adapt_command, predict_command
from fmrl.cli.bench import bench_command
from fmrl.cli.certify import certify_command
from fmrl.cli.cite import cite_command
from fmrl.cli.data import app as data_app
from fmrl.cli.demo import demo_command
from fmrl.cli.guard import Guarded
from fmrl.cli.report import report_command
from fmrl.cli.reproduce import app as reproduce_app
from fmrl.cli.train import train_command

app = typer.Typer(
    cls=Guarded, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
)
app.command("train")(train_command)
app.command("adapt")(adapt_command)
app.command("predict")(predict_command)
app.command("report")(report_command)
app.command("certify")(certify_command)
app.command("cite")(cite_command)
# What follows the name of a benchmark, --help too, is the benchmark's.
for_benchmark = {"allow_extra_args": True, "allow_interspersed_args": False}
app.command("bench", context_settings=for_benchmark)(bench_command)
app.add_typer(data_app, name="data")
app.add_typer(reproduce_app, name="reproduce")
app.command("demo")(demo_command)


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


def run() -> None:
    """Entry point of the program ``fmrl``."""
    app()

"""The root of the command line, and ``fmrl bench``: the benchmarks of a source checkout."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import fmrl
from fmrl.cli import run  # noqa: F401 - where the program was entered before
from fmrl.cli.adapt import adapt_command, predict_command
from fmrl.cli.data import app as data_app
from fmrl.cli.demo import demo_command
from fmrl.cli.guard import Guarded
from fmrl.cli.networks import app as reproduce_app  # with the commands of fmrl.cli.reproduce
from fmrl.cli.report import certify_command, cite_command, playground_command, report_command
from fmrl.cli.train import train_command
from fmrl.errors import FMRLError

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def bench_command(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Which benchmark; without it they are listed.")
    ] = None,
):
    """Run a benchmark: speeds are ratios to what people use today, measured in the
    same run on this machine.

    What follows the name goes to the benchmark itself: fmrl bench convex --help
    says what it takes. Benchmarks are part of the source checkout, not of the
    installed package.

    Examples:

        fmrl bench

        fmrl bench convex --quick
    """
    if not BENCHMARKS.is_dir():
        fix = "clone the repository, and run fmrl bench from its environment"
        raise FMRLError("the benchmarks are not installed", fix=fix)
    found = {path.stem: path for path in sorted(BENCHMARKS.glob("*.py"))}
    if name is None:
        for stem, path in found.items():
            about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            first = " ".join(about.split()).partition(". ")[0].rstrip(".")
            typer.echo(f"{stem:<10} {first}")
        return
    if name not in found:
        raise FMRLError(f"there is no benchmark {name!r}", fix=f"choose one of {', '.join(found)}")
    raise typer.Exit(subprocess.call([sys.executable, str(found[name]), *context.args]))


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
app.command("playground")(playground_command)


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

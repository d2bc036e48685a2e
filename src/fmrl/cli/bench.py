"""``fmrl bench``: the benchmarks of a source checkout, by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from fmrl.errors import FMRLError

FOLDER = Path(__file__).parents[3] / "benchmarks"


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
    if not FOLDER.is_dir():
        fix = "clone the repository, and run fmrl bench from its environment"
        raise FMRLError("the benchmarks are not installed", fix=fix)
    found = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
    if name is None:
        for stem, path in found.items():
            about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            first = " ".join(about.split()).partition(". ")[0].rstrip(".")
            typer.echo(f"{stem:<10} {first}")
        return
    if name not in found:
        raise FMRLError(f"there is no benchmark {name!r}", fix=f"choose one of {', '.join(found)}")
    raise typer.Exit(subprocess.call([sys.executable, str(found[name]), *context.args]))

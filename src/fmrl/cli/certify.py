"""``fmrl certify``: what a saved run proves about itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fmrl.cli.guard import Json
from fmrl.core.checkpoint import load_history
from fmrl.core.history import History
from fmrl.core.losses import Loss
from fmrl.errors import FMRLError
from fmrl.theory.certificate import certify


def certify_command(
    run: Annotated[
        Path,
        typer.Argument(
            help="A history saved with fmrl.save_history, or a folder that holds history.npz."
        ),
    ],
    growth: Annotated[
        float | None,
        typer.Option(
            help="α of the quadratic-growth condition, for the FLI bounds (see fmrl.theory.growth)."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the figure here (.png, .svg or .pdf).")
    ] = None,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
):
    """Print the certificate of a run: measured TAR, every bound that applies, its
    terms, and the assumptions it rests on.

    A bound whose assumption is false is not printed as a guarantee.

    Examples:

        fmrl certify run

        fmrl certify fmrl-demo/digits-FAL.npz --figure certificate.svg --json > c.json
    """
    if as_json and as_markdown:
        raise FMRLError("--json and --markdown exclude each other", fix="give one of them")
    if growth is not None and not 0 < growth < math.inf:
        raise FMRLError(f"growth={growth} is out of range", fix="give a positive number")
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        what = f"{figure.name} is not a kind of figure"
        raise FMRLError(what, fix="name it .png, .svg or .pdf")
    history, loss = _history(run)
    certificate = certify(history, loss=loss, growth=growth)
    if figure is not None:
        certificate.figure(figure)
    if as_json:
        typer.echo(certificate.json())
    elif as_markdown:
        typer.echo(certificate.markdown())
    else:
        Console().print(certificate)


def _history(run: Path) -> tuple[History, Loss | None]:
    """Of a file, of a folder that fmrl train made (then the loss is known), or of any folder that
    holds history.npz.
    """
    if (run / "settings.json").is_file():
        from fmrl.runs import Run

        found = Run.load(run)
        return found.history, found.settings.loss
    return load_history(run / "history.npz" if run.is_dir() else run), None

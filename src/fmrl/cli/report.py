"""What a run says of itself: ``fmrl report`` and ``playground`` as HTML pages, ``certify`` what it
proves, ``cite`` its references.
"""

from __future__ import annotations

import json
import math
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fmrl.cli.guard import Json, RunFolder, say
from fmrl.core.checkpoint import load_history
from fmrl.core.history import History
from fmrl.errors import FMRLError
from fmrl.theory.certificate import certify


def report_command(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="The page (default: report.html in RUN).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a run.

    It says whether meta-learning helped, what was learned, what is proved, and how
    to repeat it. The page needs nothing else and opens offline. Beside it lies a
    playground with the run's tasks, to which it links. --json prints the facts.

    Examples:

        fmrl report run

        fmrl report run --out shops.html
    """
    from fmrl import playground, report
    from fmrl.records import plain
    from fmrl.runs import Run
    from fmrl.runs.facts import facts, playground_table

    loaded, out = Run.load(run), run / "report.html" if out is None else out
    found = facts(loaded)
    beside = out.with_name(f"{out.stem}-playground.html")
    if "similarity" in found:  # else the run was too large to keep its tasks' optima
        found["playground"] = beside.name
    path = report.write(found, out)
    if "playground" in found:
        playground.write(beside, table=playground_table(loaded))
    if as_json:
        typer.echo(json.dumps(plain(found), ensure_ascii=False))
    else:
        say(str(path))


def cite_command(run: RunFolder, as_json: Json = False) -> None:
    """Print the references of exactly what a run used, as BibTeX: the paper, and who
    invented the parts.

    Example:

        fmrl cite run > references.bib
    """
    from fmrl.runs import Run
    from fmrl.runs.facts import cite

    found = cite(Run.load(run))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(f"% {entry['for']}\n{entry['bibtex']}" for entry in found))


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
    certificate = certify(_history(run), growth=growth)
    if figure is not None:
        certificate.figure(figure)
    if as_json:
        typer.echo(certificate.json())
    elif as_markdown:
        typer.echo(certificate.markdown())
    else:
        Console().print(certificate)


def _history(run: Path) -> History:
    """Of a file, of a folder that fmrl train made, or of any folder that holds history.npz."""
    if (run / "settings.json").is_file():
        from fmrl.runs import Run

        return Run.load(run).history
    return load_history(run / "history.npz" if run.is_dir() else run)


def playground_command(
    run: Annotated[
        Path | None, typer.Argument(help="Folder that fmrl train made: its tasks are on the page.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The page (default: playground.html, in RUN if given).")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A network of your own, written by fmrl.deep.save.")
    ] = None,
    as_json: Json = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
) -> None:
    """Write one HTML page to play with, and open it.

    Draw a few signs and watch a network learn them from its learned start and from
    a random one. Drag tasks and watch Algorithm 2: where it starts, how far it
    guesses tasks to lie apart, its regret, and the bound on it. With the folder of a
    run its tasks are on the page too. The page needs nothing else and works offline.

    Examples:

        fmrl playground

        fmrl playground run --out shops-playground.html --no-open
    """
    from fmrl import playground

    table = None
    if run is not None:
        from fmrl.runs import Run
        from fmrl.runs.facts import playground_table

        table = playground_table(Run.load(run))
    path = out or (Path() if run is None else run) / "playground.html"
    weights = playground.read_weights(checkpoint)
    path = playground.write(path, weights, table)
    if as_json:
        facts = {"page": str(path), "bytes": path.stat().st_size, "signs": weights.ways}
        typer.echo(json.dumps(facts | {"tasks": 0 if table is None else len(table.points)}))
    else:
        say(str(path))
    if show:
        webbrowser.open(path.resolve().as_uri())

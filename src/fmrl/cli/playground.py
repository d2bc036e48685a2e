"""``fmrl playground``: a page to draw on, and to watch Algorithm 2."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fmrl.cli.guard import Json, say


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

"""``fmrl report`` and ``fmrl cite``: a run as one HTML page, and its references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fmrl.cli.guard import Json, RunFolder, say


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

"""``fmrl cite``: the references of a run."""

from __future__ import annotations

import json

import typer

from fmrl.cli.guard import Json, RunFolder


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

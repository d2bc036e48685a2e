"""A study's tables on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fmrl.reproduce.deep.claims import Claim
from fmrl.reproduce.deep.settings import FEWEST

WORDS = {True: "yes", False: "no", None: "–"}
NONE = "no run is finished yet"


def beside(rows: Sequence[dict], console: Console) -> None:
    """Our accuracies beside the authors', as `fmrl.reproduce.deep.settings.compare` gives them.

    >>> beside([], Console())
    no run is finished yet
    """
    if not rows:
        return console.print(NONE)
    table = Table("run", "seed", "ours", "inductive", "authors", "difference", "allowed", "within")
    for r in rows:
        ours = f"{100 * r['ours']:.1f} ± {196 * r['error']:.1f}"
        cells = [f"{100 * r[k]:.1f}" for k in ("inductive", "theirs", "difference", "allowed")]
        table.add_row(r["run"], str(r["seed"]), ours, *cells, WORDS[r["within"]])
    console.print(table)
    first = [r for r in rows if r["seed"] == 0 and r["within"] is not None]
    if first:
        console.print(
            f"{sum(r['within'] for r in first)} of {len(first)} runs within the allowed difference"
        )
    else:
        console.print(
            f"{rows[0]['tasks']} test tasks a run are too few tasks to judge: from {FEWEST} on runs are compared"
        )


def alone(rows: Sequence[dict], console: Console) -> None:
    """Our accuracies, as `fmrl.reproduce.deep.settings.alone` gives them: on stand-in data there is
    nothing to compare them with.
    """
    if not rows:
        return console.print(NONE)
    head = "setting", "seed", "transductive", "inductive", "meta-iterations"
    table = Table(*head, title="Tiny ImageNet-100 in the settings of Mini-ImageNet")
    for r in rows:
        cells = [
            f"{100 * r[p]:.1f} ± {196 * r[f'{p} error']:.1f}" for p in ("transductive", "inductive")
        ]
        table.add_row(r["run"], str(r["seed"]), *cells, f"{r['meta-iterations']:,}")
    console.print(table)


def verdicts(found: Sequence[Claim], console: Console, logged: str) -> None:
    """The paper's claims, where there is one that our runs decide; ``logged``: the head of the
    authors' column.
    """
    if not any(c.ours is not None for c in found):
        return console.print(
            "verdicts on the paper's claims: none, as too few runs are finished or on too few tasks to judge"
        )
    table = Table(
        "task",
        "claim",
        "ours",
        "numbers",
        logged,
        "numbers",
        title="What the paper says",
        show_lines=True,
    )
    for c in found:
        table.add_row(
            c.family, c.text, WORDS[c.ours], c.ours_numbers, WORDS[c.theirs], c.theirs_numbers
        )
    console.print(table)

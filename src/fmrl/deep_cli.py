"""``fmrl reproduce shots | iterations | deep``: the paper's deep experiments beside the authors' logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fmrl.core.errors import FMRLError

app = typer.Typer(no_args_is_help=True, help="The paper's deep experiments beside the authors' logs.")
console = Console()
Data = Annotated[Path | None, typer.Option("--data", help="Folder of local copies (default: $FMRL_DATA).")]
Out = Annotated[Path, typer.Option(help="Folder for the record and the checkpoints; the same folder resumes.")]
Seconds = Annotated[float | None, typer.Option(help="Stop after this many seconds; call again to go on.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu (default: cuda when there is one).")]
Iterations = Annotated[int | None, typer.Option(help="Meta-iterations (default: the authors' 20,000).")]


@app.command()
def shots(
    out: Out = Path("runs/shots"),
    data: Data = None,
    seconds: Seconds = None,
    device: Device = None,
    iterations: Iterations = None,
):
    """More training samples a task: the 20 Omniglot runs of that figure. About 6 minutes on an H200."""
    _study("shots", out, data, seconds, device, iterations)


@app.command("iterations")
def iterations_(
    out: Out = Path("runs/iterations"),
    data: Data = None,
    seconds: Seconds = None,
    device: Device = None,
    iterations: Iterations = None,
):
    """More inner steps a task: the 16 Omniglot runs of that figure. About 7 minutes on an H200."""
    _study("iterations", out, data, seconds, device, iterations)


@app.command()
def deep(
    out: Out = Path("runs/deep"),
    data: Data = None,
    seconds: Seconds = None,
    device: Device = None,
    iterations: Iterations = None,
):
    """All 32 Omniglot runs and two more seeds for four of them. About 11 minutes on an H200.

    Example: fmrl reproduce deep --seconds 540     (and once more to finish)
    """
    _study(None, out, data, seconds, device, iterations)


def _study(sweep, out, data, seconds, device, iterations) -> None:
    try:
        import torch
    except ImportError:
        raise FMRLError("torch is not installed", fix="pip install 'fmrl[deep]'") from None
    from fmrl.data.images import load_omniglot
    from fmrl.deep.reproduce import Plan, Study, compare, runs, split
    from fmrl.deep.tasks import Pool

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    images = load_omniglot(data=data)
    pool = Pool.of_images(images.rotated(), device)
    seeds = {"o15_i5": 3, "o55_i5": 3, "o120_i10": 3, "o520_i10": 3} if sweep is None else None
    plan = Plan(iterations=iterations)
    kept: dict = {}

    def classes(run):
        if run.seed not in kept:
            kept[run.seed] = split(run, images.names)
        return kept[run.seed]

    study = Study(runs(sweep=sweep, seeds=seeds), pool, pool, classes, out, plan, device)

    def progress(group, done, total):
        console.print(f"{group[0].ways}-way, {group[0].steps} steps, {len(group)} runs: {done:,}/{total:,}", highlight=False)

    done = study.go(seconds, progress)
    table = Table("run", "seed", "ours", "inductive", "authors", "difference", "allowed", "within")
    rows = compare(study.results)
    for r in rows:
        ours = f"{100 * r['ours']:.1f} ± {196 * r['error']:.1f}"
        cells = [f"{100 * r[k]:.1f}" for k in ("inductive", "theirs", "difference", "allowed")]
        table.add_row(r["run"], str(r["seed"]), ours, *cells, "yes" if r["within"] else "no")
    console.print(table)
    first = [r for r in rows if r["seed"] == 0]
    console.print(f"{sum(r['within'] for r in first)} of {len(first)} runs within the allowed difference; record: {study.path}")
    if not done:
        console.print("not finished: run the same command again to go on")

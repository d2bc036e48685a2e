"""``fmrl reproduce shots | iterations | deep``: the paper's deep experiments beside the authors'
logs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fmrl.errors import FMRLError


class Set(StrEnum):
    """Data the settings are run on."""

    omniglot = "omniglot"
    tiny = "tiny-imagenet-100"
    mini = "mini-imagenet"

    @property
    def settings(self) -> str:
        """Whose settings they are."""
        return "Omniglot" if self is Set.omniglot else "Mini-ImageNet"


app = typer.Typer(
    no_args_is_help=True, help="The paper's deep experiments beside the authors' logs."
)
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of local copies (default: $FMRL_DATA).")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the record and the checkpoints; the same folder resumes (default: runs/COMMAND-SET, as in "
        "runs/deep-omniglot; with --quick runs/COMMAND-SET-quick)."
    ),
]
Seconds = Annotated[
    float | None, typer.Option(min=0, help="Stop after this many seconds; call again to go on.")
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu (default: cuda when there is one).")]
Iterations = Annotated[
    int | None, typer.Option(min=1, help="Meta-iterations (default: the authors' 20,000).")
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Under a minute on two free cores: the smallest settings of every family, a few meta-iterations, 4 test tasks. Shows "
        "that it works, not what it finds; --seeds and the test tasks below do not apply.",
    ),
]
Precision = Annotated[
    str, typer.Option(help="Of the kernels on CUDA: bf16, tf32 or ieee (float32).")
]
On = Annotated[
    Set,
    typer.Option(
        "--set", help="Omniglot, or the 16 Mini-ImageNet settings on one of the other two."
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1, help="Seeds of one setting per family (default: 3 for deep on Omniglot, else 1)."
    ),
]
Every = Annotated[int, typer.Option(min=1, help="Meta-iterations between looks at the test tasks.")]
Curve = Annotated[int, typer.Option(min=2, help="Test tasks of such a look.")]
Final = Annotated[int, typer.Option(min=2, help="Test tasks at the end, transductive.")]
Inductive = Annotated[int, typer.Option(min=2, help="Test tasks at the end, inductive.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows of the tables as JSON.")]
SMALL = {"every": 10**6, "curve": 2, "final": 4, "inductive": 2}  # of --quick
EVALUATION = 5  # its inner steps a test task


def _command(name: str, sweep: str | None, help_: str) -> None:
    def command(
        out: Out = None, data: Data = None, seconds: Seconds = None, device: Device = None, iterations: Iterations = None,
        quick: Quick = False, on: On = Set.omniglot, precision: Precision = "bf16", seeds: Seeds = None, every: Every = 2000,
        curve: Curve = 200, final: Final = 1000, inductive: Inductive = 500, as_json: Json = False,
    ) -> None:  # fmt: skip
        try:
            import torch  # noqa: F401
        except ImportError:
            raise FMRLError("torch is not installed", fix="pip install 'fmrl[deep]'") from None
        from fmrl.deep.engines.fused import PRECISIONS
        from fmrl.reproduce.deep.reproduce import Plan, Study

        if precision not in PRECISIONS:
            raise FMRLError(
                f"--precision {precision} is unknown", fix=f"say {', '.join(PRECISIONS)}"
            )
        device = _device(device)
        looks = (
            SMALL
            if quick
            else {"every": every, "curve": curve, "final": final, "inductive": inductive}
        )
        plan = Plan(
            iterations=iterations or (_short(on) if quick else None), precision=precision, **looks
        )
        chosen = _chosen(on, sweep, quick, seeds)
        folder = out or Path("runs") / f"{name}-{on.value}{'-quick' if quick else ''}"
        study = Study(chosen, *_pools(on, data, device), folder, plan, device)
        aside = Console(stderr=True)
        done = _go(study, seconds, aside, quick) if study.work() else True
        _tell(study, on, sweep, done, as_json)

    command.__doc__ = help_
    app.command(name)(command)


_HOW = "\n\nSays first how long it will take. Example: `fmrl reproduce {0} --seconds 540` (and again, until it is finished)"
_command(
    "shots",
    "shots",
    "More training samples a task: the 20 Omniglot runs of that figure." + _HOW.format("shots"),
)
_command(
    "iterations",
    "iterations",
    "More inner steps a task: the 16 Omniglot runs of that figure." + _HOW.format("iterations"),
)
_command(
    "deep", None, "All 32 Omniglot runs, and two more seeds for four of them." + _HOW.format("deep")
)


def _device(name: str | None) -> str:
    """The device asked for, or an error that says what there is."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FMRLError(f"--device {name} is unknown", fix="say cuda or cpu") from None
    if device.type not in ("cuda", "cpu"):
        raise FMRLError(f"--device {name} is not supported", fix="say cuda or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = (
            f"there are {torch.cuda.device_count()}"
            if torch.cuda.is_available()
            else "PyTorch sees none here"
        )
        raise FMRLError(
            f"--device {name}: there is no such GPU ({there})",
            fix="use --device cpu, or leave it out",
        )
    return name


def _short(on: Set) -> int:
    """Meta-iterations of --quick: a task-step of the Mini-ImageNet network is ten times the work of
    Omniglot's.
    """
    return 3 if on is Set.omniglot else 1


def _chosen(on: Set, sweep: str | None, quick: bool, seeds: int | None) -> list:
    from fmrl.reproduce.deep.settings import crossing, runs, smallest

    if quick:
        return [
            replace(r, eval_steps=EVALUATION)
            for r in smallest(on.settings, sweep, 2 if on is Set.omniglot else 1)
        ]
    count = seeds or (3 if sweep is None and on is Set.omniglot else 1)
    return runs(on.settings, sweep, dict.fromkeys(crossing(on.settings), count))


def _pools(on: Set, data: Path | None, device: str) -> tuple[Any, Any, Any]:
    """Training and test tables, and the classes of a run."""
    from fmrl.datasets.images import load_mini_imagenet, load_omniglot, load_tiny_imagenet_100
    from fmrl.deep.tasks import Pool
    from fmrl.reproduce.deep.reproduce import split

    if on is Set.omniglot:
        images = load_omniglot(data=data)
        pool, kept = Pool.of_images(images.rotated(), device), {}

        def classes(run):
            if run.seed not in kept:
                kept[run.seed] = split(run, images.names)
            return kept[run.seed]

        return pool, pool, classes
    load = load_tiny_imagenet_100 if on is Set.tiny else load_mini_imagenet
    train, test = (
        Pool.of_images(load(split=s, size=84, data=data), device, scale=1 / 255)
        for s in ("train", "test")
    )
    return train, test, lambda run: (None, None)


def _go(study: Any, seconds: float | None, console: Console, quick: bool) -> bool:
    done, total = study.training()
    if not quick:
        speed, work = study.speed(), study.work() - done
        where = (
            "at most" if study.device.type == "cuda" else "about"
        )  # stacks run side by side on CUDA
        console.print(
            f"{work:,} task-steps, {where} {_time(work / speed)} at {speed:,.0f} task-steps/s",
            highlight=False,
        )
    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("", total=total, completed=done, rate="")

        def tick(steps: int) -> None:
            bar.update(line, advance=steps, rate=f"{bar.tasks[0].speed or 0:,.0f} task-steps/s")

        def progress(group, at, total) -> None:
            names = f"{group[0].ways}-way, {group[0].steps} steps, {len(group)} run{'s' if len(group) > 1 else ''}"
            bar.console.print(f"{names}: {at:,}/{total:,}", highlight=False)

        return study.go(seconds, progress, tick)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _tell(study: Any, on: Set, sweep: str | None, done: bool, as_json: bool) -> None:
    """Tables, verdicts and figures; the last two are written beside the record."""
    from fmrl.records import write_json
    from fmrl.reproduce.deep import claims, figures, screen, settings

    rows = settings.alone(study.results) if on is Set.tiny else settings.compare(study.results)
    found = claims.judge(study.results, on.settings, sweep)
    write_json(study.folder / "verdicts.json", [asdict(c) for c in found])
    drawn = figures.draw(
        study.results, study.folder, figures.TINY if on is Set.tiny else on.settings, sweep
    )
    if as_json:
        facts = {
            "set": on.value,
            "plan": asdict(study.plan),
            "finished": done,
            "record": str(study.path),
        }
        told = {
            "rows": rows,
            "verdicts": [asdict(c) for c in found],
            "figures": [str(path) for path in drawn],
        }
        typer.echo(json.dumps(facts | told, ensure_ascii=False))
        return
    console = Console()
    (screen.alone if on is Set.tiny else screen.beside)(rows, console)
    screen.verdicts(
        found, console, "authors' log" if on is not Set.tiny else f"authors' log, {on.settings}"
    )
    authors = study.runs[0].iterations
    if study.plan.iterations and study.plan.iterations < authors:
        console.print(
            f"{study.plan.iterations:,} meta-iterations; the authors' runs have {authors:,}",
            highlight=False,
        )
    console.print(
        f"record: {study.path}",
        *(f"figure: {path}" for path in drawn),
        sep="\n",
        highlight=False,
        soft_wrap=True,
    )
    if not done:
        console.print("not finished: run the same command again to go on")

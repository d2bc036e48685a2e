"""``fmrl reproduce shots | iterations | deep | steps | federated``: the studies of networks, beside
the authors' logs and beyond the paper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fmrl.cli.reproduce import (
    HERE,
    SMALL,
    Data,
    Json,
    Option,
    Out,
    Quick,
    Seed,
    app,
    progress_bar,
    told,
)
from fmrl.errors import FMRLError
from fmrl.records import write_json
from fmrl.reproduce.deep.settings import FEWEST, DataSet

Device = Annotated[str | None, Option(help="cuda or cpu (default: cuda when there is one).")]
Time = Option(min=0, help="Stop after this time; call again to go on.")
Seconds, Minutes = Annotated[float | None, Time], Annotated[float | None, Time]
Rounds = Annotated[int | None, Option(min=1, help="Rounds (default: 500, --quick 6).")]
_SAMPLES = "Of a client in a round, at most (default: 400, --quick 25; ARUBA's: all)."
Samples = Annotated[int | None, Option(min=10, help=_SAMPLES)]
# Of the authors' runs:
_FOLDER = (
    "Folder for the record and the checkpoints; the same folder resumes (default: "
    "runs/COMMAND-SET, as in runs/deep-omniglot; with --quick runs/COMMAND-SET-quick)."
)
_NETWORKS = "Omniglot, or the 16 Mini-ImageNet settings on one of the other two."
_SEEDS = "Seeds of one setting per family (default: 3 for deep on Omniglot, else 1)."
Folder = Annotated[Path | None, Option("--out", help=_FOLDER)]
Iterations = Annotated[int | None, Option(min=1, help="Meta-iterations (default: 20,000).")]
On = Annotated[DataSet, Option("--set", help=_NETWORKS)]
Precision = Annotated[str, Option(help="On CUDA: bf16, tf32 or ieee (float32).")]
Seeds = Annotated[int | None, Option(min=1, help=_SEEDS)]
Every = Annotated[int, Option(min=1, help="Meta-iterations between looks at the test tasks.")]
Curve = Annotated[int, Option(min=2, help="Test tasks of such a look.")]
Final = Annotated[int, Option(min=2, help="Test tasks at the end, transductive.")]
Inductive = Annotated[int, Option(min=2, help="Test tasks at the end, inductive.")]
# Of learned steps:
_ONLY = "Run one of them: omniglot-5-way, omniglot-20-way or tiny-imagenet-100 (default: all)."
_LENGTH = "Meta-iterations on Omniglot, and a third of them on Tiny ImageNet-100."
Only = Annotated[str | None, Option(help=_ONLY)]
Length = Annotated[int, Option(min=1, help=_LENGTH)]
Tested = Annotated[int, Option(min=2, help="Test tasks of a seed.")]
Many = Annotated[int, Option(min=1, help="Seeds.")]
StepsOut = Annotated[Path, Option(help="Folder for the record and the checkpoints.")]


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
    from fmrl.reproduce.deep import claims, settings
    from fmrl.reproduce.deep.figures import draw_networks
    from fmrl.reproduce.verdict import show

    rows = (settings.alone if on is DataSet.tiny else settings.compare)(study.results)
    found = claims.judge(study.results, on.settings, sweep)
    verdicts = [asdict(v) for v in found]
    write_json(study.folder / "verdicts.json", verdicts)
    drawn = [str(path) for path in draw_networks(study.results, study.folder, on.title, sweep)]
    if as_json:
        facts = {"set": on.value, "plan": asdict(study.plan), "finished": done}
        facts |= {"record": str(study.path), "rows": rows, "verdicts": verdicts, "figures": drawn}
        return typer.echo(json.dumps(facts, ensure_ascii=False))
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


@app.command("steps")
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
    from fmrl.reproduce.steps.methods import ENVIRONMENTS, Plan
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
    verdicts = [asdict(v) for v in found]
    write_json(out / "verdicts.json", verdicts)
    if as_json:
        said = {"finished": done, "rows": study.rows, "verdicts": verdicts}
        return typer.echo(json.dumps(said, ensure_ascii=False))
    _tell_steps(study, found, done)


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


@app.command("federated")
def federated_command(
    data: Data = None,
    seed: Seed = 0,
    out: Out = HERE,
    quick: Quick = False,
    rounds: Rounds = None,
    samples: Samples = None,
    seconds: Seconds = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What a learned step and personalising are worth in federated learning.

    An LSTM predicts the next character; clients are the roles of Shakespeare's plays (LEAF).
    FedAvg, FedAvg with fine-tuning, Reptile, one learned step and a learned step for every
    parameter, and initialisations and steps of different methods put together. Accuracy on roles
    that never trained, before and after adapting; rounds and bytes to a target. All methods and
    seeds are one stack of networks, with the same aggregation as on Flower, which is not needed.

    Leaves results, verdicts and a picture in the folder federated of --out. The same command goes
    on after a stop. About ten minutes on a large GPU, in proportion to --rounds and --samples; on
    a CPU use --quick.

    Example:

        fmrl reproduce federated --quick --out runs/federated
    """
    needs_torch()
    from fmrl.reproduce.federated.claims import summary
    from fmrl.reproduce.federated.study import Config, Study, read

    config = Config(seed=seed).quick() if quick else Config(seed=seed)
    config = config if rounds is None else replace(config, rounds=rounds)
    config = config if samples is None else replace(config, steps=samples // config.batch)
    study = Study(config, read(config, data), out, device_named(device))
    console = Console(stderr=True)
    console.print(f"clients: [bold]{len(study.clients)}[/bold] roles, on {study.device}")
    with progress_bar(config.rounds, console) as progress:
        done = study.go(seconds, lambda n: progress("rounds", n))
    if not done:
        return typer.echo("not finished: run the same command again to go on")
    found, title = study.tell(), "What are a learned step and personalising worth?"
    lines, took = summary(found["rows"]), found["record"]["seconds"]
    told(found, took, out, as_json, title, {"measure": "preset"}, lines, SMALL * quick)


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

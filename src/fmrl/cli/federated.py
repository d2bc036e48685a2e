"""``fmrl reproduce federated``: next characters of Shakespeare's roles, learned by clients."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fmrl.cli.studies import Data, Json, Out, Quick, Seed, progress_bar
from fmrl.errors import FMRLError

Seconds = Annotated[
    float | None, typer.Option(min=0, help="Stop after this time; call again to go on.")
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu (default: cuda when there is one).")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds (default: 500, --quick 6).")]
Samples = Annotated[
    int | None,
    typer.Option(
        min=10, help="Of a client in a round, at most (default: 400, --quick 25; ARUBA's: all)."
    ),
]


def federated_command(
    data: Data = None,
    seed: Seed = 0,
    out: Out = Path("fmrl-reproduce"),
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
    try:
        import torch  # noqa: F401
    except ImportError:
        raise FMRLError("torch is not installed", fix="pip install 'fmrl[deep]'") from None
    from fmrl.cli.studies import device_named
    from fmrl.reproduce.federated.claims import summary
    from fmrl.reproduce.federated.clients import Config, read
    from fmrl.reproduce.federated.study import Study
    from fmrl.reproduce.verdict import show

    config = Config(seed=seed).quick() if quick else Config(seed=seed)
    config = config if rounds is None else replace(config, rounds=rounds)
    config = config if samples is None else replace(config, steps=samples // config.batch)
    study, console = (
        Study(config, read(config, data), out, device_named(device)),
        Console(stderr=True),
    )
    console.print(f"clients: [bold]{len(study.clients)}[/bold] roles, on {study.device}")
    with progress_bar(config.rounds, console) as progress:
        done = study.go(seconds, lambda n: progress("rounds", n))
    if not done:
        typer.echo("not finished: run the same command again to go on")
        return
    told = study.tell()
    found = told["verdicts"]
    if as_json:
        said = {"data": told["record"]["data"], "verdicts": [asdict(v) for v in found]}
        typer.echo(json.dumps(said, ensure_ascii=False))
        return
    show(found, "What are a learned step and personalising worth?", {"measure": "preset"})
    small = "; a quick run is too small to decide them" if quick else ""
    typer.echo(f"{sum(v.passed for v in found)} of {len(found)} claims hold{small}")
    typer.echo("\n".join(summary(told["rows"])))
    typer.echo(f"{out}: {len(told['files'])} files, {told['record']['seconds']:.0f} s")

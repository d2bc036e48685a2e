"""``fmrl data table``: what a table becomes as tasks, read to its end without being held in memory."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from fmrl.cli.console import console, plainly
from fmrl.core.losses import Hinge, Linear, Logistic, Loss, Squared
from fmrl.errors import FMRLError

LOSSES: dict[str, Loss] = {
    "squared": Squared(),
    "logistic": Logistic(),
    "hinge": Hinge(),
    "linear": Linear(),
}
Names = Annotated[
    list[str] | None,
    typer.Option(help="Column to use; may be given several times (default: all others)."),
]


def table(
    file: Annotated[
        str, typer.Argument(help="CSV, TSV, Parquet or Arrow file, or a quoted glob of several.")
    ],
    task: Annotated[str, typer.Option(help="Column that names the task of a row.")],
    target: Annotated[
        str | None, typer.Option(help="Column of labels or numbers to predict.")
    ] = None,
    features: Names = None,
    order: Annotated[
        list[str] | None,
        typer.Option(help="Column that sorts the rounds of a task; several allowed."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="squared, logistic, hinge or linear (default: from the target)."),
    ] = None,
    categorical: Annotated[str, typer.Option(help="Text columns: onehot or error.")] = "onehot",
    missing: Annotated[
        str, typer.Option(help="Missing values: error, indicator, mean or drop.")
    ] = "error",
    unknown: Annotated[
        str, typer.Option(help="A level no training task had: zero or error.")
    ] = "zero",
    scale: Annotated[
        str, typer.Option(help="none, standard or range; learned from the training tasks.")
    ] = "none",
    levels: Annotated[int, typer.Option(help="Most levels a text column may have.")] = 256,
    train: Annotated[
        float | None,
        typer.Option(help="Share of the tasks the encoding is learned from (default: all)."),
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(help="Use this stored encoding instead of learning one.")
    ] = None,
    save_encoder: Annotated[
        Path | None, typer.Option(help="Write the encoding here as JSON.")
    ] = None,
    apart: Annotated[
        str, typer.Option(help="Rows of a task that lie apart: error, gather or split.")
    ] = "error",
    one_class: Annotated[
        str, typer.Option(help="A task with one class: error, keep or drop.")
    ] = "error",
    rows: Annotated[
        int, typer.Option(help="Rows held in memory at a time when gathering.")
    ] = 1_000_000,
    scratch: Annotated[
        Path | None, typer.Option(help="Folder for temporary files when gathering.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Read a table as tasks and say what they are: how many, how large, which loss, which columns.

    The file is streamed, not held in memory. fmrl.tasks_from_frame takes the same options in
    Python.

    Examples:

        fmrl data table sales.csv --task shop --target sold

        fmrl data table visits.parquet --task patient --target score --order day --missing indicator
        --scale standard

        fmrl data table 'log-*.parquet' --task user --target clicked --apart gather --train 0.8
        --save-encoder encoder.json
    """
    from fmrl.datasets import Policy, tasks_from_frame

    given = {
        "task": task,
        "target": target,
        "features": features or None,
        "order": order or None,
        "train": train,
    }
    given |= {
        "apart": apart,
        "one_class": one_class,
        "rows": rows,
        "scratch": scratch,
        "encoder": encoder,
    }
    with plainly():
        if loss is not None and loss not in LOSSES:
            raise FMRLError(f"--loss {loss} is unknown", fix=f"use one of {', '.join(LOSSES)}")
        policy = Policy(categorical, missing, unknown, scale, levels)
        given["policy"] = None if encoder is not None and policy == Policy() else policy
        stream = tasks_from_frame(file, loss=None if loss is None else LOSSES[loss], **given)
        sizes = np.array([t.rounds for t in stream])
        if not sizes.size:
            raise FMRLError("no task is left", fix="use --one-class keep")
        if save_encoder is not None:
            _save(save_encoder, stream.encoder.to_json())
    summary = _summary(stream, sizes)
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False))
        return
    for name, value in summary.items():
        text = (
            ", ".join(f"{k} {v:g}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        text = (
            ", ".join(text)
            if isinstance(text, list)
            else f"{text:,}"
            if isinstance(text, int)
            else text
        )
        console.print(f"[bold]{name}[/] {escape(str(text))}", highlight=False, soft_wrap=True)


def _summary(stream: Any, sizes: np.ndarray) -> dict[str, Any]:
    spread = dict(
        zip(
            ("least", "quarter", "median", "three quarters", "most"),
            np.quantile(sizes, np.linspace(0, 1, 5)),
            strict=True,
        )
    )
    return {
        "tasks": len(sizes),
        "rows": int(sizes.sum()),
        "rows a task": {k: float(v) for k, v in spread.items()},
        "loss": repr(stream.loss),
        "trained on": "all tasks" if stream.trained is None else f"{len(stream.trained):,} tasks",
        "columns": stream.encoder.names,
    }


def _save(path: Path, text: str) -> None:
    from fmrl.files import atomic

    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")

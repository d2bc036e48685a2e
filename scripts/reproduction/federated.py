"""docs/shakespeare.md, written from the record of a full run so that no number in it can drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fmrl.reproduce.federated.claims import (
    ACCURACY,
    APART,
    BYTES,
    FEDAVG,
    ROUNDS,
    TARGET,
    TRAINED,
    UNADAPTED,
    WORST,
)
from fmrl.reproduce.verdict import Row
from reproduction.markdown import read_record, table, verdict_table


def document(folder: Path) -> str:
    """The page in Markdown."""
    found = read_record(Path(folder))
    rows, record, verdicts = found["results"]["rows"], found["record"], found["verdicts"]
    parts = [
        opening(record, verdicts),
        "## Verdicts\n\n" + verdict_table(verdicts),
        "## Accuracy on roles that never trained\n\n![federated](img/federated.png)\n\n"
        + accuracies(rows, TRAINED),
        "## Initialisation and step apart\n\n" + accuracies(rows, tuple(APART)),
        "## The way there\n\n" + way(rows, record),
    ]
    return "\n\n".join(parts) + "\n"


def opening(record: dict[str, Any], verdicts: list[dict[str, Any]]) -> str:
    """What was run, and how to read the rest."""
    asked = record["configuration"]
    samples = asked["batch"] * asked["steps"]
    fewer = "" if asked["rounds"] == 500 else " instead of 500"
    return f"""# What are a learned step and personalising worth?

This page is written by `python scripts/write_reproduction.py` from the records in
`results/federated`, which `{record["command"]}` left: every number below is of that command. Edit
neither by hand. It took {record["seconds"]:.0f} seconds on {record["device"]}.

{record["data"]["title"]}: a role is a client. An LSTM (embedding {asked["embedding"]},
{asked["layers"]} × {asked["hidden"]}, {record["parameters"]:,} parameters) reads
{asked["context"]} characters and predicts the next. ARUBA's settings: {asked["rounds"]} \
rounds{fewer} of
{asked["clients"]} clients, one epoch of a client's samples in mini-batches of {asked["batch"]},
first step {asked["rate"]:g}, a client's weight the number of its samples. One thing is shortened: a
client with more than {samples} samples plays {samples} of them, drawn anew in every round.
The first 80 % of a role's characters train, the others score; 80 % of the roles train, by a draw
for each of {asked["seeds"]} seeds, and {asked["tested"]} others of each seed are scored, on
{asked["held"]} characters at most. Every method sees the same clients and the same samples in the
same order.

*Personalised* is the accuracy after such an epoch on the client's training part with the method's
own step: for {FEDAVG} that is fine-tuning. Every client counts once. Intervals are 95 % t
intervals over test clients (differences are paired by client), for rounds, bytes and the worst
decile over seeds.

{sum(v["passed"] for v in verdicts)} of {len(verdicts)} claims hold."""


def _find(rows: list[Row], measure: str, name: str, within: str = "test clients") -> Row | None:
    key = measure, within, name
    return next((r for r in rows if (r["preset"], r["within"], r["method"]) == key), None)


def _percent(r: Row | None) -> str:
    if r is None:
        return "–"
    return f"{100 * r['mean']:.2f} [{100 * r['low']:.2f}, {100 * r['high']:.2f}]"


def accuracies(rows: list[Row], names: tuple[str, ...]) -> str:
    """Accuracy in percent, before and after adapting."""
    measures = (UNADAPTED, ACCURACY, WORST)
    lines = [[name, *(_percent(_find(rows, m, name)) for m in measures)] for name in names]
    return table(["method", "unadapted, %", "personalised, %", "worst decile, %"], lines)


def way(rows: list[Row], record: dict[str, Any]) -> str:
    """Rounds and bytes."""
    lines = []
    for name in TRAINED:
        cells = [name, f"{record['bytes'][name] / 1e6:.1f}"]
        for measure in (ROUNDS, BYTES):
            r = _find(rows, measure, name, "to the target")
            spread = "" if r is None else f" [{r['low']:.0f}, {r['high']:.0f}]"
            cells.append("not reached" if r is None else f"{r['mean']:.0f}{spread}")
        lines.append(cells)
    said = f"The target is {100 * TARGET:.0f} % of the personalised accuracy that {FEDAVG} reaches "
    said += "at its last look in the same seed.\n\n"
    head = ["method", "MB a round", "rounds to the target", "MB to the target"]
    return said + table(head, lines)

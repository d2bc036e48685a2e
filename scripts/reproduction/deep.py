"""The deep half of docs/reproduction.md and its pictures, written from the records in
results/deep so that no number can drift.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import stdev
from typing import Any

from fmrl.datasets.registry import dataset
from fmrl.errors import FMRLError
from fmrl.reproduce.deep.figures import draw_networks
from fmrl.reproduce.deep.settings import FAMILIES, TINY, compare, reference, runs
from fmrl.reproduce.verdict import LEVEL
from reproduction.markdown import (
    SETTING,
    YES,
    command,
    flow,
    listed,
    percent,
    pictures,
    stood,
    table,
    unfinished,
    verdicts,
)

PAGES = {"omniglot-record": "Omniglot", "tiny-imagenet-100-record": TINY}  # those with pictures
TINY_COMMAND = "fmrl reproduce deep --set tiny-imagenet-100"


def read(folder: Path) -> dict[str, Any]:
    """Every record under ``folder`` by name."""
    return {
        p.stem: json.loads(p.read_text(encoding="utf-8"))
        for p in sorted(Path(folder).glob("*.json"))
    }


def draw(folder: Path, out: Path) -> list[Path]:
    """The pictures of the page, from the records under ``folder``."""
    records = read(folder)
    return [
        path
        for name, data in PAGES.items()
        if name in records
        for path in draw_networks(records[name]["runs"], out, data)
    ]


def document(folder: Path) -> str:
    """The deep part of the page in Markdown."""
    records = read(folder)
    main = records["omniglot-record"]
    rows = [r for r in compare(main["runs"]) if r["seed"] == 0]
    left = unfinished("Omniglot", main["runs"])
    other = records["omniglot-other-splits"]
    before = [r for r in compare(other["runs"]) if r["seed"] == 0]
    parts = [
        "# Reproduction of the deep figures",
        flow(f"""This part is written by `python scripts/write_reproduction.py` from the
        records in `results/deep`. Reptile (last iterate, interpolating meta-step) in the
        authors' 32 Omniglot settings, on the authors' own split of the characters, one run
        each, on one {main["configuration"]["device"]} in {main["training seconds"]:.0f}
        seconds, training and evaluation (`{command(main)}` has the plan of this record).
        Curves are transductive; solid lines are ours, dashed ones the authors' log."""),
        f"Of the record: {main['note']}." if "note" in main else "",
        _agreement(rows, left),
        _again(records.get("omniglot-again"), rows),
        flow(f"""A first study of the same runs on another split took
        {other["training seconds"]:.0f} seconds and had {sum(r["within"] for r in before)} of
        {len(before)} finished runs within; those outside were all above the authors. Their
        split was rebuilt (`fmrl.reproduce.deep.study.split`) and used after that was seen;
        the command now has it for seed 0, and that study cannot be run again as it was."""),
        *pictures("Omniglot"),
        "## Run by run",
        _runs(rows),
        _outside(rows, main["runs"], other["runs"]),
        _about(rows),
        stood(left, main["runs"]),
        "## Seeds",
        _seeds(main["runs"], other["runs"]),
        "## Verdicts on the paper's claims",
        verdicts(main["runs"], "Omniglot", "authors' log"),
        "## What decides the agreement",
        _causes(records["hypotheses"], records["summed-loss"]),
        *_tiny(records.get("tiny-imagenet-100-record")),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _agreement(rows: list[dict], left: list[str]) -> str:
    """How many runs agree, those that do not by name, and those that have no end."""
    outside = [r["run"] for r in rows if not r["within"]]
    count = "none" if not outside else f"{len(outside)} ({listed(outside)})"
    rest = f", and {listed(left)} did not finish" if left else ""
    return flow(f"""**{len(rows) - len(outside)} of {len(rows) + len(left)} runs end within max(2
        standard errors of theirs, {100 * LEVEL:g} points) of the authors' test accuracy**; {count}
        of the {len(rows)} finished runs {"lie" if len(outside) > 1 else "lies"} outside{rest}.
        {_strict(rows)} {_floor(rows)}""")


def _strict(rows: list[dict]) -> str:
    """How many agree without the floor."""
    edge = sum(abs(r["difference"]) == round(2 * r["their error"], 5) for r in rows)
    both = sum(abs(r["difference"]) <= 2 * math.hypot(r["error"], r["their error"]) for r in rows)
    exactly = f" ({edge} of them at exactly two)" if edge else ""
    return f"""**Within two of their standard errors alone: {len(_alone(rows))}{exactly}**; within
        two standard errors of the difference: {both}."""


def _alone(rows: list[dict]) -> list[dict]:
    """The runs within two of the authors' standard errors, as logged."""
    return [r for r in rows if abs(r["difference"]) <= round(2 * r["their error"], 5)]


def _floor(rows: list[dict]) -> str:
    """What the floor is and what it decides."""
    decided = [r for r in rows if r["within"] and r not in _alone(rows)]
    if not decided:
        return ""
    wide = [200 * r["their error"] for r in rows]
    least, most = (100 * f(abs(r["difference"]) for r in decided) for f in (min, max))
    above = sum(r["difference"] > 0 for r in rows)
    return f"""The floor of {100 * LEVEL:g} points is ours: two standard errors of theirs are
        {min(wide):.1f} to {max(wide):.1f} points and count their test tasks only, not what a
        split, a seed or an initialisation moves. It decides {len(decided)} runs, which are
        {least:.1f} to {most:.1f} points apart. {above} of the {len(rows)} differences are
        positive."""


def _again(record: dict | None, before: list[dict]) -> str:
    """What a later run of the same plan had, made whole by one command."""
    if record is None:
        return ""
    first, rows = {r["run"]: r["ours"] for r in before}, compare(record["runs"])
    moved = stdev(r["ours"] - first[r["run"]] for r in rows if r["run"] in first)
    outside = [f"`{r['run']}` {100 * r['difference']:+.2f}" for r in rows if not r["within"]]
    return flow(f"""The same settings and seed once more, with the engine as it is now, in one
        command, {record["training seconds"]:.0f} seconds of training and evaluation and
        {record["seconds from start to end"]:.0f} from its start to its end (`{record["command"]}`):
        {len(rows) - len(outside)} of {len(rows)} within (outside, in points:
        {", ".join(outside)}). {_strict(rows)} Between the two, a setting moves by
        {100 * moved:.1f} points (standard deviation).""")


def _outside(rows: list[dict], results: dict[str, dict], other: dict[str, dict]) -> str:
    """What is known of each run outside: how far another run of ours in its setting lies, and
    whether it was still rising.
    """
    told = []
    for r in (r for r in rows if not r["within"]):
        side = "above" if r["difference"] > 0 else "below"
        text = (
            f"`{r['run']}` ends {100 * abs(r['difference']):.1f} points {side} the authors' one run"
        )
        if "final" in other.get(r["run"], {}):
            again = other[r["run"]]["final"]["transductive"]["accuracy"]
            text += (
                f"; our run of the same setting on another split ends at {100 * again:.1f}, "
                f"{100 * abs(again - r['ours']):.1f} points "
                "from this one, so that single runs of it lie about as far apart"
            )
        (at, before), (end, last) = results[r["run"]]["curve"][-2:]
        told.append(
            f"{text}. From meta-iteration {at:,} to {end:,} it still went from {100 * before:.1f} "
            f"to {100 * last:.1f}."
        )
    return " ".join(told)


def _runs(rows: list[dict]) -> str:
    lines = []
    for r in sorted(rows, key=lambda r: list(reference()).index(r["run"])):
        s = reference()[r["run"]]
        ours = percent(r["ours"], r["error"]), percent(r["inductive"])
        theirs = percent(r["theirs"], r["their error"]), f"{100 * r['difference']:+.1f}"
        setting = f"`{r['run']}`", f"{s['classes']}-way {s['shots']}-shot", str(s["train_shots"])
        lines.append([*setting, str(s["inner_iters"]), *ours, *theirs, YES[r["within"]]])
    head = [*SETTING, "ours, transductive", "ours, inductive", "authors, transductive"]
    return table([*head, "difference", "within"], lines)


def _about(rows: list[dict]) -> str:
    """What the table does not show at a glance: settings that are one and the same, and how far
    the protocols lie apart.
    """
    images, apart = dataset("omniglot").counts["drawings per class"], []
    cut = sorted({r["run"] for r in rows if reference()[r["run"]]["train_shots"] >= images})
    for name, title in FAMILIES.items():
        gaps = [100 * (r["ours"] - r["inductive"]) for r in rows if r["run"].startswith(f"{name}_")]
        apart += [f"{min(gaps):.1f} to {max(gaps):.1f} on {title}"] if gaps else []
    same = (
        f"Omniglot has {images} drawings a class, so settings with {images} and with 25 "
        f"samples ({listed(cut)}) are one and the same: "
    )
    return (same + "two runs of it. " if cut else "") + (
        f"Transductive less inductive accuracy, in points: {'; '.join(apart)}." if apart else ""
    )


def _seeds(main: dict[str, dict], other: dict[str, dict]) -> str:
    def cell(result: dict | None) -> str:
        return "–" if result is None or "final" not in result else " / ".join(
            f"{100 * result['final'][p]['accuracy']:.1f}" for p in ("transductive", "inductive")
        )  # fmt: skip

    lines = []
    for n in [n for n in reference() if f"{n}@1" in other]:
        logged = f"{100 * reference()[n]['accuracy']['test']:.1f}"
        seeds = (cell(other.get(k)) for k in (n, f"{n}@1", f"{n}@2"))
        lines.append([f"`{n}`", cell(main.get(n)), *seeds, logged])
    head = ["run", "authors' split", "other split 1", "other split 2", "other split 3", "authors"]
    about = flow("""Transductive / inductive accuracy of one setting per family with other splits
        of the characters, other initialisations and other tasks. The authors ran one seed,
        and all their runs share one split: what the split does to one of them it does to all.""")
    return about + "\n\n" + table(head, lines)


def _logged() -> str:
    """The authors' four runs of that setting, at the same meta-iteration."""
    names = (f"o15_{n}" for n in ("i5", "s15", "s20", "s25"))
    curves = (dict(map(tuple, reference()[name]["test_curve"])) for name in names)
    said = ", ".join(f"{100 * c[1000]:.1f}" for c in curves)
    return f"{said} in the four runs that draw as many samples"


def _causes(hypotheses: dict, summed: dict) -> str:
    lines = []
    for r in hypotheses["rows"]:
        found = [
            f"{100 * r['accuracy'][i]:.1f}" if i in r["accuracy"] else "–" for i in ("1000", "2000")
        ]
        lines.append([r["setting"], r["change"], *found, r["authors"]])
    means = {r["loss"]: r for r in summed["rows"] if r["shots"] == 1}
    whole = hypotheses["20-way, 10 steps, in full"]["moments shared by a meta-batch"]
    which = {"iteration": 20_000, "shots": 1, "classes": "test"}
    ends = next(r["accuracy"] for r in whole if which.items() <= r.items())
    first = flow(f"""The authors' loss is the *sum* over a mini-batch. Adam does not feel that in
        training, but its moments are carried from training mini-batches of 10 (20) to test
        mini-batches of 5 (10), and there the sum makes every step half as long as the mean would.
        At meta-iteration 1,001 of `o15_i5` one and the same phi has
        {100 * means["mean"]["accuracy"]:.1f} with the mean and
        {100 * means["sum"]["accuracy"]:.1f} with the sum (authors: {_logged()}). With the mean,
        `o120_i10` ends at {", ".join(map(percent, ends))} (three seeds; authors
        {100 * reference()["o120_i10"]["accuracy"]["test"]:.1f}).""")
    second = flow("""What else was tried, with the mean (accuracy at 1 shot, three seeds). How
        moments are handed on within a meta-batch, eps and the scale of pixels do not matter; the
        step, moments that start at zero and fewer tasks do, and none gives the authors' curve:""")
    head = ["setting", "change", "at 1,000", "at 2,000", "authors at 1,000 / 2,000"]
    return "\n\n".join([first, second, table(head, lines)])


def _tiny(record: dict | None) -> list[str]:
    """The section on Tiny ImageNet-100 in the authors' Mini-ImageNet settings, another data set,
    called by its own name; without a record, that there is none.
    """
    settings = runs("Mini-ImageNet")
    if record is None:
        return [
            "## Not run",
            flow(f"""The {len(settings)} Mini-ImageNet settings on {TINY}: `{TINY_COMMAND}` runs
            them; no record of a full or shortened run exists, and none is claimed."""),
        ]
    shape = re.fullmatch(rf"Pool\('{TINY}.*inputs \(3, (\d+), \d+\)\)", record["data"])
    if not shape:
        what = f"the record of {TINY} is of {record['data']}"
        raise FMRLError(what, fix="give each data set a record of its own")
    results, left = record["runs"], unfinished("Mini-ImageNet", record["runs"])
    authors, planned = settings[0].iterations, re.search(r"iterations=(\d+)", record["plan"])
    length = int(planned[1]) if planned else authors
    counts = dataset("tiny-imagenet-100").counts
    as_authors = "as the authors'"
    if length < authors:
        as_authors = f"where the authors' have {authors:,} (the meta-step falls to 0 over those "
        as_authors += f"{length:,})"
    count = f"{len(settings) - len(left)} of" if left else "All"
    return [
        f"## {TINY} in the Mini-ImageNet settings",
        flow(f"""The authors' {len(settings)} Mini-ImageNet settings on another data set, {TINY}:
        {counts["images per class"]} images a class, 64×64 pixels resized to {shape[1]}×{shape[1]},
        {counts["train classes"]} classes to train on and {counts["test classes"]} to test on.
        Mini-ImageNet has {dataset("mini-imagenet").counts["images per class"]} images a class: the
        authors' accuracies on it stand beside ours for orientation, and agreement is neither
        expected nor claimed."""),
        flow(f"""{count} {len(settings)} runs finished, one seed, {length:,} meta-iterations each
        {as_authors}, on one {record["configuration"]["device"]} in
        {record["training seconds"]:,.0f} seconds, training and evaluation
        (`{command(record, "tiny-imagenet-100")}` has the plan of this record). Solid lines are
        ours, dashed ones the authors' log on Mini-ImageNet."""),
        *pictures(TINY),
        f"### {TINY}, run by run",
        _tiny_runs(results, left),
        stood(left, results, beside=False),
        f"### {TINY}: verdicts on what the paper says of Mini-ImageNet",
        _tiny_rules(results, left),
        verdicts(results, "Mini-ImageNet", "authors' log, Mini-ImageNet"),
    ]


def _tiny_runs(results: dict[str, dict], left: list[str]) -> str:
    lines = []
    for r in (r for r in runs("Mini-ImageNet") if r.name not in left):
        logged, held = reference()[r.name], results[r.name]
        ends = (held["final"][p] for p in ("transductive", "inductive"))
        ours = (percent(end["accuracy"], end["error"]) for end in ends)
        theirs = percent(logged["accuracy"]["test"], logged["test_se"])
        setting = f"`{r.name}`", f"{r.ways}-way {r.shots}-shot", str(r.train_shots), str(r.steps)
        lines.append([*setting, f"{held['curve'][-1][0]:,}", *ours, theirs])
    head = [*SETTING, "meta-iterations", "ours, transductive", "ours, inductive"]
    authors = "authors on Mini-ImageNet (another data set), transductive"
    return table([*head, authors], lines) if lines else ""


def _tiny_rules(results: dict[str, dict], left: list[str]) -> str:
    """What a verdict means here, and on how many test tasks it rests."""
    done = (r.name for r in runs("Mini-ImageNet") if r.name not in left)
    tasks = {results[name]["final"]["transductive"]["tasks"] for name in done}
    counts = " or ".join(f"{n:,}" for n in sorted(tasks))
    mine = f"{counts} test tasks a run" if tasks else "no finished run"
    return flow(f"""The rules are those of Omniglot above: a run beats another when it is ahead
        by more than two standard errors of the difference, and runs end alike when no two differ
        by more than that or 1.5 points. The paper says of Mini-ImageNet that more samples
        help, that more than 8 inner steps reduce performance, and that a benefit of more
        steps is not clear. Ours rest on {mine}, the authors' on
        {reference()["m15_i8"]["eval_samples"]}.""")

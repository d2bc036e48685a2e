"""Write docs/practice.md from the records that `python benchmarks/grouped.py` and `python
benchmarks/practice.py` left in results/practice.

python scripts/write_practice.py             # write the page
python scripts/write_practice.py --check     # fail if the page is not what the records say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import practice_grouped
from practice_grouped import flow, paragraph, table

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("fmrl", "per-task", "pooled")
SHOTS = (1, 2, 4, 8, 16, 32)

HEAD = """# Measured against what is used in practice

This page is written by `python scripts/write_practice.py` from the records in `results/practice`, which
`python benchmarks/grouped.py` and `python benchmarks/practice.py` left. Edit neither by hand.
"""  # noqa: E501 - as wide as the page


def read(folder: Path = ROOT / "results" / "practice") -> dict[str, dict[str, Any]]:
    """The records by part."""
    found = {
        part: json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
        for part in ("accuracy", "fit", "stream")
    }
    return found | {"grouped": practice_grouped.read(folder / "grouped")}


def page(records: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    parts = [HEAD, *practice_grouped.section(records["grouped"]), *_accuracy(records["accuracy"])]
    return "\n".join([*parts, *_fit(records["fit"]), *_stream(records["stream"])]) + "\n"


def numbers(records: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What the README says of these records."""
    sets, fit, stream = (records[part]["results"] for part in ("accuracy", "fit", "stream"))
    cells = [cell for found in sets["sets"] for cell in found["cells"]]
    calls = stream["lines"][0]["rounds/s"]
    return {
        "worst": _signed(sets["worst"]["difference"]),
        "cells": str(len(cells)),
        "won": str(sum(cell["fmrl − better"][1] > 0 for cell in cells)),
        "fit": f"{fit['ratio']:.0f}×",
        "run": f"{fit['ratio with the run']:.0f}×",
        "stream": f"{calls / 1000:.0f},000",
        "river": f"{stream['ratio, 4 classes']['predict, learn']:.1f}×",
        "river, binary": f"{stream['ratio, 2 classes']['predict, learn']:.1f}×",
    }


def _signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _value(cell: dict[str, Any] | None, line: str) -> str:
    if cell is None:
        return "–"
    mean, _, high = cell[line]
    return f"{mean:.3f} ± {high - mean:.3f}"


def _difference(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    mean, low, high = cell["fmrl − better"]
    text = f"{_signed(mean)} ± {high - mean:.3f}"
    return f"**{text}**" if low > 0 else text


def _accuracy(record: dict[str, Any]) -> list[str]:
    found = record["results"]
    worst, cells = found["worst"], [cell for one in found["sets"] for cell in one["cells"]]
    few = [c for one in found["sets"] if one["similar"] for c in one["cells"] if c["shots"] <= 4]
    better = sum(c["fmrl − per-task"][1] > 0 for c in few)
    above = sum(c["fmrl − better"][1] > 0 for c in cells)
    below = sum(c["fmrl − better"][2] < 0 for c in cells)
    lines = [
        "## Against plain scikit-learn, up to 32 shots",
        "",
        paragraph(
            """`MetaClassifier()` or `MetaRegressor()` is fitted to the training tasks
            and adapted to a few rows of every held-out task. *per-task* is one
            `LogisticRegressionCV` or `RidgeCV` for each held-out task from the same rows
            (with one row a class, or one row: `LogisticRegression`, `Ridge`), *pooled* is one
            for the rows of all training tasks together (at most 20,000 of them, drawn
            evenly). Shots are rows per class, or rows of a regression; scores are means over
            held-out tasks on rows nobody learned from, ± half of a 95 % Student t interval
            over tasks. The last line is the paired difference to the *better* of the two (the
            one with the higher mean in that column); bold where its interval lies above zero."""
        ),
        "",
        paragraph(
            f"""The worst of these {len(cells)} differences is
            **{_signed(worst["difference"], 4)}** ({worst["set"]}, {worst["shots"]} shots); in
            {above} the whole interval lies above zero, in {below} below. Against per-task
            fitting at up to 4 shots on the similar tasks, the whole interval lies above zero
            in {better} of {len(few)} columns, and the mean in
            {sum(c["fmrl − per-task"][0] > 0 for c in few)}."""
        ),
        "",
    ]
    if found["skipped"]:
        lines += [f"Not run, because the data was not there: {', '.join(found['skipped'])}.", ""]
    for one in found["sets"]:
        by = {cell["shots"]: cell for cell in one["cells"]}
        tasks = max(cell["tasks"] for cell in one["cells"])
        score = f"{one['score'][0].upper()}{one['score'][1:]}, {tasks} held-out tasks"
        rows = [[m, *(_value(by.get(k), m) for k in SHOTS)] for m in METHODS]
        rows.append(["fmrl − better", *(_difference(by.get(k)) for k in SHOTS)])
        lines += [f"### {one['what'][0].upper()}{one['what'][1:]}", ""]
        lines += [f"{score}{'' if one['similar'] else '; the tasks share nothing'}.", ""]
        lines += [table(["shots", *map(str, SHOTS)], rows), ""]
    return [
        *lines,
        paragraph(
            """A column is left out (–) where a task has not that many rows of every
            class. Digit pairs come from three random halvings of the images, 15 test pairs
            each, and digit blocks from three turns in which every block is tested once; their
            tasks share images or writers with tasks of another turn, so their intervals are a
            little too narrow. R² below zero is worse than predicting the task's mean."""
        ),
        "",
    ]


def _fit(record: dict[str, Any]) -> list[str]:
    found = record["results"]
    tasks, ours, peer = found["tasks"], found["fmrl s"], found["scikit-learn s"]
    both = ours + found["run s"]
    each = f"`LogisticRegression().fit` for each task ({found['scikit-learn tasks']} tasks spread "
    each += "over all, extrapolated)"
    rows = [
        ["`MetaClassifier().fit`", f"{ours:.1f}", f"{1e6 * ours / tasks:.0f}"],
        ["the same, then `certificate_`'s run", f"{both:.1f}", f"{1e6 * both / tasks:.0f}"],
        [each, f"{peer:.0f}", f"{1e6 * peer / tasks:.0f}", "1"],
    ]
    rows[0].append(f"**{found['ratio']:.1f}**")
    rows[1].append(f"{found['ratio with the run']:.1f}")
    stages = ", ".join(f"{stage} {share:.0%}" for stage, share in found["share"].items())
    return [
        "## Speed of `fit`",
        "",
        flow(f"""{tasks:,} tasks × {found["rows"]} rows × {found["features"]} features,
        {found["classes"]} classes, one thread, CPU time, same run
        (`python benchmarks/practice.py --parts fit`). A pilot of the tasks, evenly spaced,
        chooses. The run of Algorithm 2 over all of them is played when something of
        it is first asked for; models and predictions do not need it:"""),
        "",
        table(["", "seconds", "µs a task", "ratio"], rows),
        "",
        paragraph(
            """One run on a busy 2-core machine; CPU time still depends on what else runs
            there, and on the peers more than on us. Read the ratios to about a quarter."""
        ),
        "",
        f"Where `fit`'s time goes: {stages}.",
        "",
    ]


def _stream(record: dict[str, Any]) -> list[str]:
    found = record["results"]
    lines = [
        "## Streaming",
        "",
        paragraph(
            f"""{found["tasks"]:,} tasks × {found["rounds"]} rounds, {found["features"]}
            features, each row predicted and then learned; opening and closing tasks included;
            river {found["river"]}, its rows made into dictionaries before the clock starts;
            one thread, CPU time, medians of five turns; ratios are medians of the turns' own
            (`python benchmarks/practice.py --parts stream`):"""
        ),
        "",
    ]
    rows = [
        [str(x["classes"]), x["how"], f"{x['rounds/s']:,.0f}", f"{x['accuracy']:.3f}"]
        for x in found["lines"]
    ]
    lines.append(table(["classes", "how", "rounds a second", "accuracy"], rows))
    four, two = found["ratio, 4 classes"], found["ratio, 2 classes"]
    return [
        *lines,
        "",
        paragraph(
            f"""With four classes that is **{four["predict, learn"]:.1f}** times river
            ({four["play"]:.1f} with `play`), whose one-vs-rest does the work four times. With
            two classes it is {two["predict, learn"]:.1f} times ({two["play"]:.1f} with
            `play`): at 50 features both spend their time in the interpreter. river learns one
            model over the whole stream; here every task starts from phi, and its regret is
            tracked.{_throughout(four, two)}"""
        ),
    ]


def _throughout(four: dict[str, float], two: dict[str, float]) -> str:
    """What is left without opening and closing tasks, where the record has it."""
    if "one task" not in two:
        return ""
    return f""" One task over the whole stream, as river has it, is {four["one task"]:.1f} and
            {two["one task"]:.1f} times river."""


def main() -> None:
    """Write, or compare."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true", help="compare instead of writing")
    target, text = ROOT / "docs" / "practice.md", page(read())
    if not options.parse_args().check:
        target.write_text(text, encoding="utf-8")
        print(target.name)
    elif target.read_text(encoding="utf-8") != text:
        again = "run python scripts/write_practice.py"
        sys.exit(f"docs/practice.md is not what results/practice says; {again}")


if __name__ == "__main__":
    main()

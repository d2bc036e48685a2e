"""Pieces of Markdown that the pages are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fmrl.reproduce.deep.claims import judge
from fmrl.reproduce.deep.figures import NETWORKS
from fmrl.reproduce.deep.settings import Plan, reference, runs

SETTING = ["run", "task", "training samples", "inner steps"]
YES = {True: "yes", False: "**no**", None: "–"}


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Rows under a head.

    >>> print(table(["m", "TAR"], [["1", "0.3"]]))
    | m | TAR |
    |---|---|
    | 1 | 0.3 |
    """
    head = list(head)
    top, *rest = ("| " + " | ".join(line) + " |" for line in (head, *lines))
    return "\n".join([top, "|---" * len(head) + "|", *rest])


def flow(text: str) -> str:
    """A text that is written over several lines, as one line.

    >>> flow("one\\n    two")
    'one two'
    """
    return re.sub(r"\s*\n\s*", " ", text)


def read_record(folder: Path) -> dict[str, Any]:
    """results.json, verdicts.json and record.json of a study of our own."""
    return {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("results", "verdicts", "record")
    }


def verdict_table(verdicts: list[dict[str, Any]]) -> str:
    """Claims with their ratios."""
    lines = [[v["preset"], v["claim"], YES[v["passed"]], v["numbers"]] for v in verdicts]
    return table(["measure", "claim", "holds", "ratio and its interval"], lines)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('`a`', '`a`, `b` and `c`')
    """
    *before, last = (f"`{n}`" for n in names)
    return f"{', '.join(before)} and {last}" if before else last


def percent(accuracy: float, error: float | None = None) -> str:
    """An accuracy, with the half-width of its 95 % interval.

    >>> percent(0.5, 0.01)
    '50.0 ± 2.0'
    """
    return f"{100 * accuracy:.1f}" + ("" if error is None else f" ± {196 * error:.1f}")


def command(record: dict, data: str = "omniglot") -> str:
    """The command whose plan is that of a study's record.

    >>> plan = "Plan(every=4000, curve=200, iterations=None, precision='tf32')"
    >>> command({"plan": plan, "runs": {"o15_i5": {}}})
    'fmrl reproduce deep --seeds 1 --every 4000 --precision tf32'
    """
    usual = {k: str(v) for k, v in asdict(Plan()).items()}
    held = dict(re.findall(r"(\w+)='?([\w.]+)'?", record["plan"]))
    words = ["fmrl reproduce deep"] + ([f"--set {data}"] if data != "omniglot" else [])
    if data == "omniglot" and not any("@" in key for key in record["runs"]):
        words.append("--seeds 1")
    return " ".join(words + [f"--{k} {v}" for k, v in held.items() if v != usual.get(k)])


def pictures(data: str) -> list[str]:
    """The pictures of one data set.

    >>> pictures("Omniglot")[0]
    '![Omniglot 5-way](img/deep-omniglot-5-way.png)'
    """
    stem = f"deep-{data.lower().replace(' ', '-')}"
    return [
        f"![{data}{name.removeprefix(stem).replace('-', ' ', 1)}](img/{name}.png)"
        for name in NETWORKS[data]
    ]


def unfinished(settings: str, results: dict[str, dict]) -> list[str]:
    """Runs of the authors' settings that have no end here, those that were never evaluated with
    them.

    >>> len(unfinished("Mini-ImageNet", {"m15_i8": {"curve": [], "final": {}}}))
    15
    """
    return [r.name for r in runs(settings) if "final" not in results.get(r.name, {})]


def stood(names: Sequence[str], results: dict[str, dict], beside: bool = True) -> str:
    """Where unfinished runs stood; with the authors' accuracy there unless theirs is of another
    data set.
    """
    lines, never = [], [n for n in names if not results.get(n, {}).get("curve")]
    for name in (n for n in names if n not in never):
        at, accuracy = results[name]["curve"][-1]
        logged = dict(map(tuple, reference()[name]["test_curve"])).get(at) if beside else None
        said = f"`{name}` had {100 * accuracy:.1f} at meta-iteration {at:,}"
        lines.append(said if logged is None else f"{said} (authors {100 * logged:.1f})")
    if never:
        lines.append(f"{listed(never)} had not been evaluated")
    return "Stopped when the time was over: " + "; ".join(lines) + "." if lines else ""


def verdicts(results: dict[str, dict], settings: str, logged: str) -> str:
    """The paper's claims about these settings; logged: the head of the authors' column."""
    found = judge(results, settings)  # ours and theirs in turn
    lines = [
        [v.figure, v.claim, YES[v.passed], v.numbers, YES[w.passed], w.numbers]
        for v, w in zip(found[::2], found[1::2], strict=True)
    ]
    return table(["task", "claim", "ours", "numbers", logged, "numbers"], lines)

"""What the parts say: TAR by budget with its interval over draws, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fmrl.reproduce.parts import Part
from fmrl.reproduce.privacy.runs import FAL, SINGLE
from fmrl.reproduce.verdict import DRAWS, Row, Rows, Verdict, row

TAR, EXCESS, RECORDS = "TAR", "excess at a fixed noise", "noisy gradients"
KEPT, FALLS, GROWS, LOST = 0.9, 10.0, 1.5, 0.5


def rows(parts: Iterable[tuple[Part, Any]]) -> list[Row]:
    """One row a measure, size, number of tasks (as shots) and method: an epsilon or a baseline."""
    groups: dict[tuple[int, int, int], list[Any]] = {}
    for part, result in parts:
        asked = part.arguments
        groups.setdefault((asked["dim"], asked["rounds"], asked["tasks"]), []).append(result)
    made = []
    for (dim, rounds, tasks), draws in sorted(groups.items()):
        size = f"d = {dim}, m = {rounds}"
        for method in draws[0]["tar"]:
            values = [d["tar"][method] for d in draws]
            bounds = [d["bound"].get(method) for d in draws]
            about = {"values": values, "bounds": None if None in bounds else bounds}
            made.append(row(values, DRAWS, TAR, size, method, tasks) | about)
        excess, price = ([d[name] for d in draws] for name in ("excess", "price"))
        made.append(row(excess, DRAWS, EXCESS, size, "Σ B", tasks) | {"bounds": price})
        for name in draws[0]["rows"]:
            values = [d["rows"][name] for d in draws]
            made.append(row(values, DRAWS, RECORDS, size, f"{name} noise", tasks))
    return made


def kept(by: Rows, size: str, epsilon: str, tasks: int) -> float:
    """The share of what FAL gains over single-task learning that privacy leaves."""
    one, single, own = (by.mean(size, name, tasks) for name in (FAL, SINGLE, epsilon))
    return (single - own) / (single - one)


def judge(found: list[Row]) -> Iterator[Verdict]:
    """Claims that were written down before the first run."""
    tar, excess = Rows(found, TAR, "privacy"), Rows(found, EXCESS, "privacy")
    sizes = list(dict.fromkeys(r["within"] for r in tar.all))
    epsilons = [m for m in tar.methods(sizes[0]) if m not in (FAL, SINGLE)]
    few, many = tar.shots[0], tar.shots[-1]
    middle = epsilons[len(epsilons) // 2]

    bounded = [r for r in tar.all if r["bounds"]]
    above = [r for r in bounded if r["mean"] > np.mean(r["bounds"])]
    worst = max(r["mean"] / np.mean(r["bounds"]) for r in bounded)
    claim = "the mean TAR of private runs is at most the theorem's bound, in every setting"
    said = f"{len(above)} of {len(bounded)} above; at most {worst:.3f} of the bound"
    yield tar.verdict("bound", "theory", claim, not above, said)

    over = [r for r in excess.all if r["low"] > np.mean(r["bounds"])]
    shares = [r["mean"] / np.mean(r["bounds"]) for r in excess.all]
    claim = "at a fixed noise Σ B exceeds that without noise by no more than the price"
    said = f"{min(shares):.2f} to {max(shares):.2f} of the price"
    yield excess.verdict("price", "theory", claim, not over, said, "intervals")

    ratios = {s: excess.mean(s, "Σ B", many) / excess.mean(s, "Σ B", few) for s in sizes}
    claim = f"that excess does not grow with T: at {many} tasks at most {GROWS} of that at {few}"
    said = "; ".join(f"{s}: {v:.2f}" for s, v in ratios.items())
    yield excess.verdict("T", "theory", claim, max(ratios.values()) <= GROWS, said)

    def lost(size: str, tasks: int) -> float:
        return tar.mean(size, middle, tasks) - tar.mean(size, FAL, tasks)

    falls = {s: lost(s, few) / lost(s, many) for s in sizes}
    claim = f"epsilon {middle}: privacy costs at least {FALLS:g} times less TAR at {many} tasks"
    said = "; ".join(f"{s}: {v:.1f}" for s, v in falls.items())
    yield tar.verdict("falls", "ours", f"{claim} than at {few}", min(falls.values()) >= FALLS, said)

    keeps = {s: kept(tar, s, middle, many) for s in sizes}
    claim = (
        f"epsilon {middle}, {many} tasks: {KEPT:.0%} of the gain over single-task stays, or more"
    )
    said = "; ".join(f"{s}: {v:.0%}" for s, v in keeps.items())
    yield tar.verdict("kept", "ours", claim, min(keeps.values()) >= KEPT, said)

    keeps = {s: kept(tar, s, epsilons[0], few) for s in sizes}
    claim = f"epsilon {epsilons[0]}, {few} tasks: privacy eats more than half of the gain"
    said = "; ".join(f"{s}: {v:.0%} stays" for s, v in keeps.items())
    yield tar.verdict("eaten", "ours", claim, max(keeps.values()) < LOST, said)


def summary(found: list[Row]) -> list[str]:
    """From which number of tasks on each budget pays, as sentences."""
    tar, said = Rows(found, TAR), []
    for size in dict.fromkeys(r["within"] for r in tar.all):
        for epsilon in (m for m in tar.methods(size) if m not in (FAL, SINGLE)):
            shares = ", ".join(f"{t}: {kept(tar, size, epsilon, t):.0%}" for t in tar.shots)
            said.append(f"{size}, epsilon {epsilon}: of the gain stays, by tasks, {shares}")
    return said

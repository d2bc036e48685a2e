"""The tables that the command prints."""

from __future__ import annotations

import numpy as np

from groups.protocol import SHOTS
from groups.store import Record
from groups.summary import (
    SCORES,
    calibration_error,
    columns,
    coverage,
    coverage_error,
    nonlinear,
    tally,
)


def report(
    records: dict[str, dict[str, Record]], shapes: dict[str, Record], ours: str, others: list[str]
) -> str:
    """Columns won / tied / lost by ``ours``, every lost one by name, intervals, calibration, time.

    Args:
        records: By method and set.
        shapes: What scores are divided by, by set.
        ours: The method of the table.
        others: What it is compared with.
    """
    found = {score: columns(records, shapes, score) for score in SCORES}
    heads = [f"{s} ({sum(ours in c.losses for c in found[s])} columns)" for s in SCORES]
    lines = [f"{ours}: columns won / tied / lost (two standard errors of the paired difference)"]
    lines += [f"{'against':<26}" + "".join(f"{head:>26}" for head in heads)]
    lost = []
    for other in others:
        cells = []
        for score in SCORES:
            by = tally(found[score], ours, other)
            total = sum(map(len, by.values()))
            share = f" ({len(by['lost']) / total:.0%})" if total else ""
            cells.append(" / ".join(str(len(v)) for v in by.values()) + share if total else "–")
            lost += [(score, other, c) for c in by["lost"]]
        lines.append(f"{other:<26}" + "".join(f"{cell:>26}" for cell in cells))
    for other in ("mixed, slopes", "LightGBM + shrunken mean"):
        if other in others:
            said = [
                " / ".join(str(len(v)) for v in tally(nonlinear(found[s]), ours, other).values())
                for s in SCORES[:2]
            ]
            lines.append(f"on nonlinear sets against {other}: R² {said[0]}, log-loss {said[1]}")
    lines += ["", "lost columns: score, peer, set, rows to adapt to: ours, theirs (± 2 errors)"]
    for score, other, c in lost:
        gap = c.against(ours, other)
        lines.append(
            f"  {score:<8} {other:<25} {c.name:<28} k={c.shots}: {c.value(ours):.4f} "
            f"{c.value(other):.4f}  ({gap.mean:+.4f} ± {2 * gap.error:.4f})"
        )
    lines += [
        "",
        f"90 % intervals of {ours} outside 87–93 % on sets of at least 50 groups (± 2 errors)",
    ]
    for name, record in records[ours].items():
        if "covered" in record and name in shapes and len(shapes[name]["rows"]) >= 50:
            cover = coverage(record, shapes[name])
            if off := {k: v for k, v in cover.items() if not 0.87 <= v <= 0.93}:
                error = coverage_error(record, shapes[name])
                said = (f"k={k}: {v:.3f} ± {2 * error[k]:.3f}" for k, v in off.items())
                lines.append(f"  {name:<28} " + ", ".join(said))
    return "\n".join([*lines, "", *_calibration(records, shapes, [ours, *others])])


def scores(records: dict[str, dict[str, Record]], shapes: dict[str, Record]) -> str:
    """R² and log-loss of every method on every set."""
    lines = []
    for score in SCORES[:2]:
        found = columns(records, shapes, score)
        for name in dict.fromkeys(c.name for c in found):
            here = [c for c in found if c.name == name]
            lines.append(f"{name}, {score}" + "".join(f"  k={c.shots}" for c in here))
            for method in here[0].losses:
                lines.append(f"  {method:<26}" + "".join(f"{c.value(method):8.4f}" for c in here))
    return "\n".join(lines)


def _calibration(
    records: dict[str, dict[str, Record]], shapes: dict[str, Record], methods: list[str]
) -> list[str]:
    lines = [
        f"{'':<26}{'90 % intervals cover, k=1,2,4,8':>34}{'outside 87–93 %':>18}"
        f"{'calibration error, k=1,2,4,8':>34}{'fit s':>9}{'adapt ms':>10}"
    ]
    for method in methods:
        here = {n: r for n, r in records[method].items() if n in shapes}
        cover = {
            n: coverage(r, shapes[n])
            for n, r in here.items()
            if "covered" in r and len(shapes[n]["rows"]) >= 50
        }
        means = [_mean([c[k] for c in cover.values() if k in c]) for k in SHOTS]
        cells = [v for c in cover.values() for v in c.values()]
        outside = sum(not 0.87 <= v <= 0.93 for v in cells)
        errors = [
            _mean([
                calibration_error(r["bins"][i])
                for n, r in here.items()
                if "bins" in r and (shapes[n]["rows"][:, i] > 0).sum() >= 20
            ])
            for i in range(len(SHOTS))
        ]  # fmt: skip
        seconds = np.array([r["seconds"] for r in here.values()]).reshape(-1, 3)
        lines.append(
            f"{method:<26}{' '.join(means):>34}"
            f"{f'{outside} of {len(cells)}' if cells else '–':>18}{' '.join(errors):>34}"
            f"{np.median(seconds[:, 0]):>9.3f}{1e3 * np.median(seconds[:, 2]):>10.3f}"
        )
    return lines


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.3f}" if values else "–"

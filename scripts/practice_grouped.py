"""The part of docs/practice.md on real grouped data, from the records in
results/practice/grouped.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from groups import store  # noqa: E402
from groups.protocol import SHOTS  # noqa: E402
from groups.summary import (  # noqa: E402
    SCORES,
    Column,
    calibration_error,
    columns,
    coverage,
    coverage_error,
    nonlinear,
    outside_by_chance,
    tally,
)
from reproduction import markdown  # noqa: E402
from reproduction.markdown import flow  # noqa: E402

OURS = "fmrl"
PEERS = {
    "per-task CV": "`RidgeCV` or `LogisticRegressionCV` on the group's rows alone",
    "pooled CV": "one of them on the rows of all training groups",
    "pooled + shrunken mean": "the same, and the group's mean residual (its log-odds offset, for "
    "two classes) shrunken by empirical Bayes",
    "mixed, intercept": "linear mixed model, random intercept (gpboost's `GPModel`)",
    "mixed, slopes": "… and independent random slopes for every feature that varies inside groups",
    "mixed, correlated slopes": "… correlated (statsmodels' `MixedLM`, REML; up to 5 slopes, "
    "independent ones otherwise); regressions only",
    "gpboost": "gradient-boosted trees with a random intercept",
    "LightGBM": "one for all groups, leaves and rounds by cross-validation over whole groups",
    "LightGBM + shrunken mean": "the same, and a shrunken offset of the group",
}
LATER = {
    "fresh": """from tables that no other list uses, before any was measured. One number was chosen
    with their scores in view: that boosted trees may be cut after every 10 steps, not 50. Before, 4
    log-loss columns were lost to gpboost and 2 to *pooled + shrunken mean*. Nothing else was chosen
    on them, so they say best what to expect elsewhere.""",
    "others": """from packages that it does not name, before any was measured. They are fresh no
    longer: that means are drawn to 0, and that a season is not taken for drift, was decided on them
    and on the sets above, so these numbers flatter `fmrl`.""",
}
COVER = 50  # held-out groups for a set to count in the table of intervals


def read(folder: Path = store.FOLDER) -> dict[str, Any]:
    """Records by method and set, what they are divided by, descriptions, speeds."""
    shapes, about = store.read(store.SHAPES, folder)
    return {
        "records": {m: store.read(m, folder)[0] for m in (OURS, *PEERS)},
        "versions": store.read("gpboost", folder)[1]["versions"],
        "shapes": shapes,
        "sets": about["described"],
        "speed": json.loads((folder.parent / "grouped-speed.json").read_text(encoding="utf-8")),
        "later": {lot: _found(folder.with_name(lot)) for lot in LATER},
    }


def _found(folder: Path) -> dict[str, list[Column]]:
    """Columns by score, of the records in a folder."""
    records = {m: store.read(m, folder)[0] for m in (OURS, *PEERS)}
    shapes, _ = store.read(store.SHAPES, folder)
    return {score: columns(records, shapes, score) for score in SCORES}


def section(data: dict[str, Any]) -> list[str]:
    """The lines of the page."""
    records, shapes = data["records"], data["shapes"]
    found = {score: columns(records, shapes, score) for score in SCORES}
    return [
        *_verdicts(found, data),
        *_scores(found["R²"], "Regressions, R²"),
        *_scores(found["log-loss"], "Two classes, log-loss"),
        *_later("fresh", data["later"]["fresh"], scores=False),
        *_later("others", data["later"]["others"]),
        *_intervals(data),
        *_calibration(data),
        *_times(data),
        *_sets(data["sets"]),
    ]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table; the first column may have no head."""
    return markdown.table(head, rows).replace("|  |", "| |", 1)


def paragraph(text: str) -> str:
    """A paragraph of the page."""
    return textwrap.fill(flow(text), 140, break_long_words=False, break_on_hyphens=False)


def _tallies(found: dict[str, list[Column]]) -> str:
    """Columns won, tied and lost against every peer."""
    rows = []
    for peer in PEERS:
        cells = []
        for score in SCORES:
            won, tied, lost = (len(v) for v in tally(found[score], OURS, peer).values())
            cells.append(f"{won} / {tied} / **{lost}**" if won + tied + lost else "–")
        rows.append([peer, *cells])
    return table(["against", *(f"{s}, {len(found[s])} columns" for s in SCORES)], rows)


def _later(lot: str, found: dict[str, list[Column]], scores: bool = True) -> list[str]:
    sets = [len({c.name for c in found[score]}) for score in SCORES[:2]]
    lines = [
        "### Sets that came last" if lot == "fresh" else "### Other sets",
        "",
        paragraph(
            f"""{sum(sets)} more real sets ({sets[0]} regressions, {sets[1]} with two classes),
            chosen by the same rule {LATER[lot]} Of large tables some rows of every group are drawn.
            `python benchmarks/grouped.py --lot {lot}`; the list is in benchmarks/groups/{lot}.py,
            and `--table --scores` prints every score."""
        ),
        "",
        _tallies(found),
        "",
    ]
    if lost := [_lost(c) for score in SCORES[:2] for c in found[score] if _lost(c)]:
        lines += [paragraph(f"Lost (ours, theirs): {'; '.join(lost)}."), ""]
    if scores:
        lines += _scores(found["R²"], "Other regressions, R²")
        lines += _scores(found["log-loss"], "Other sets with two classes, log-loss")
    return lines


def _lost(column: Column) -> str:
    """A column with the peers it is lost to."""
    theirs = [m for m in PEERS if m in column.losses and column.against(OURS, m).verdict == "lost"]
    if not theirs:
        return ""
    each = ", ".join(f"{m.replace(',', '')} {column.value(m):.3f}" for m in theirs)
    where = f"{column.name}, {column.score} at {column.shots}"
    return f"{where}: {column.value(OURS):.3f}, {each}".replace("-0.", "−0.")


def _verdicts(found: dict[str, list[Column]], data: dict[str, Any]) -> list[str]:
    kinds = [described["binary"] for described in data["sets"].values()]
    lines = [
        "## Real groups, nothing tuned",
        "",
        paragraph(
            f"""{len(kinds)} real grouped sets of R's packages ({kinds.count(False)}
            regressions, {kinds.count(True)} with two classes; the list and the rule by which
            they were chosen are below). Three folds of whole groups (three times with other
            folds where there are at most 60 groups); of every held-out group 1, 2, 4 or 8
            random rows are given, and its other rows are scored. All methods get the same
            rows. A column is one set at one number of rows, if at least 20 groups have rows
            left to score. It is won or lost where the paired difference of the mean squared
            error, log-loss or accuracy over all scored rows is more than two standard errors
            from zero, groups being the sample; two equal methods would lose one column in
            forty to each other by chance. `python benchmarks/grouped.py` measures all of it,
            `--only fmrl` the estimators alone."""
        ),
        "",
        "Columns won / tied / **lost** by `MetaRegressor()` and `MetaClassifier()`:",
        "",
    ]
    lines.append(_tallies(found))
    hard = {score: nonlinear(found[score]) for score in SCORES[:2]}
    said = [
        f"{score} {' / '.join(str(len(v)) for v in tally(hard[score], OURS, peer).values())}"
        for peer in ("mixed, slopes", "LightGBM + shrunken mean")
        for score in hard
    ]
    counts = [len({c.name for c in here}) for here in hard.values()]
    lines += [
        "",
        paragraph(
            f"""On the {counts[0]} regressions and {counts[1]} sets with two classes where
            *LightGBM + shrunken mean* beats *mixed, slopes* in some column (a linear common
            part is not enough there; chosen by that comparison, which favours the trees), won
            / tied / lost are: against *mixed, slopes* {said[0]}, {said[1]}; against *LightGBM
            + shrunken mean* {said[2]}, {said[3]}."""
        ),
    ]
    lines += ["", "The peers, one thread, no setting of ours tuned to a set:", ""]
    lines += [f"- *{peer}*: {what}." for peer, what in PEERS.items()]
    said = ", ".join(f"{p} {data['versions'][p]}" for p in ("gpboost", "lightgbm", "statsmodels"))
    return [
        *lines,
        "",
        paragraph(
            f"""Mixed models and gpboost are fitted to the training groups; a new group's effects
            are then their exact posterior given its rows (for two classes by quadrature, with
            slopes by Laplace's method), and probabilities are averaged over it.
            Versions: {said}."""
        ),
        "",
    ]


def _scores(found: list[Column], title: str) -> list[str]:
    about = "Of `fmrl`, and in brackets of the best peer of that column, at 1 / 2 / 4 / 8 rows; "
    about += "every lost column with the peers it is lost to."
    rows = []
    by: dict[str, dict[int, Column]] = {}
    for column in found:
        by.setdefault(column.name, {})[column.shots] = column
    for name, here in by.items():
        cells, lost = [], []
        for k in SHOTS:
            if k not in here:
                cells.append("–")
                continue
            column = here[k]
            values = {m: column.value(m) for m in column.losses}
            peers = [values[m] for m in PEERS if m in values]
            best = min(peers) if column.score == "log-loss" else max(peers)
            cells.append(f"{values[OURS]:.3f} ({best:.3f})".replace("-", "−"))
            behind = [m for m in PEERS if m in values]
            behind = [m for m in behind if column.against(OURS, m).verdict == "lost"]
            if behind:
                lost.append(f"{k}: {', '.join(m.replace(',', '') for m in behind)}")
        rows.append([name, *cells, "; ".join(lost) or "–"])
    return [f"### {title}", "", about, "", table(["set", *map(str, SHOTS), "lost to"], rows), ""]


def _intervals(data: dict[str, Any]) -> list[str]:
    about = f"Share of scored rows inside, on the regressions with at least {COVER} groups: mean "
    about += "over sets at 1 / 2 / 4 / 8 rows, the lowest and the highest of all columns, how many "
    about += "lie outside 87–93 %, and how many further from 90 % than two standard errors, with "
    about += "whole groups as what is drawn: one in twenty by chance. Exact intervals whose "
    about += "coverage has the standard errors of `fmrl`'s would lie outside in "
    rows = []
    for method in (OURS, *PEERS):
        given = [
            (record, data["shapes"][name])
            for name, record in data["records"][method].items()
            if "covered" in record and data["sets"][name]["groups"] >= COVER
        ]
        if not given:
            continue
        cover = [coverage(*one) for one in given]
        errors = [v for one in given for v in coverage_error(*one).values()]
        if method == OURS:
            about += f"{outside_by_chance(errors):.1f} columns. How `fmrl` finds its widths was "
            about += "chosen among nine ways on these sets, so its line flatters it a little."
        every = [v for c in cover for v in c.values()]
        means = [f"{np.mean([c[k] for c in cover if k in c]):.3f}" for k in SHOTS]
        outside = sum(not 0.87 <= v <= 0.93 for v in every)
        far = sum(abs(v - 0.9) > 2 * e for v, e in zip(every, errors, strict=True))
        ends = f"{min(every):.3f}", f"{max(every):.3f}", f"{outside} of {len(every)}", str(far)
        rows.append([method, *means, *ends])
    head = ["", *map(str, SHOTS), "lowest", "highest", "outside", "two errors away"]
    lines = ["### 90 % intervals", "", about, "", table(head, rows)]
    if not any("covered" in r for r in data["records"][OURS].values()):
        lines += ["", "The estimators offer no intervals."]
    return [*lines, ""]


def _calibration(data: dict[str, Any]) -> list[str]:
    about = "Expected calibration error (ten bins), mean over the sets with two classes, at 1 / 2 "
    about += "/ 4 / 8 rows."
    lines = []
    for method in (OURS, *PEERS):
        rows = {n: r["bins"] for n, r in data["records"][method].items() if "bins" in r}
        cells = []
        for i in range(len(SHOTS) if rows else 0):
            enough = [n for n in rows if (data["shapes"][n]["rows"][:, i] > 0).sum() >= 20]
            cells.append(f"{np.mean([calibration_error(rows[n][i]) for n in enough]):.3f}")
        if cells:
            lines.append([method, *cells])
    found = table(["", *map(str, SHOTS)], lines)
    return ["### Calibration of probabilities", "", about, "", found, ""]


def _times(data: dict[str, Any]) -> list[str]:
    speed = data["speed"]["results"]
    about = "CPU time of one thread on these sets, median over sets: one `fit` (tuning included), "
    about += "and adapting to one group (without the trees' own predictions)."
    drawn = "Drawn regressions, 20 rows × 8 features a task "
    drawn += "(`python benchmarks/grouped.py --speed`):"
    rows = []
    for method in (OURS, *PEERS):
        seconds = np.array([r["seconds"] for r in data["records"][method].values()])
        fit, adapt = np.median(seconds[:, 0]), 1e3 * np.median(seconds[:, 2])
        rows.append([method, f"{fit:.3f}", f"{seconds[:, 0].max():.2f}", f"{adapt:.3f}"])
    fits = []
    for x in speed["fits"]:
        ours, peer = x["fmrl s"], x["peer s"]
        cells = f"{ours:.2f}", x["peer"], f"{peer:.2f}", f"{peer / ours:.2f}"
        fits.append([f"{x['tasks']:,} tasks", *cells])
    adapts = []
    for x in speed["adaptations"]:
        many = f"{x['many µs']:.0f}" if "many µs" in x else "–"
        adapts.append([x["kind"], f"{x['one ms']:.2f}", many])
    lines = ["### Time", "", about, "", table(["", "fit, s", "slowest fit, s", "adapt, ms"], rows)]
    lines += ["", drawn, "", table(["`fit` of", "fmrl, s", "peer", "peer, s", "ratio"], fits), ""]
    lines.append(table(["`adapt`, 8 rows", "one at a time, ms", "many at once, µs each"], adapts))
    streams = []
    for x in speed["streams"]:
        ours, river = x["learn_many rows/s"], x["river rows/s"]
        streams.append([str(x["classes"]), f"{ours:,.0f}", f"{river:,.0f}", f"{ours / river:.1f}"])
    head = ["classes", "`learn_many`, rows a second", "river", "ratio"]
    return [*lines, "", *([table(head, streams), ""] if streams else [])]


def _sets(described: dict[str, dict[str, Any]]) -> list[str]:
    from groups import sets

    rule = (sets.__doc__ or "").partition("\n- ")[2]
    lines = ["### The sets", "", "The rule by which a set is here:", "", f"- {rule.strip()}", ""]
    rows = []
    for name, x in sorted(described.items(), key=lambda item: (item[1]["binary"], item[0])):
        target = f"{x['target']}{' (two classes)' if x['binary'] else ''}"
        counts = f"{x['rows']:,}", str(x["groups"]), str(x["features"])
        rows.append([name, x["source"], target, *counts])
    return [*lines, table(["set", "of", "target", "rows", "groups", "features"], rows), ""]

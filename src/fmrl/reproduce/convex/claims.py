"""What the paper says about its convex figures, as functions from rows to verdicts.

The thresholds are not moved to suit a result. "At every m" means at every m; "largest at small m":
the ratio is defined at every m, and the largest is above 1 and at one of the two smallest m;
"highest" and "lowest": among the curves the paper draws in that panel; "approach": the distance
shrinks from the smallest to the largest m; "linear": a log–log slope between 0.8 and 1.25 with R² ≥
0.95; "within 2 points": a mean difference ≥ −0.02.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fmrl.reproduce.convex import batch, panels
from fmrl.reproduce.convex.compositions import BLOCKED, SUMMED
from fmrl.reproduce.verdict import Row, Rows, Verdict, listed

ORIGINAL_RADIUS = 0.32
POINTS = 0.02
LINEAR = (0.8, 1.25)
STRAIGHT = 0.95
# The curves of the paper's panels: rivals for worst and best, whatever else is drawn beside them.
DRAWN = {
    "FTRL": ("FAL", "strawman", "single-task", "omniscient"),
    "OGD": ("FAL", "FLI-Online", "FLI-Batch", "single-task", "omniscient"),
}


def samples(rows: Rows) -> Iterator[Verdict]:
    """The samples figure, under one preset."""
    shots = rows.shots
    for panel, source in (("FTRL", "paper"), ("OGD", "ours")):
        found = [(m, *rows.paired(panel, "strawman", "FAL", m)) for m in shots]
        said = (f"{m}: {d:.3f} [{low:.3f}, {high:.3f}]" for m, d, low, high in found)
        numbers = f"strawman − FAL by m: {'; '.join(said)}"
        claim = f"FAL has lower TAR than the strawman at every m ({panel})"
        ahead = all(low > 0 for _, _, low, _ in found)
        yield rows.verdict(f"{panel.lower()}.strawman", source, claim, ahead, numbers, "intervals")
    blocked = f"OGD, {BLOCKED}"
    for panel, tag in (("FTRL", "ftrl"), (SUMMED, "summed"), ("OGD", "ogd"), (blocked, "blocked")):
        ratio = rows.ratio(panel, "strawman", "FAL")
        defined = bool(np.isfinite(ratio).all())
        early = defined and max(ratio) > 1 and int(np.argmax(ratio)) < 2
        numbers = f"strawman / FAL by m: {listed(shots, ratio)}"
        numbers += "" if defined else " (undefined where FAL's TAR is not positive)"
        claim = f"The advantage over the strawman is largest at small m ({panel})"
        source = "paper" if panel == "FTRL" else "ours"
        yield rows.verdict(f"{tag}.advantage", source, claim, early, numbers)
    for method in ("FLI-Batch", "FLI-Online"):
        ratio = rows.ratio("OGD", method, "FAL")
        nearer = abs(ratio[-1] - 1) < abs(ratio[0] - 1)
        claim = f"{method} approaches FAL as m grows (OGD)"
        numbers = f"{method} / FAL by m: {listed(shots, ratio)}"
        yield rows.verdict(f"{method.lower()}.approaches", "paper", claim, nearer, numbers)
    for panel in DRAWN:
        claim = f"Single-task learning has the highest TAR at every m ({panel})"
        yield _extreme(rows, panel, "single-task", 1, claim)
        claim = f"The omniscient learner has the lowest TAR at every m ({panel})"
        yield _extreme(rows, panel, "omniscient", -1, claim)
    bounded = [r for r in rows.all if r.get("bound") is not None]
    near = max(bounded, key=lambda r: r["mean"] / r["bound"])
    numbers = f"{len(bounded)} curves and m; nearest to its bound at "
    numbers += f"{near['mean'] / near['bound']:.2f} of it: {near['within']}, {near['method']}, "
    numbers += f"m = {near['shots']}"
    below = all(r["mean"] <= r["bound"] for r in bounded)
    claim = "TAR is below the bound of Theorem A.1 everywhere"
    yield rows.verdict("bound", "theory", claim, below, numbers)
    slope = {panel: _slope(shots, rows.means(panel, "FAL"))[0] for panel in DRAWN}
    numbers = "slope: " + ", ".join(f"{panel} {s:.2f}" for panel, s in slope.items())
    claim = "FAL's TAR grows more slowly than m (log–log slope below 1)"
    yield rows.verdict("sublinear", "theory", claim, max(slope.values()) < 1, numbers)


def _extreme(rows: Rows, panel: str, method: str, sign: int, claim: str) -> Verdict:
    """Whether ``method`` has the highest (sign 1) or lowest (−1) TAR of the paper's curves."""
    others, holds, numbers = [k for k in DRAWN[panel] if k != method], True, []
    for m in rows.shots:
        rival = max(others, key=lambda k, m=m: sign * rows.mean(panel, k, m))
        mine, theirs = (rows.mean(panel, k, m) for k in (method, rival))
        holds = holds and sign * mine > sign * theirs
        numbers.append(f"{m}: {mine:.3f} v. {theirs:.3f} ({rival})")
    return rows.verdict(f"{panel.lower()}.{method}", "paper", claim, holds, "; ".join(numbers))


def similar(rows: Rows) -> Iterator[Verdict]:
    """The similarity figure."""
    few, many, one = rows.shots[0], rows.shots[-1], "single value"
    real = rows.means(panels.REAL, "radius")
    claim = f"The optima of {many}-shot tasks lie in a smaller ball than those of {few}-shot tasks"
    numbers = f"radius by m: {listed(rows.shots, real, '.3f')}"
    yield rows.verdict("shrinks", "paper", claim, real[-1] < real[0], numbers, one)
    claim = f"The optima of {many}-shot tasks lie in a ball of radius {ORIGINAL_RADIUS}"
    from_mean = max(rows.at(panels.REAL, "radius", many)["from_mean"])
    numbers = f"smallest enclosing ball {real[-1]:.3f}; about their mean {from_mean:.3f}"
    yield rows.verdict("radius", "paper", claim, real[-1] <= ORIGINAL_RADIUS, numbers, one)
    claim = f"Even {few}-shot optima lie in a ball clearly smaller than Θ (radius below 0.9)"
    yield rows.verdict("one-shot", "paper", claim, real[0] < 0.9, f"radius {real[0]:.3f}", one)
    a, b, c = (rows.mean(variant, "radius", many) for variant in panels.VARIANTS)
    claim = "The labels are what makes the tasks similar: permuting them within each task widens "
    claim += f"the ball at {many} shots"
    numbers = f"radius {a:.3f} as they are, {b:.3f} with labels permuted"
    yield rows.verdict("labels", "ours", claim, b > a, numbers)
    claim = "The optima stay close without the direction common to all samples: centred features "
    claim += f"widen the {many}-shot ball by less than half"
    numbers = f"radius {a:.3f} as they are, {c:.3f} with features centred"
    yield rows.verdict("direction", "ours", claim, c < 1.5 * a, numbers, one)


def _slope(x, y) -> tuple[float, float]:
    """Slope and R² of log y on log x."""
    x, y = (np.log(np.asarray(a, dtype=float)) for a in (x, y))
    slope, level = np.polyfit(x, y, 1)
    spread, left = ((y - y.mean()) ** 2).sum(), ((y - slope * x - level) ** 2).sum()
    return float(slope), float(1 - left / spread) if spread > 0 else 0.0


def grows(rows: Rows) -> Iterator[Verdict]:
    """The growth figure."""
    for within, name in ((panels.LEFT, "mixture"), (panels.RIGHT, "tasks")):
        here = sorted((r for r in rows.all if r["within"] == within), key=lambda r: r["samples"])
        samples, alpha = [r["samples"] for r in here], [r["mean"] for r in here]
        slope, fit = _slope(samples, alpha)
        linear = LINEAR[0] <= slope <= LINEAR[1] and fit >= STRAIGHT
        share = float(np.mean([r["multiplier"] / r["mean"] for r in here]))
        claim = "α of the quadratic-growth condition is linear in the number of samples "
        numbers = f"log–log slope {slope:.2f}, R² {fit:.3f}; α by samples: "
        numbers += (
            f"{listed(samples, alpha, '.3g')}; {share:.0%} of α is the multiplier of the ball"
        )
        yield rows.verdict(name, "paper", f"{claim}({within})", linear, numbers)


def batched(rows: Rows) -> Iterator[Verdict]:
    """The batch figure, under one preset."""
    flat = Rows(rows.all, rows.preset, rows.figure, one_panel=True)
    later = [m for m in flat.shots if m >= 8]
    for method, tag in ((batch.AVERAGE, "average"), (batch.LAST, "last")):
        ahead = {m: flat.paired("", method, batch.FIRST, m) for m in flat.shots}
        said = {
            m: f"{m}: {100 * d:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            for m, (d, low, high) in ahead.items()
        }
        numbers = "points above MAML by m: " + "; ".join(said.values())
        claim = f"{method}: accuracy within 2 points of tuned first-order MAML at every m"
        near = all(d >= -POINTS for d, _, _ in ahead.values())
        yield rows.verdict(f"{tag}.near", "paper", claim, near, numbers)
        numbers = "points above MAML by m: " + "; ".join(said[m] for m in later)
        claim = f"{method}: accuracy above tuned first-order MAML for m ≥ 8"
        above = all(ahead[m][0] > 0 for m in later)
        yield rows.verdict(f"{tag}.above", "paper", claim, above, numbers)
    learners, leads, numbers = (batch.AVERAGE, batch.LAST, batch.FIRST, batch.FULL), [], []
    for m in flat.shots:
        best = max(learners, key=lambda k, m=m: flat.mean("", k, m))
        leads.append(flat.paired("", best, batch.ALONE, m)[0])
        numbers.append(f"{m}: {100 * leads[-1]:+.1f} ({best})")
    claim = "The best meta-learner beats single-task logistic regression at every m"
    numbers = f"points above by m: {'; '.join(numbers)}"
    yield rows.verdict("single-task", "ours", claim, min(leads) > 0, numbers)


CLAIMS = {"similarity": similar, "growth": grows, "samples": samples, "batch": batched}


def judge(figure: str, rows: list[Row]) -> list[Verdict]:
    """All verdicts of a figure, under every preset of its rows ('any' where no algorithm plays)."""
    presets = dict.fromkeys(r["preset"] for r in rows)
    return [v for preset in presets for v in CLAIMS[figure](Rows(rows, preset, figure))]

"""What the paper says about its convex figures, as functions from rows to verdicts.

The thresholds are not moved to suit a result. "At every m" means at every m; "largest at small m":
the ratio is defined at every m, and the largest is above 1 and at one of the two smallest m;
"highest" and "lowest": among the curves the paper draws in that panel; "approach": the distance
shrinks from the smallest to the largest m; "linear": a log–log slope between 0.8 and 1.25 with R² ≥
0.95; "within 2 points": a mean difference ≥ −0.02."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fmrl.reproduce.convex import batch, growth, similarity
from fmrl.reproduce.convex.table import BLOCKED, SUMMED
from fmrl.reproduce.verdict import Row, Rows, Verdict, listed

ORIGINAL_RADIUS = 0.32
POINTS = 0.02
LINEAR = (0.8, 1.25)
STRAIGHT = 0.95
DRAWN = {  # the curves of the paper's panels: rivals for worst and best, whatever else is drawn beside them
    "FTRL": ("FAL", "strawman", "single-task", "omniscient"),
    "OGD": ("FAL", "FLI-Online", "FLI-Batch", "single-task", "omniscient"),
}


def samples(rows: Rows) -> Iterator[Verdict]:
    """The samples figure, under one preset."""

    def say(
        id_: str, source: str, claim: str, passed: bool, numbers: str, by: str = "means"
    ) -> Verdict:
        return Verdict(
            f"samples.{id_}", "samples", rows.preset, source, claim, bool(passed), numbers, by
        )

    shots = rows.shots
    for panel in ("FTRL", "OGD"):
        tag, source = panel.lower(), "paper" if panel == "FTRL" else "ours"
        apart = [rows.paired(panel, "strawman", "FAL", m) for m in shots]
        text = "; ".join(
            f"{m}: {d:.3f} [{low:.3f}, {high:.3f}]"
            for m, (d, low, high) in zip(shots, apart, strict=True)
        )
        claim = f"FAL has lower TAR than the strawman at every m ({panel})"
        ahead = all(low > 0 for _, low, _ in apart)
        yield say(
            f"{tag}.strawman", source, claim, ahead, f"strawman − FAL by m: {text}", "intervals"
        )
    for panel, source in (
        ("FTRL", "paper"),
        (SUMMED, "ours"),
        ("OGD", "ours"),
        (f"OGD, {BLOCKED}", "ours"),
    ):
        ratio = rows.ratio(panel, "strawman", "FAL")
        defined = bool(np.isfinite(ratio).all())
        early = defined and max(ratio) > 1 and int(np.argmax(ratio)) < 2
        note = "" if defined else " (undefined where FAL's TAR is not positive)"
        claim = f"The advantage over the strawman is largest at small m ({panel})"
        tag = {"FTRL": "ftrl", SUMMED: "summed", "OGD": "ogd"}.get(panel, "blocked")
        yield say(
            f"{tag}.advantage",
            source,
            claim,
            early,
            f"strawman / FAL by m: {listed(shots, ratio)}{note}",
        )
    for method in ("FLI-Batch", "FLI-Online"):
        ratio = rows.ratio("OGD", method, "FAL")
        away = [abs(r - 1) for r in ratio]
        claim = f"{method} approaches FAL as m grows (OGD)"
        yield say(
            f"{method.lower()}.approaches",
            "paper",
            claim,
            away[-1] < away[0],
            f"{method} / FAL by m: {listed(shots, ratio)}",
        )
    for panel in ("FTRL", "OGD"):
        for method, worst, claim in (
            ("single-task", True, f"Single-task learning has the highest TAR at every m ({panel})"),
            (
                "omniscient",
                False,
                f"The omniscient learner has the lowest TAR at every m ({panel})",
            ),
        ):
            others = [m for m in DRAWN[panel] if m != method]
            pick = max if worst else min
            rival = [pick(others, key=lambda o, m=m: rows.mean(panel, o, m)) for m in shots]
            mine, theirs = (
                [rows.mean(panel, k, m) for k, m in zip(names, shots, strict=True)]
                for names in ([method] * len(shots), rival)
            )
            holds = all(a > b if worst else a < b for a, b in zip(mine, theirs, strict=True))
            text = "; ".join(
                f"{m}: {a:.3f} v. {b:.3f} ({r})"
                for m, a, b, r in zip(shots, mine, theirs, rival, strict=True)
            )
            yield say(f"{panel.lower()}.{method}", "paper", claim, holds, text)
    bounded = [r for r in rows.all if r.get("bound") is not None]
    near = max(bounded, key=lambda r: r["mean"] / r["bound"])
    text = f"{len(bounded)} curves and m; nearest to its bound at {near['mean'] / near['bound']:.2f} of it: "
    text += f"{near['within']}, {near['method']}, m = {near['shots']}"
    claim = "TAR is below the bound of Theorem A.1 everywhere"
    yield say("bound", "theory", claim, all(r["mean"] <= r["bound"] for r in bounded), text)
    slope = {
        panel: _slope(shots, [rows.mean(panel, "FAL", m) for m in shots])[0]
        for panel in ("FTRL", "OGD")
    }
    text = ", ".join(f"{panel} {s:.2f}" for panel, s in slope.items())
    claim = "FAL's TAR grows more slowly than m (log–log slope below 1)"
    yield say("sublinear", "theory", claim, max(slope.values()) < 1, f"slope: {text}")


def similar(rows: Rows) -> Iterator[Verdict]:
    """The similarity figure."""

    def say(
        id_: str, source: str, claim: str, passed: bool, numbers: str, by: str = "single value"
    ) -> Verdict:
        return Verdict(
            f"similarity.{id_}", "similarity", "any", source, claim, bool(passed), numbers, by
        )

    few, many = rows.shots[0], rows.shots[-1]
    radius = {(v, m): rows.mean(v, "radius", m) for v in similarity.VARIANTS for m in rows.shots}
    real = [radius[similarity.REAL, m] for m in rows.shots]
    yield say(
        "shrinks",
        "paper",
        f"The optima of {many}-shot tasks lie in a smaller ball than those of {few}-shot tasks",
        real[-1] < real[0],
        f"radius by m: {listed(rows.shots, real, '.3f')}",
    )
    yield say(
        "radius",
        "paper",
        f"The optima of {many}-shot tasks lie in a ball of radius {ORIGINAL_RADIUS}",
        real[-1] <= ORIGINAL_RADIUS,
        f"smallest enclosing ball {real[-1]:.3f}; about their mean {max(rows.at(similarity.REAL, 'radius', many)['from_mean']):.3f}",
    )
    yield say(
        "one-shot",
        "paper",
        f"Even {few}-shot optima lie in a ball clearly smaller than Θ (radius below 0.9)",
        real[0] < 0.9,
        f"radius {real[0]:.3f}",
    )
    a, b = radius[similarity.REAL, many], radius[similarity.PERMUTED, many]
    yield say(
        "labels",
        "ours",
        f"The labels are what makes the tasks similar: permuting them within each task widens the ball at {many} shots",
        b > a,
        f"radius {a:.3f} as they are, {b:.3f} with labels permuted",
        "means",
    )
    c = radius[similarity.CENTRED, many]
    yield say(
        "direction",
        "ours",
        f"The optima stay close without the direction common to all samples: centred features widen the {many}-shot ball by less than half",
        c < 1.5 * a,
        f"radius {a:.3f} as they are, {c:.3f} with features centred",
    )


def _slope(x, y) -> tuple[float, float]:
    """Slope and R² of log y on log x."""
    x, y = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    slope, level = np.polyfit(x, y, 1)
    spread = ((y - y.mean()) ** 2).sum()
    return float(slope), float(
        1 - ((y - slope * x - level) ** 2).sum() / spread
    ) if spread > 0 else 0.0


def grows(rows: Rows) -> Iterator[Verdict]:
    """The growth figure."""
    for within in (growth.LEFT, growth.RIGHT):
        here = sorted((r for r in rows.all if r["within"] == within), key=lambda r: r["samples"])
        samples, alpha = [r["samples"] for r in here], [r["mean"] for r in here]
        slope, fit = _slope(samples, alpha)
        share = float(np.mean([r["multiplier"] / r["mean"] for r in here]))
        yield Verdict(
            f"growth.{'mixture' if within == growth.LEFT else 'tasks'}",
            "growth",
            "any",
            "paper",
            f"α of the quadratic-growth condition is linear in the number of samples ({within})",
            bool(LINEAR[0] <= slope <= LINEAR[1] and fit >= STRAIGHT),
            f"log–log slope {slope:.2f}, R² {fit:.3f}; α by samples: {listed(samples, alpha, '.3g')}; "
            f"{share:.0%} of α is the multiplier of the ball",
        )


def batched(rows: Rows) -> Iterator[Verdict]:
    """The batch figure, under one preset."""

    def say(id_: str, source: str, claim: str, passed: bool, numbers: str) -> Verdict:
        return Verdict(f"batch.{id_}", "batch", rows.preset, source, claim, bool(passed), numbers)

    flat = Rows([r | {"within": ""} for r in rows.all], rows.preset)
    shots, later = flat.shots, [m for m in flat.shots if m >= 8]

    def differences(a: str, b: str, where: list[int]) -> tuple[list[float], str]:
        found = [flat.paired("", a, b, m) for m in where]
        return [d for d, _, _ in found], "; ".join(
            f"{m}: {100 * d:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            for m, (d, low, high) in zip(where, found, strict=True)
        )

    for method, tag in ((batch.AVERAGE, "average"), (batch.LAST, "last")):
        d, text = differences(method, batch.FIRST, shots)
        claim = f"{method}: accuracy within 2 points of tuned first-order MAML at every m"
        yield say(
            f"{tag}.near", "paper", claim, min(d) >= -POINTS, f"points above MAML by m: {text}"
        )
        d, text = differences(method, batch.FIRST, later)
        claim = f"{method}: accuracy above tuned first-order MAML for m ≥ 8"
        yield say(f"{tag}.above", "paper", claim, min(d) > 0, f"points above MAML by m: {text}")
    best = [
        max(
            (batch.AVERAGE, batch.LAST, batch.FIRST, batch.FULL),
            key=lambda k, m=m: flat.mean("", k, m),
        )
        for m in shots
    ]
    d = [flat.paired("", k, batch.ALONE, m) for k, m in zip(best, shots, strict=True)]
    text = "; ".join(
        f"{m}: {100 * x:+.1f} ({k})" for m, (x, _, _), k in zip(shots, d, best, strict=True)
    )
    claim = "The best meta-learner beats single-task logistic regression at every m"
    yield say(
        "single-task", "ours", claim, min(x for x, _, _ in d) > 0, f"points above by m: {text}"
    )


CLAIMS = {"similarity": similar, "growth": grows, "samples": samples, "batch": batched}
SHARED = ("similarity", "growth")  # figures without an algorithm, so without presets


def judge(figure: str, rows: list[Row]) -> list[Verdict]:
    """All verdicts of a figure."""
    presets = ["any"] if figure in SHARED else list(dict.fromkeys(r["preset"] for r in rows))
    return [v for preset in presets for v in CLAIMS[figure](Rows(rows, preset))]

"""The plain-English paragraph of a certificate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmrl.theory.certificate.value import Certificate

MEANING = {
    "start": "how far the optima were from where the tasks began",
    "steps": "the price of the steps themselves",
    "first task": "the first task, which starts knowing nothing",
    "first task and guess": "the first task and the guess it needs",
    "moving": "an initialisation that keeps moving",
    "deviation": "how far the optima lie from their mean",
    "guess": "guessing the similarity",
    "violations": "tasks further off than guessed",
    "task diameter": "how far apart the optima are",
    "optima not exact": "update vectors that are not the optima",
    "mean not exact": "a mean of update vectors that is not that of the optima",
    "solver gap": "what the solver left undone",
}


def reading(certificate: Certificate) -> str:
    """What a reader who skips the tables should take away."""
    if not certificate.applicable:
        return f"No guarantee can be given for this run: {certificate.reason}."
    low, high = certificate.interval
    regret = (
        f"{high:.4g}"
        if math.isclose(low, high, rel_tol=1e-4, abs_tol=1e-12)
        else f"between {low:.4g} and {high:.4g}"
    )
    best, theorem = certificate.bounds[0], certificate.theorem
    ratio = certificate.slack(best)[1]
    lines = [f"Over {certificate.tasks} tasks the regret was {regret} per task on average."]
    times = f", {ratio:.3g} times what was measured" if math.isfinite(ratio) else ""
    lines.append(f"It is proved to be at most {best.total:.4g} ({best.name}{times}).")
    if theorem is not None and theorem is not best:
        ratio = certificate.slack(theorem)[1]
        times = f" ({ratio:.3g} times what was measured)" if math.isfinite(ratio) else ""
        lines.append(f"From similarity alone, the {theorem.name} gives {theorem.total:.4g}{times}.")
    lead = theorem or best
    share = lead.terms[lead.dominant] / lead.total if lead.total > 0 else 0.0
    lines.append(f"Its largest part, {share:.0%}, is {MEANING.get(lead.dominant, lead.dominant)}.")
    star, whole = certificate.similarity.get("D*"), certificate.similarity.get("D")
    if star is not None and whole and math.isfinite(whole) and math.isfinite(star):
        fraction = star / whole
        verdict = "the tasks are alike" if fraction < 0.5 else "the tasks are not much alike"
        lines.append(
            f"The optima span {fraction:.0%} of the domain (D* = {star:.3g} of {whole:.3g}): {verdict}."
        )
    if certificate.similarity.get("D*") is not None:
        count = len(certificate.violations)
        last = f", last in task {certificate.violations[-1]}" if count else ""
        lines.append(f"The guess was violated {count} time{'' if count == 1 else 's'}{last}.")
    assumed = [a.name for a in certificate.assumptions if a.status == "assumed"]
    false = [a.name for a in certificate.assumptions if a.status == "false"]
    if false:
        lines.append(f"Not true of this run, and so not used: {', '.join(false)}.")
    if assumed:
        lines.append(f"Taken on trust: {', '.join(assumed)}.")
    if not assumed and not false:
        lines.append("Every assumption was checked.")
    return " ".join(lines)

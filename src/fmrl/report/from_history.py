"""facts_of: everything a history alone can say, as facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmrl.core.history import History
from fmrl.records import versions
from fmrl.report.facts import Facts
from fmrl.report.from_values import certificate_facts, coefficients, curves, similarity_map
from fmrl.theory.bounds.bound import numbers
from fmrl.theory.certificate import certify

KEEP = "fmrl.run(algo, tasks, keep='vectors')"


def facts_of(
    history: History,
    tasks: Sequence[Any] | None = None,
    *,
    title: str = "FMRL run",
    names: Sequence[Any] | None = None,
    features: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
) -> Facts:
    """Facts of one run; ``tasks`` let its certificate check what it would else assume, and name the
    points unless ``names`` do.

    features and outputs (classes) name the entries of phi. What the history did not keep is said to
    be missing, with the reason. Held-out scores, checksums and the command are the caller's to add.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task(np.eye(2), [0.1 * t, 0.2], loss=fmrl.Squared(), name=f"shop {t}") for t in range(4)]
    >>> found = facts_of(fmrl.run(fmrl.presets.paper(), tasks), tasks, features=["size", "age"])
    >>> found["data"], found["learned"]["coefficients"][0]["feature"], sorted(found["missing"])
    ({'tasks': 4, 'rows': 8}, 'age', ['heldout'])
    """
    missing: dict[str, Any] = {
        "heldout": {
            "why": "A history knows only the tasks it was made of, so nothing can be said of new ones."
        }
    }
    found: dict[str, Any] = {"title": title, "data": {"tasks": len(history)}, "missing": missing}
    if names is None and tasks is not None:
        names = [
            i if (name := getattr(t, "name", None)) is None else name for i, t in enumerate(tasks)
        ]
    if features is None:
        missing["learned"] = {
            "why": "The features were not named.",
            "command": "fmrl.report.facts_of(history, features=[…])",
        }
    else:
        found["learned"] = coefficients(history.state.phi, features, outputs)
    if history.keep == "totals":
        missing["curves"] = missing["guess"] = {
            "why": "The history kept totals only.",
            "command": KEEP,
        }
    else:
        found["data"]["rows"] = int(numbers(history.rounds).sum())
        found["curves"] = curves(history, names)
    if history.keep not in ("all", "vectors") or not len(history):
        missing["similarity"] = {
            "why": "The history did not keep the optima of its tasks.",
            "command": KEEP,
        }
    else:
        found["similarity"] = similarity_map(history.optimum, names, phi=history.state.phi)
    found["certificate"] = certificate_facts(certify(history, tasks))
    found["run"] = {"composition": repr(history.algo), "versions": versions()}
    return found  # type: ignore[return-value]

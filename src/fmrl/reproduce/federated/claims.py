"""What the runs say: rows of accuracies, rounds and bytes, and the verdicts that follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fmrl.reproduce.verdict import Row, Rows, Verdict, row
from fmrl.stats import mean_interval

FEDAVG, REPTILE = "FedAvg", "Reptile"
ISOTROPIC, PER = "one learned step", "a learned step per parameter"
TRAINED = (FEDAVG, REPTILE, ISOTROPIC, PER)
# Initialisation and step of other runs put together: name → (whose phi, whose step).
START, FIXED = "the first phi", "fixed"
APART = {
    f"{FEDAVG}'s phi, {ISOTROPIC} from beside it": (FEDAVG, f"{FEDAVG} + {ISOTROPIC}"),
    f"{FEDAVG}'s phi, {PER} from beside it": (FEDAVG, f"{FEDAVG} + {PER}"),
    f"phi of {ISOTROPIC}, fixed step": (ISOTROPIC, FIXED),
    f"phi of {PER}, fixed step": (PER, FIXED),
    "the first phi, fixed step": (START, FIXED),
    f"the first phi, {PER}": (START, PER),
}
BESIDE_ONE, BESIDE_ALL, OWN_ONE, OWN_ALL, UNTRAINED, STEPS_ALONE = APART
ACCURACY, UNADAPTED, ROUNDS, BYTES = "accuracy", "unadapted accuracy", "rounds", "megabytes"
WORST = "worst decile"
CLIENTS = "95% t interval over test clients of all seeds"
SEEDS = "95% t interval over seeds"
TARGET = 0.95  # of what FedAvg with fine-tuning reaches


def rows(results: dict[str, Any]) -> list[Row]:
    """One row a measure and method: of the last look, and of the way there."""
    made = []
    for name, found in results["last"].items():
        for measure, key in ((ACCURACY, "after"), (UNADAPTED, "before")):
            values = np.ravel(found[key]).tolist()
            made.append(row(values, CLIENTS, measure, "test clients", name, None))
            made[-1]["values"] = values
        worst = [np.sort(v)[: max(1, len(v) // 10)].mean() for v in np.asarray(found["after"])]
        made.append(row(worst, SEEDS, WORST, "test clients", name, None))
    for name in TRAINED:
        looks = [look for look in results["looks"] if name in look["after"]]
        for look in looks:
            for measure, key in ((ACCURACY, "after"), (UNADAPTED, "before")):
                values = np.ravel(look[key][name]).tolist()
                found = row(values, CLIENTS, measure, "on the way", name, look["round"])
                made.append(found)
        made += _to_target(results, name, looks)
    return made


def _to_target(results: dict[str, Any], name: str, looks: list[dict]) -> Iterator[Row]:
    """Rounds and bytes until the accuracy of a look is what FedAvg ends near; only where every seed
    gets there.
    """
    reached = [np.mean(look["after"][FEDAVG], axis=-1) for look in results["looks"]]
    target, found = TARGET * reached[-1], []
    for seed in range(len(target)):
        hits = [x["round"] for x in looks if np.mean(x["after"][name][seed]) >= target[seed]]
        found.append(hits[0] if hits else None)
    if None in found:
        return
    yield row(found, SEEDS, ROUNDS, "to the target", name, None) | {"values": found}
    sent = [results["bytes"][name] * n / 1e6 for n in found]
    yield row(sent, SEEDS, BYTES, "to the target", name, None) | {"values": sent}


def judge(found: list[Row]) -> Iterator[Verdict]:
    """The verdicts; a claim whose difference may as well be 0 does not hold."""
    by = {m: Rows(found, m, "federated") for m in (ACCURACY, UNADAPTED, ROUNDS, BYTES)}

    def values(name: str, measure: str = ACCURACY) -> np.ndarray:
        return np.asarray(by[measure].at("test clients", name, None)["values"])  # type: ignore[arg-type]

    def more(key: str, claim: str, a: np.ndarray, b: np.ndarray) -> Verdict:
        mean, low, high, _ = mean_interval(a - b)
        said = f"{100 * mean:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]"
        said = f"{said}: {100 * a.mean():.2f} against {100 * b.mean():.2f} %"
        return by[ACCURACY].verdict(key, "ours", claim, low > 0, said, "intervals")

    tuned = values(FEDAVG)
    plain = values(FEDAVG, UNADAPTED)
    yield more("tuning", f"{FEDAVG} gains by fine-tuning on the client", tuned, plain)
    other = {"Reptile": REPTILE, "one step": ISOTROPIC, "steps": PER}
    for key, name in other.items():
        claim = f"Personalised, {name} is better than {FEDAVG} with fine-tuning"
        yield more(key, claim, values(name), tuned)
    claim = f"{PER.capitalize()} is better than {ISOTROPIC}"
    yield more("per coordinate", claim, values(PER), values(ISOTROPIC))
    apart = {
        BESIDE_ONE: f"The step alone: {FEDAVG}'s phi is better with {ISOTROPIC}",
        BESIDE_ALL: f"The step alone: {FEDAVG}'s phi is better with {PER}",
        OWN_ONE: f"The start alone, fixed step: phi of {ISOTROPIC} is better than {FEDAVG}'s",
        OWN_ALL: f"The start alone, fixed step: phi of {PER} is better than {FEDAVG}'s",
    }
    for name, claim in apart.items():
        yield more(f"apart.{name}", claim, values(name), tuned)
    claim = f"{FEDAVG}'s phi with the fixed step is better than the first phi with {PER}"
    yield more("initialisation", claim, tuned, values(STEPS_ALONE))
    for name in (ISOTROPIC, PER):
        claim = f"To {100 * TARGET:.0f} % of {FEDAVG}'s last accuracy in no more rounds: {name}"
        yield _sooner(by[ROUNDS], f"rounds.{name}", claim, name)


def _sooner(rounds: Rows, key: str, claim: str, name: str) -> Verdict:
    known = {m: r for m in (FEDAVG, name) for r in rounds.all if r["method"] == m}
    if len(known) < 2:
        return rounds.verdict(key, "ours", claim, False, "the target was not reached")
    said = ", ".join(f"{m}: {r['mean']:.0f}" for m, r in known.items())
    sooner = known[name]["mean"] <= known[FEDAVG]["mean"]
    return rounds.verdict(key, "ours", claim, sooner, said)


def summary(found: list[Row]) -> list[str]:
    """The accuracies as sentences."""
    said = []
    for r in (r for r in found if r["preset"] == ACCURACY and r["within"] == "test clients"):
        before = next(
            q for q in found
            if (q["preset"], q["within"], q["method"]) == (UNADAPTED, r["within"], r["method"])
        )  # fmt: skip
        said.append(
            f"{r['method']}: {100 * before['mean']:.1f} % unadapted, {100 * r['mean']:.1f} % "
            f"[{100 * r['low']:.1f}, {100 * r['high']:.1f}] personalised"
        )
    for r in (r for r in found if r["preset"] in (ROUNDS, BYTES)):
        unit = "rounds" if r["preset"] == ROUNDS else "MB sent"
        said.append(f"{r['method']}: {r['mean']:.0f} {unit} to the target")
    return said

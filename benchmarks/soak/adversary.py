"""The standing adversary: random compositions of everything public, played on odd tasks, and
everything that was printed about them refuted where it is false.

A seed is one instance. It fails where

    bound      a printed bound lies below the measured regret
    gap        a minimum lies below what the gap allows
    checked    an assumption is called checked and is not true
    nan        phi, a guess or a regret is not a number, and nothing was said
    raw        an exception is not an FMRLError
    differs    `run` differs from `step` in a loop, from a resumed run, or from its other orders

    python benchmarks/soak/adversary.py 17            instance 17, what it is and what is wrong
    python benchmarks/soak/adversary.py 0 1000        a thousand of them: what was found, and where
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import compositions
import odd_tasks
import truths
from verdicts import Wrong, certificates, differences, not_numbers, solved

import fmrl
from fmrl.core.ensemble import Ensemble
from fmrl.core.losses import Weighted


class Instance(NamedTuple):
    """What is played, and how."""

    algo: Any
    tasks: list[Any]
    phi: Any
    keep: str
    meta_batch: int
    orders: np.ndarray | None  # [S, T]
    split: int  # after so many tasks the run is resumed; 0 for a run in one go
    lies: frozenset[str]  # conditions of theorems that are known to be broken

    def __str__(self) -> str:
        options = f"keep={self.keep!r}, meta_batch={self.meta_batch}, split={self.split}"
        orders = None if self.orders is None else self.orders.tolist()
        return f"{self.algo!r}\n{self.tasks!r}\nphi={self.phi!r}, {options}, orders={orders}"


def _start(rng: np.random.Generator, domain: Any, dim: int, dtype: Any) -> Any:
    """phi: the default, in the domain, on its border, or without mass."""
    like, kind = np.zeros(dim), rng.choice(["none", "none", "inside", "border", "faint"])
    if kind == "none":
        return None
    if isinstance(domain, fmrl.Simplex) and kind in ("border", "faint"):
        mass = rng.exponential(size=dim)
        mass[rng.integers(0, dim)] = 0.0 if kind == "border" else rng.choice([1e-300, 1e-30])
        mass[rng.integers(0, dim)] += 1
        return np.asarray(domain.project(mass / mass.sum())).astype(dtype)
    return np.asarray(domain.project(truths.feasible(rng, domain, like, 1)[0].astype(dtype)))


def _lies(*parts: Any) -> set[str]:
    found: set[str] = set()
    for part in parts:
        found |= set(getattr(part, "lies", ()))
        if isinstance(part, Weighted):
            found |= _lies(part.loss)
    return found


def draw(seed: int) -> Instance:
    """Instance number ``seed``."""
    rng = np.random.default_rng([seed, 31])
    domains, losses = compositions.DOMAINS, compositions.LOSSES
    kind = list(domains)[rng.integers(0, len(domains))]
    if rng.random() < 0.4:
        kind = (fmrl.Ball, fmrl.Ball, fmrl.Simplex)[rng.integers(0, 3)]
    features, long = int(rng.choice([1, 2, 2, 3, 4])), rng.random() < 0.03
    cheap = long or rng.random() < 0.4  # linear losses have a closed form; others need a solver
    chosen = list(losses)[rng.integers(0, len(losses))]
    loss = losses[fmrl.Linear if cheap else chosen](rng)
    dtype = np.float32 if rng.random() < (0.5 if long else 0.06) else np.float64
    many = not long and rng.random() < 0.1  # an ensemble, which a few tasks say nothing about
    if long:
        kind, features = (fmrl.Simplex if rng.random() < 0.8 else kind), max(2, features)
    dim = features * loss.outputs
    domain = domains[kind](rng, dim)
    counts = (
        [4, 8, 16]
        if many and cheap
        else [3, 4]
        if many
        else [1, 2, 3, 3, 4, 6, 10]
        if cheap
        else [1, 2, 2, 3, 4]
    )
    count = int(rng.choice(counts))
    far = float(domain.diameter(dim))
    far = far if np.isfinite(far) else 1.0
    if long:
        tasks = odd_tasks.turning(rng, features, dtype)
    elif rng.random() < 0.08:
        tasks = odd_tasks.reactive(rng, domain, dim, count)
    else:
        tasks = odd_tasks.draw(rng, loss, features, count, far, dtype)
    count, rows = len(tasks), isinstance(tasks[0], fmrl.Task)
    lies = _lies(loss if rows else tasks[0])
    steep = float(np.clip(_steep(tasks, domain), 1e-150, 1e150))
    s = compositions.Setting(
        domain, dim, features, count, far, steep,
        expensive=not (cheap or (isinstance(domain, fmrl.Ball) and loss.bend < np.inf)),
        rounds=tasks[0].rounds if long else 0,
    )  # fmt: skip
    many = many and (rows or rng.random() < 0.1)
    if many:
        made = list(compositions.ENSEMBLES.values())
        algo = made[rng.integers(0, len(made))](rng, s)
    else:
        algo = compositions.composition(rng, s)
    members = algo.members if isinstance(algo, Ensemble) else (algo,)
    lies |= _lies(domain, *(m.within for m in members))
    phi = _start(rng, domain, dim, dtype)
    if (many or long) and rng.random() < 0.7:
        phi = None
    if phi is None and not rows:
        phi = domain.middle(np.zeros(dim))
    keep = str(rng.choice(["all"] * (30 if many else 6) + ["vectors", "scalars", "totals"]))
    batch = 1 if many else int(rng.choice([1, 1, 1, 1, 1, 2, 3]))
    orders, split = None, 0
    if rng.random() < 0.12 and batch == 1 and rows:
        plain = np.arange(count)
        orders = np.stack([plain, _alternating(tasks), plain[::-1], rng.permutation(count)])
    elif rng.random() < 0.15 and count > 1 and batch == 1:
        split = int(rng.integers(1, count))
    return Instance(algo, tasks, phi, keep, batch, orders, split, frozenset(lies))


def _alternating(tasks: list[Any]) -> np.ndarray:
    """The order that goes from one end of the tasks to the other and back: the worst for a mean."""
    ends = np.argsort([float(np.sum(task.X[:, 0])) for task in tasks], kind="stable")
    return np.stack([ends, ends[::-1]], axis=1).ravel()[: len(ends)]


def _steep(tasks: list[Any], domain: Any) -> float:
    """G·√m of the first task, or 1 where there is none."""
    try:
        G = float(tasks[0].open().lipschitz(domain))
    except fmrl.FMRLError:
        return 1.0
    return G * tasks[0].rounds ** 0.5 if 0 < G < np.inf else 1.0


def play(it: Instance) -> Any:
    """The history of an instance."""
    given: dict[str, Any] = {"keep": it.keep}
    if it.orders is not None:
        return fmrl.run(it.algo, it.tasks, it.phi, orders=it.orders, **given)
    given["meta_batch"] = it.meta_batch
    if not it.split:
        return fmrl.run(it.algo, it.tasks, it.phi, **given)
    begun = fmrl.run(it.algo, it.tasks[: it.split], it.phi, **given)
    return fmrl.run(it.algo, it.tasks[it.split :], state=begun.state, **given)


def findings(seed: int) -> tuple[list[Wrong], str]:
    """Everything that is wrong with an instance, and how far it came."""
    rng = np.random.default_rng([seed, 62])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        it, reached = None, "drawn"
        try:
            it = draw(seed)
            history = play(it)
            reached = "played"
            found = not_numbers(history)
            if not found:
                found += differences(rng, it, history)
                found += solved(rng, it, history)
                more, certified = certificates(rng, it, history)
                found += more
                reached = certified
            return found, reached
        except fmrl.FMRLError as error:
            return [], f"refused: {error}"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            ours = [
                f for f in traceback.extract_tb(error.__traceback__) if "/soak/" not in f.filename
            ]
            last = ours[-1] if ours else last
            where = f"{Path(last.filename).name}:{last.name}"
            what = f"{type(error).__name__}: {str(error)[:120]}"
            return [Wrong("raw", f"{type(error).__name__} in {where}", what)], reached


def check(seed: int) -> str | None:
    """What is wrong with an instance; None if nothing is."""
    found, _ = findings(seed)
    return "; ".join(map(str, found)) or None


def hunt(first: int, count: int) -> None:
    """Print what so many instances have found, by kind, with the first seeds."""
    began, kinds, reached = time.perf_counter(), defaultdict(list), Counter()
    for seed in range(first, first + count):
        found, how = findings(seed)
        reached[how.split(":")[0]] += 1
        for label in {w.label for w in found}:
            kinds[label].append(seed)
    seconds = time.perf_counter() - began
    for label, seeds in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(seeds):6}  {label}  first at {seeds[0]}: {seeds[:5]}")
    print(f"{count} instances, {count / seconds:.0f} a second; {dict(reached)}")


def main() -> int:
    if len(sys.argv) == 3:
        hunt(int(sys.argv[1]), int(sys.argv[2]))
        return 0
    seed = int(sys.argv[1])
    try:
        print(draw(seed))
    except fmrl.FMRLError as error:
        print(f"refused: {error}")
    found, reached = findings(seed)
    print("\n".join(map(str, found)) or "sound", f"({reached})")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""MAML by learn2learn and by fmrl.deep.MAML: the same tasks, start and arithmetic; processor time
of a meta-gradient on one thread.

    python benchmarks/learn2learn_maml.py SOURCE

SOURCE is an unpacked learn2learn 0.2.0 (`pip download --no-deps learn2learn`, `tar xzf`): its
compiled parts do not build under Python 3.11, but MAML is plain Python and is used as it stands.
Pictures are scikit-learn's digits, 5-way, 5 samples, 5 inner steps of SGD on all 25, 25 queries.
Leaves results/deep/learn2learn.json."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import types
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fmrl.deep import MAML, Pool
from fmrl.deep.networks import Layout
from fmrl.records import record, write_json

RECORD = Path(__file__).parent.parent / "results" / "deep" / "learn2learn.json"
STEPS, INNER, TURNS = 5, 0.1, 7


def their_maml(source: Path):
    """learn2learn's MAML, from a source folder: packages whose own imports need what is compiled
    stand empty."""
    for name in ("learn2learn", "learn2learn.algorithms"):
        package = types.ModuleType(name)
        package.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[name] = package
    from learn2learn.algorithms.maml import MAML as Theirs

    return Theirs


def network() -> nn.Module:
    """A convolution and two dense layers, 8,600 parameters."""
    torch.manual_seed(0)
    seen = [nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*seen, nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 5))


def batch(tasks, count):
    """Samples [K, S, B, …] with labels, queries [K, Q, …] with theirs, of the first tasks."""
    index, label, (group,) = tasks.queried(0, count)
    X, Q = tasks.inputs[index], tasks.inputs[group.query]
    return X, label, Q, group.targets


def theirs(Theirs, module, given, first_order):
    """The mean meta-gradient, one task after another, as learn2learn's examples do it."""
    X, y, Q, z = given
    learner = Theirs(module, lr=INNER, first_order=first_order)
    module.zero_grad()
    for k in range(len(X)):
        own = learner.clone()
        for s in range(X.shape[1]):
            own.adapt(cross_entropy(own(X[k, s]), y[k, s]))
        cross_entropy(own(Q[k]), z[k]).backward()
    grads = [p.grad.reshape(-1) for p in module.parameters()]
    return torch.cat(grads) / len(X)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    options.add_argument("source", type=Path)
    Theirs = their_maml(options.parse_args().source)
    torch.set_num_threads(1)
    pictures, digit = load_digits(return_X_y=True)
    pool = Pool.of((pictures / 16).reshape(-1, 1, 8, 8).astype("float32"), digit)
    tasks = pool.tasks(5, 5, batch=25, steps=STEPS, queries=5)
    module = network()
    layout = Layout.of(module)
    phi = layout.flat(module)
    with record("learn2learn", steps=STEPS, inner=INNER, turns=TURNS) as entry:
        entry["torch"], entry["rows"] = torch.__version__, []
        for first_order in (True, False):
            ours = MAML(INNER, first_order=first_order)
            for count in (5, 32):
                given = batch(tasks, count)
                ways = {
                    "learn2learn": lambda f=first_order, g=given: theirs(Theirs, module, g, f),
                    "fmrl": lambda o=ours, g=given: o.gradient(module, layout, phi, g),
                }
                found = {name: way() for name, way in ways.items()}  # warm, and compared
                apart = (found["fmrl"] - found["learn2learn"]).abs().max()
                times = {name: [] for name in ways}
                for _ in range(TURNS):
                    for name, way in ways.items():
                        began = time.process_time()
                        way()
                        times[name].append(time.process_time() - began)
                row = {"first_order": first_order, "tasks": count, "apart": float(apart)}
                rate = {n: count * STEPS / statistics.median(t) for n, t in times.items()}
                row |= {f"{n}, task-steps/s": round(r) for n, r in rate.items()}
                row["ratio"] = round(rate["fmrl"] / rate["learn2learn"], 2)
                entry["rows"].append(row)
                print(row)
    write_json(RECORD, entry)


if __name__ == "__main__":
    main()

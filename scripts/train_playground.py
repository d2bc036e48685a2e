"""Train the network of `fmrl playground` on Omniglot, and judge it on characters it never saw.

    python scripts/train_playground.py

Reptile on 5-way tasks, about 10 minutes on an idle core, and some more to judge it. It writes the
checkpoint and its record into src/fmrl/playground. Killed or stopped, the same command
goes on from the last checkpoint in --work.

Drawings are brought to the middle and to one size first, as the page does with the user's strokes:
the longer side of the ink is 20 of 28 pixels. Ink is 1 and paper 0.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fmrl.core.rules.meta import Interpolate
from fmrl.datasets import load_omniglot
from fmrl.datasets.episodes import ImageSet
from fmrl.deep import Adam, MetaTrainer, Pool, Progress, evaluate, load, omniglot_net, save
from fmrl.deep.checkpoint import iteration
from fmrl.records import record, write_json

HOME = Path(__file__).parents[1] / "src" / "fmrl" / "playground"
WAYS, FILTERS, SIDE, INK = 5, 24, 28, 20
STEP, BATCH, STEPS, SHOTS, META_BATCH = 1e-3, 10, 5, 10, 5
TEST_STEPS = 30  # of the page


def framed(drawings: ImageSet) -> ImageSet:
    """Every drawing moved to the middle, its longer side INK of SIDE pixels, by area averages."""
    side, packed = drawings.side, drawings.images
    out = np.empty((len(packed), SIDE, SIDE), dtype=np.uint8)
    for i in range(0, len(packed), 1024):
        bits = np.unpackbits(packed[i : i + 1024], axis=1)[:, : side**2]
        ink = 1.0 - bits.reshape(-1, side, side)
        ends = []
        for axis in (2, 1):  # what is left when it is summed out: rows, then columns
            there = ink.sum(axis) > 0
            first, last = there.argmax(1), side - there[:, ::-1].argmax(1)
            ends.append((first, last))
        longest = np.maximum(*(last - first for first, last in ends)).clip(8)
        rows, columns = (_cells(first, last, longest, side) for first, last in ends)
        small = np.einsum("nip,npq,njq->nij", rows, ink, columns, optimize=True)
        out[i : i + 1024] = np.rint(255 * small)
    return replace(drawings, images=out, side=None)


def _cells(first, last, longest, side: int) -> np.ndarray:
    """[n, SIDE, side]: which share of each of SIDE cells every pixel of the original takes."""
    cell = (longest / INK)[:, None, None]
    edge = (first + last)[:, None, None] / 2 + (np.arange(SIDE)[:, None] - SIDE / 2) * cell
    pixel = np.arange(side)
    overlap = np.minimum(edge + cell, pixel + 1) - np.maximum(edge, pixel)
    return overlap.clip(0) / cell


class Curve:
    """Save the trainer, and beside it [meta-iterations, loss, seconds] so far: a run that is
    resumed keeps its past.
    """

    def __init__(self, kept: Path):
        self.kept, self.path, self.last = kept, kept.with_suffix(".json"), time.monotonic()
        self.rows = json.loads(self.path.read_text()) if self.path.exists() else []

    def __call__(self, trainer: MetaTrainer) -> None:
        now, before = time.monotonic(), self.rows[-1][2] if self.rows else 0.0
        loss, seconds = float(trainer.losses[-1].mean()), before + now - self.last
        self.rows.append([trainer.iteration, round(loss, 4), round(seconds, 1)])
        self.last = now
        save(trainer, self.kept)
        write_json(self.path, self.rows)


def main() -> None:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20_000, help="meta-iterations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", type=int, default=200, help="test tasks of each kind")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path("runs/playground"))
    parser.add_argument("--out", type=Path, default=HOME)
    asked = parser.parse_args()
    said = {k: v for k, v in vars(asked).items() if k not in ("work", "out")}
    said |= {"ways": WAYS, "filters": FILTERS, "step": STEP, "batch": BATCH, "inner_steps": STEPS}
    said |= {"train_shots": SHOTS, "meta_batch": META_BATCH, "test_steps": TEST_STEPS}
    with record("playground", **said) as entry:
        drawings = framed(load_omniglot(size=None))
        train, test = drawings.split(1200, 423, seed=asked.seed)
        pool = Pool.of_images(train.rotated(), asked.device, 1 / 255)
        tasks = pool.tasks(WAYS, SHOTS, batch=BATCH, steps=STEPS, seed=asked.seed)
        net = omniglot_net(WAYS, filters=FILTERS, seed=asked.seed).to(asked.device)
        meta = Interpolate(1.0, 0.0, asked.iterations)
        trainer = MetaTrainer(net, Adam(STEP), meta=meta, meta_batch=META_BATCH, seed=asked.seed)
        kept = asked.work / f"{asked.iterations}-{asked.seed}.safetensors"
        curve = Curve(kept)
        if iteration(kept):
            load(trainer, kept)
        each = [Progress(asked.iterations), curve]
        trainer.fit(tasks, asked.iterations, each=each, every=250)
        entry["training"] = {"seconds": curve.rows[-1][2], "loss": [r[:2] for r in curve.rows[::8]]}
        entry["data"] = (
            "Omniglot, 1,200 characters × 4 quarter turns; tests: the other 423, upright"
        )
        entry["accuracy"] = judged(trainer, Pool.of_images(test, asked.device, 1 / 255), asked)
    save(trainer, asked.out / "omniglot.safetensors")
    print(write_json(asked.out / "omniglot.json", entry))
    for row in entry["accuracy"]:
        print(row)


def judged(trainer: MetaTrainer, pool: Pool, asked: argparse.Namespace) -> list[dict]:
    """Share of right answers on new characters, each query alone with its task's drawings: from
    the trained start, and from a random one with moments of its own.
    """
    rows = []
    for ways in (3, 4, 5):
        for shots in (1, 2, 3):
            batch = ways * shots
            made = pool.tasks(
                ways, shots, batch=batch, steps=TEST_STEPS, queries=1, seed=asked.seed + 1
            )
            start = fewer(trainer, ways)
            begin = omniglot_net(ways, filters=FILTERS, seed=asked.seed + 1).to(asked.device)
            how = {"protocol": "inductive", "count": asked.tests}
            random = evaluate(begin, made, TEST_STEPS, within=Adam(STEP, carry=False), **how)
            learned = evaluate(start, made, TEST_STEPS, **how)
            row = {"ways": ways, "shots": shots, "learned": learned.mean, "random": random.mean}
            row |= {"learned_interval": learned.interval, "random_interval": random.interval}
            rows.append(row | {"tests": asked.tests})
    return rows


def fewer(trainer: MetaTrainer, ways: int) -> MetaTrainer:
    """The trainer with the first ``ways`` outputs alone, moments included: what the page plays."""
    net = omniglot_net(ways, filters=FILTERS).to(trainer.device)
    other = MetaTrainer(net, trainer.within, meta=trainer.meta, meta_batch=1)
    keep = trainer.layout.size - (WAYS * (trainer.layout.shapes[-2][1] + 1))
    inside = trainer.layout.shapes[-2][1]

    def cut(flat: torch.Tensor) -> torch.Tensor:
        body, dense, bias = flat.split([keep, WAYS * inside, WAYS], dim=-1)
        return torch.cat([body, dense[:, : ways * inside], bias[:, :ways]], dim=-1)

    other.state.phi.copy_(cut(trainer.phi))
    other.state.second.copy_(cut(trainer.second))
    other.state.taken = trainer.count
    return other


if __name__ == "__main__":
    main()

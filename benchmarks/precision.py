"""Whether reduced precision costs accuracy: the same runs on Tiny ImageNet-100 in bf16 and in
tf32, on the same test tasks.

    python benchmarks/precision.py --data FOLDER             # on CUDA: about two minutes
    python benchmarks/precision.py --data FOLDER --out precision.json

Ten runs in the 8-step setting of Mini-ImageNet with an outer step that falls to 0 over
``--iterations``. Each run's accuracy in tf32 less that in bf16, at 1 and at 5 shots, is one
number of which the mean and its standard error are printed."""

import argparse
import json
import math
import statistics
import time

import torch

from fmrl.datasets.images import load_tiny_imagenet_100
from fmrl.deep import Adam, FLIOnline, Interpolate, MetaTrainer, Pool, evaluate, mini_imagenet_net
from fmrl.deep.engines.inner import summed_cross_entropy
from fmrl.records import record, write_json

SIDE = 84


def trained(train, precision, args):
    """(trainer, task-steps per second) of all runs side by side."""
    nets = [mini_imagenet_net(5, side=SIDE, seed=seed) for seed in range(args.runs)]
    trainer = MetaTrainer(
        nets, Adam(1e-3, carry=True), FLIOnline(), Interpolate(1.0, 0.0, args.iterations),
        meta_batch=5, device=args.device, loss=summed_cross_entropy, precision=precision,
    )  # fmt: skip
    tasks = [train.tasks(5, 15, batch=10, steps=8, seed=seed) for seed in range(args.runs)]
    trainer.fit(tasks, 2)
    started = time.perf_counter()
    trainer.fit(tasks, args.iterations)
    float(trainer.phi.sum())  # waits for the device
    return trainer, (args.iterations - 2) * args.runs * 5 * 8 / (time.perf_counter() - started)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = "folder or zip of Tiny ImageNet-100 (default: the registry's copy)"
    parser.add_argument("--data", help=data)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=200, help="test tasks of each run")
    parser.add_argument("--out")
    args = parser.parse_args()
    images = (load_tiny_imagenet_100(args.data, split=s, size=SIDE) for s in ("train", "test"))
    train, test = (Pool.of_images(i, args.device, scale=1 / 255) for i in images)
    rows, how = [], {"protocol": "transductive", "count": args.tasks, "compare": False}
    about = {"device": args.device, "runs": args.runs, "iterations": args.iterations}
    with record("benchmarks/precision.py", **about) as entry:
        for precision in ("bf16", "tf32"):
            trainer, rate = trained(train, precision, args)
            row = {"precision": precision, "pooled kernels": trainer.loop.pooled}
            row["task-steps/s"] = round(rate, 1)
            for shots, batch in ((1, 5), (5, 15)):
                drawn = {"batch": batch, "steps": 50, "queries": 1}
                seeds = range(9, 9 + args.runs)
                tasks = [test.tasks(5, shots, seed=seed, **drawn) for seed in seeds]
                found = evaluate(trainer, tasks, 50, **how)
                row[f"{shots}-shot"] = [round(e.accuracy, 4) for e in found]
            rows.append(row)
            print(json.dumps(row), flush=True)
        less, more = ([*row["1-shot"], *row["5-shot"]] for row in rows)
        differences = [b - a for a, b in zip(less, more, strict=True)]
        mean, error = statistics.mean(differences), statistics.stdev(differences)
        error /= math.sqrt(len(differences))
        entry |= {"rows": rows, "tf32 less bf16": round(mean, 5), "standard error": round(error, 5)}
        print(f"tf32 less bf16: {100 * mean:+.2f} points, standard error {100 * error:.2f}")
    if args.out:
        write_json(args.out, entry)


if __name__ == "__main__":
    main()

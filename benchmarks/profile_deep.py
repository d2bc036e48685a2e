"""Where the time of an inner step goes: kernels by total time, for one network; on a CPU torch's
operators by the time they spend themselves, one thread, and what of it is products, here and in
the plain loop (0 stacked).

python benchmarks/profile_deep.py --network omniglot --stacks 5 160
python benchmarks/profile_deep.py --device cpu --network omniglot --stacks 0 5
"""

import argparse
from functools import partial

import numpy as np
import torch
from deep import BATCH, NETWORKS, STEPS, WAYS, counted, eager
from torch.profiler import ProfilerActivity, profile

from fmrl.core.rules.meta import Interpolate
from fmrl.deep import Adam, FLIOnline, MetaTrainer, Pool

ITERATIONS = 20
PRODUCTS = ("mm", "convolution", "rnn_layer")  # in the names of torch's operators


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=list(NETWORKS), default="omniglot")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stacks", type=int, nargs="*", default=[5, 160])
    parser.add_argument("--most", type=int, default=14, help="kernels to print")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    spent, calls = ("device_time_total", "launches") if cuda else ("self_cpu_time_total", "calls")
    iterations = ITERATIONS if cuda else 2
    torch.set_num_threads(1)
    build, shape, _ = NETWORKS[args.network]
    images = np.random.default_rng(0).random((4000, *shape), dtype=np.float32)
    images = (images > 0.2).astype(np.uint8) if len(shape) == 2 else images
    pool = Pool.of(images, np.repeat(np.arange(200), 20), args.device)
    flop = None if cuda else counted(build, pool)
    for stack in args.stacks:
        if stack == 0:  # `eager` plays three tasks there, on a GPU six
            steps, tasks = (6 if cuda else 3) * STEPS, 1
            body = partial(eager, build, pool, args.device, 0.0)
        else:
            tasks, drawn = stack, pool.tasks(WAYS, 10, batch=BATCH, steps=STEPS)
            facts = Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 10**6)
            trainer = MetaTrainer(build(WAYS, seed=0).to(args.device), *facts, meta_batch=stack)
            trainer.fit(drawn, 2)
            body, steps = partial(trainer.fit, drawn, 2 + iterations), iterations * STEPS
        with profile(activities=[activity]) as found:
            body()
            if cuda:
                torch.cuda.synchronize()
        rows = sorted(found.key_averages(), key=lambda r: -getattr(r, spent))
        total = sum(getattr(r, spent) for r in rows)
        print(f"{args.network}, {stack} stacked: {total / steps:.1f} µs in all a step")
        if flop is not None:
            own = sum(getattr(r, spent) for r in rows if any(name in r.key for name in PRODUCTS))
            rate = flop * steps * tasks / own / 1e3
            print(f"  products: {own / total:.0%} of it, at {rate:.0f} GFLOP/s")
        for r in rows[: args.most]:
            each, count = getattr(r, spent) / steps, r.count / steps
            print(f"  {each:8.1f} µs {count:6.1f} {calls}  {r.key[:90]}")


if __name__ == "__main__":
    main()

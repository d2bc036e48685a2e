"""Where the time of an inner step goes on a GPU: kernels by total time, for one network.

python benchmarks/profile_deep.py --network omniglot --stacks 5 160
"""

import argparse

import numpy as np
import torch
from deep import BATCH, NETWORKS, STEPS, WAYS
from torch.profiler import ProfilerActivity, profile

from fmrl.core.rules.meta import Interpolate
from fmrl.deep import Adam, FLIOnline, MetaTrainer, Pool

ITERATIONS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=list(NETWORKS), default="omniglot")
    parser.add_argument("--stacks", type=int, nargs="*", default=[5, 160])
    parser.add_argument("--most", type=int, default=14, help="kernels to print")
    args = parser.parse_args()
    build, shape, _ = NETWORKS[args.network]
    images = np.random.default_rng(0).random((4000, *shape), dtype=np.float32)
    images = (images > 0.2).astype(np.uint8) if len(shape) == 2 else images
    pool = Pool.of(images, np.repeat(np.arange(200), 20), "cuda")
    for stack in args.stacks:
        tasks = pool.tasks(WAYS, 10, batch=BATCH, steps=STEPS)
        facts = Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 10**6)
        trainer = MetaTrainer(build(WAYS, seed=0).to("cuda"), *facts, meta_batch=stack)
        trainer.fit(tasks, 2)
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            trainer.fit(tasks, trainer.iteration + ITERATIONS)
            torch.cuda.synchronize()
        rows = sorted(found.key_averages(), key=lambda r: -r.device_time_total)
        total, steps = sum(r.device_time_total for r in rows), ITERATIONS * STEPS
        print(f"{args.network}, {stack} stacked: {total / steps:.1f} µs of kernels a step")
        for r in rows[: args.most]:
            each, count = r.device_time_total / steps, r.count / steps
            print(f"  {each:8.1f} µs {count:6.1f} launches  {r.key[:90]}")


if __name__ == "__main__":
    main()

"""Tiles of the kernels for pooled blocks: time and error of one pass of the Mini-ImageNet
network, one kernel's tile changed at a time.

    # on CUDA: about a minute once everything is compiled
    python benchmarks/tiles.py
    # first fill the compiler's cache, 12 processes at a time
    python benchmarks/tiles.py --compile 12
    python benchmarks/tiles.py --out tiles.json

The defaults of `fmrl.deep.engines.pooled.Tiles` are the fastest found whose gradients are right;
errors are against the passes by hand, in float32."""

import argparse
import subprocess
import sys
from dataclasses import replace
from functools import partial

import torch

from fmrl.deep import mini_imagenet_net
from fmrl.deep.engines import by_hand as byhand
from fmrl.deep.engines.pooled import Gradient, Tile, Tiles
from fmrl.records import record, write_json

SIZES = (64, 4, 1), (128, 4, 1), (128, 4, 3), (128, 8, 2), (256, 8, 1), (256, 8, 3)
PRODUCTS = [Tile(*size) for size in SIZES]
PIXELS = [Tile(16), Tile(32), Tile(64), Tile(64, 8)]


def candidates():
    """(what changed, tiles)."""
    base = Tiles()
    yield "as they are", base
    for name in ("convolve", "weigh"):
        first, later = getattr(base, name)
        for tile in PRODUCTS:
            yield f"{name}, first block {tile}", replace(base, **{name: (tile, later)})
            yield f"{name}, later blocks {tile}", replace(base, **{name: (first, tile)})
    yield from ((f"back {tile}", replace(base, back=tile)) for tile in PRODUCTS)
    yield from ((f"pixels {tile}", replace(base, pixels=tile)) for tile in PIXELS)


def work(tasks, batch):
    generator = torch.Generator().manual_seed(0)
    net = mini_imagenet_net(5, seed=0)
    plan = byhand.plan(net, (3, 84, 84))
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])[plan.order]
    theta = theta + 0.02 * torch.randn(tasks, len(theta), generator=generator)
    x = torch.rand(tasks, batch, 84, 84, 3, generator=generator)
    label = torch.randint(0, 5, (tasks, batch), generator=generator)
    return plan, theta.cuda(), x.cuda(), label.cuda()


def seconds(call, repeats=20):
    """Of one call, replayed as a graph; the best of three."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    found = []
    for _ in range(3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            graph.replay()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / 1000 / repeats)
    return min(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", type=int, default=0, help="processes that compile first")
    parser.add_argument("--only", type=int, help="run one candidate by number and stop")
    parser.add_argument("--out")
    args = parser.parse_args()
    found, precision = list(candidates()), args.precision
    if args.compile:
        mine = [sys.executable, __file__, "--tasks", "2", "--batch", str(args.batch)]
        mine += ["--precision", precision, "--only"]
        for at in range(0, len(found), args.compile):
            numbers = range(at, min(at + args.compile, len(found)))
            for process in [subprocess.Popen([*mine, str(i)]) for i in numbers]:
                process.wait()
        return
    plan, *given = work(args.tasks, args.batch)
    few = [a[:2] for a in given]
    _, right = byhand.Gradient(plan, 2, args.batch, 1.0, "cuda", torch.float32)(*few)
    about = {"device": torch.cuda.get_device_name(), "tasks": args.tasks, "precision": precision}
    with record("benchmarks/tiles.py", **about) as entry:
        entry["rows"] = []
        for what, tiles in found if args.only is None else [found[args.only]]:
            took = 0.0
            try:
                how = args.batch, 1.0, "cuda", precision, tiles
                _, mine = Gradient(plan, 2, *how)(*few)
                error = float((mine - right).norm() / right.norm())
                call = Gradient(plan, args.tasks, *how)
                if args.only is None:
                    took = seconds(partial(call, *given))
            except Exception as e:  # a tile that does not fit the chip is a finding
                error, took = repr(e)[:80], float("nan")
            rate = args.tasks / took if took else None
            row = {"change": what, "ms": 1000 * took, "task-steps/s": rate, "error": error}
            entry["rows"].append(row)
            if args.only is None:
                said = f"{1000 * took:8.3f} ms {rate:9,.0f} task-steps/s"
                print(f"{said}  error {error}  {what}", flush=True)
    if args.out:
        write_json(args.out, entry)


if __name__ == "__main__":
    main()

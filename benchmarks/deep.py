"""Inner steps per second: what people write today, torch.func.vmap, and our engine, in one run on
one device.

    python benchmarks/deep.py                        # CUDA when there is one: about two minutes
    python benchmarks/deep.py --device cpu           # about two minutes; every core for everyone
    # 84x84 colour images, max-pooling
    python benchmarks/deep.py --network mini-imagenet --stacks 5 40 160
    python benchmarks/deep.py --network transformer  # or resnet, lstm, mlp
    python benchmarks/deep.py --out deep.json        # also write the numbers

The work is the paper's 5-way Omniglot setting: mini-batches of 10, the four-block network, Adam
with beta1 = 0, five inner steps a task; or the same with another network. A task-step
is one optimiser step on one task. Ours is timed through `MetaTrainer`, so drawing tasks, moving
phi and carrying moments are in it; eager and vmap are given their mini-batches. All are measured
``--rounds`` times in turn and the best round counts: on a machine that others use, what a round
loses it loses to them."""

import argparse
import itertools
import json
import os
import time
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fmrl.core.rules.meta import Interpolate
from fmrl.deep import Adam, FLIOnline, MetaTrainer, Pool, mini_imagenet_net, omniglot_net
from fmrl.deep.engines.on_cpu import dense
from fmrl.records import record, write_json

WAYS, BATCH, STEPS = 5, 10, 5
# Multiply-adds of the four convolutions and the dense layer, forward; twice as many again
# backward; two operations each.
FLOP = 2 * 3 * BATCH * (14 * 14 * 9 * 64 + (49 + 16 + 4) * 9 * 64 * 64 + 256 * WAYS)
POOLED_FLOP = (
    2 * 3 * BATCH * (84**2 * 27 * 32 + (42**2 + 21**2 + 11**2) * 9 * 32 * 32 + 36 * 32 * WAYS)
)
# Networks that users have: images [B, 1, 28, 28] to logits [B, ways].


def _seeded(build):
    def seeded(ways, *, seed=0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(ways)

    return seeded


@_seeded
def mlp(ways):
    """Four dense layers: 784, 256, 128, 64, ways."""
    sizes = 784, 256, 128, 64
    dense = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(nn.Flatten(), *(m for d in dense for m in (d, nn.ReLU())),
                         nn.Linear(64, ways))  # fmt: skip


class Block(nn.Module):
    """Two 3x3 convolutions with group norm around which the input goes, halved where stride 2."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(2))
        same = before == channels and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(before, channels, 1, stride)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.around(x) + self.norms[1](self.second(y)))


@_seeded
def resnet(ways):
    """A stem with stride 2 and four residual blocks of 32, 32, 64 and 64 channels."""
    sizes = (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1)
    stem = nn.Conv2d(1, 32, 3, 2, 1, bias=False), nn.GroupNorm(8, 32), nn.ReLU()
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, ways)
    return nn.Sequential(*stem, *(Block(*s) for s in sizes), *end)


class Transformer(nn.Module):
    """Sixteen patches of 7x7 pixels, two encoder layers of width 64 with four heads."""

    def __init__(self, ways):
        super().__init__()
        self.into, self.at = nn.Linear(49, 64), nn.Parameter(0.02 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, ways)

    def forward(self, x):
        patches = x.unflatten(2, (4, 7)).unflatten(4, (4, 7)).permute(0, 2, 4, 1, 3, 5)
        return self.out(self.encoder(self.into(patches.reshape(len(x), 16, 49)) + self.at).mean(1))


class LSTM(nn.Module):
    """The image row by row, 128 hidden numbers."""

    def __init__(self, ways):
        super().__init__()
        self.recurrent, self.out = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, ways)

    def forward(self, x):
        return self.out(self.recurrent(x[:, 0])[0][:, -1])


transformer, lstm = _seeded(Transformer), _seeded(LSTM)


NETWORKS = {
    "omniglot": (omniglot_net, (28, 28), FLOP),
    "mini-imagenet": (mini_imagenet_net, (3, 84, 84), POOLED_FLOP),
    "mlp": (mlp, (28, 28), None),
    "resnet": (resnet, (28, 28), None),
    "transformer": (transformer, (28, 28), None),
    "lstm": (lstm, (28, 28), None),
}
# The fewest bytes: parameters and second moments read and written in float32; xhat, activation
# and gradient of the four blocks written once and read once in bf16.
BYTES = 4 * 4 * 112_965 + 3 * 2 * 2 * BATCH * 64 * (196 + 49 + 16 + 4)
NAMES = {"ieee": "float32"}
CLOCK = [time.perf_counter]


def limit(bandwidth, tflops):
    """Task-steps per second that memory (GB/s) and matrix units (TFLOP/s) would allow; measured
    here where not given, on CUDA.
    """
    if bandwidth is None or tflops is None:
        big = torch.empty(2**31, dtype=torch.uint8, device="cuda").random_()
        other, square = torch.empty_like(big), torch.randn(8192, 8192, device="cuda").bfloat16()
        bandwidth = 2 * len(big) * timed(lambda: other.copy_(big), "cuda", 1.0) / 1e9
        tflops = 2 * 8192**3 * timed(lambda: square @ square, "cuda", 1.0) / 1e12
    memory, products = bandwidth * 1e9 / BYTES, tflops * 1e12 / FLOP
    print(f"a task-step: {FLOP / 1e9:.3f} GFLOP, at least {BYTES / 1e6:.2f} MB")
    print(f"memory at {bandwidth:,.0f} GB/s allows {memory:,.0f} task-steps/s")
    print(f"bf16 products at {tflops:,.0f} TFLOP/s allow {products:,.0f}")


def cpu_limit(build, pool):
    """Task-steps per second that a CPU's products and memory would allow, at rates measured here:
    products of large squares, products of a mini-batch with a layer's weights, and copies that no
    cache holds. The fewest bytes: theta read forward and back, theta and moments read and written.
    """
    size = sum(p.numel() for p in build(WAYS, seed=0).parameters())
    square, rows, weight = torch.randn(1024, 1024), torch.randn(BATCH, 128), torch.randn(128, 512)
    big = torch.empty(2**26)
    other, out = torch.empty_like(big), torch.empty(BATCH, 512)
    flop, moved = counted(build, pool), 6 * 4 * size
    rates = {
        "products of large squares": (flop, 2 * 1024**3, lambda: square @ square),
        f"products of {BATCH} rows": (
            flop, 2 * BATCH * 128 * 512, lambda: torch.mm(rows, weight, out=out)
        ),
        "memory": (moved, 2 * 4 * len(big), lambda: other.copy_(big)),
    }  # fmt: skip
    print(f"a task-step: {flop / 1e6:.1f} MFLOP, at least {moved / 1e6:.2f} MB")
    for name, (needs, each, body) in rates.items():
        best = max(timed(body, "cpu", 0.2) for _ in range(5))
        unit = "GB/s" if name == "memory" else "GFLOP/s"
        allows = best * each / needs
        print(f"{name} at {best * each / 1e9:,.0f} {unit} allow {allows:,.0f} task-steps/s")


def timed(body, device, seconds):
    """Calls of ``body`` per second, after a warm-up."""
    body()
    body()
    sync(device)
    start, calls = CLOCK[0](), 0
    while True:
        body()
        calls += 1
        if calls % 4 == 0 or device == "cpu":
            sync(device)
            if CLOCK[0]() - start > seconds:
                return calls / (CLOCK[0]() - start)


def sync(device):
    if device == "cuda":
        torch.cuda.synchronize()


def eager(build, pool, device, seconds):
    """One task after another: nn.Module, autograd, torch.optim."""
    net = build(WAYS, seed=0).to(device)
    start = {k: v.clone() for k, v in net.state_dict().items()}
    index, label = pool.tasks(WAYS, 10, batch=BATCH, steps=STEPS).draw(0, 20)
    tasks = [0]

    def body():
        net.load_state_dict(start)
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.0, 0.999))
        k = tasks[0] = (tasks[0] + 1) % 20
        for s in range(STEPS):
            optimiser.zero_grad()
            F.cross_entropy(net(pool.inputs[index[k, s]].float()), label[k, s]).backward()
            optimiser.step()

    return STEPS * timed(body, device, seconds)


def counted(build, pool):
    """Operations of one step on one task, forward and back, as torch counts them."""
    net, x = build(WAYS, seed=0), pool.inputs[:BATCH].cpu().float()
    net = net.double()  # else oneDNN runs recurrent layers, of which torch counts nothing
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(net(x.double()), torch.zeros(BATCH, dtype=torch.int64)).backward()
    return counter.get_total_flops()


def vmapped(build, pool, device, seconds, stack):
    """torch.func: vmap of grad over stacked parameters, Adam written on stacked tensors."""
    net = build(WAYS, seed=0).to(device)
    index, label = pool.tasks(WAYS, 10, batch=BATCH, steps=STEPS).draw(0, stack)
    names = dict(net.named_parameters())

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(net, parameters, (x,)), y)

    gradient = vmap(grad(loss))

    def body():
        theta = {n: p.detach().expand(stack, *p.shape).clone() for n, p in names.items()}
        second = {n: torch.zeros_like(p) for n, p in theta.items()}
        for s in range(STEPS):
            g = gradient(theta, pool.inputs[index[:, s]].float(), label[:, s])
            for n in theta:
                second[n].mul_(0.999).addcmul_(g[n], g[n], value=0.001)
                size = second[n].div(1 - 0.999 ** (s + 1)).sqrt_().add_(1e-8)
                theta[n].addcdiv_(g[n], size, value=-1e-3)

    return stack * STEPS * timed(body, device, seconds)


def ours(build, pool, device, seconds, stack, precision):
    """MetaTrainer with ``stack`` tasks a meta-iteration."""
    tasks = pool.tasks(WAYS, 10, batch=BATCH, steps=STEPS)
    rules = Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 10**6)
    how = {"meta_batch": stack, "precision": precision}
    trainer = MetaTrainer(build(WAYS, seed=0).to(device), *rules, **how)
    chunk = max(1, 40 // stack)
    if device != "cpu":  # there a training is a few long calls
        chunk = 8 if build is mini_imagenet_net else max(128, 10_240 // stack)
    trainer.fit(tasks, 2)
    loop = trainer.loop
    path = "in turn" if loop.plain_cpu else "plain"
    by_hand = loop.hand is not None or (loop.plain_cpu and dense(trainer.module))
    path = "by hand" if by_hand else path
    path = "fused" if loop.plan is not None or loop.pooled else path

    def body():
        trainer.fit(tasks, trainer.iteration + chunk)

    return chunk * stack * STEPS * timed(body, device, seconds), path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", choices=list(NETWORKS), default="omniglot")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    parser.add_argument("--stacks", type=int, nargs="*", default=None)
    parser.add_argument("--precisions", nargs="*", default=None)
    rounds = "rounds of everything, of which the best counts"
    parser.add_argument("--rounds", type=int, default=3, help=rounds)
    parser.add_argument("--threads", type=int, default=None, help="on a CPU (default: all cores)")
    processor = "count processor time: for one thread on a busy machine"
    parser.add_argument("--processor-time", action="store_true", help=processor)
    allowed = "only print what memory and products would allow"
    parser.add_argument("--limit", action="store_true", help=allowed)
    parser.add_argument("--bandwidth", type=float, help="GB/s, for --limit (default: measured)")
    parser.add_argument("--tflops", type=float, help="of bf16, for --limit (default: measured)")
    parser.add_argument("--out")
    args = parser.parse_args()
    device, cuda = args.device, args.device == "cuda"
    if args.processor_time:
        CLOCK[0] = time.process_time
    if not cuda:
        torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rng = np.random.default_rng(0)
    build, shape, flop = NETWORKS[args.network]
    images = rng.random((4000, *shape), dtype=np.float32)
    images = (images > 0.2).astype(np.uint8) if len(shape) == 2 else images
    if args.limit and (cuda or (args.bandwidth and args.tflops)):
        return limit(args.bandwidth, args.tflops)
    pool = Pool.of(images, np.repeat(np.arange(200), 20), device)
    if args.limit:
        return cpu_limit(build, pool)
    stacks = args.stacks or ((5, 40, 160, 640) if cuda else (5, 40))
    precisions = args.precisions or (("bf16", "tf32") if cuda else ("ieee",))
    name = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    best: dict[tuple, tuple] = {}  # (how, stack) -> (rate, memory), in the order of the first round

    def measure(how, stack, body):
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        found = body()
        rate, path = found if isinstance(found, tuple) else (found, None)
        key = f"{how} ({path})" if path else how, stack
        memory = torch.cuda.max_memory_allocated() if cuda else None
        best[key] = max(best.get(key, (0.0, memory)), (rate, memory), key=lambda pair: pair[0])

    about = {"device": name, "network": args.network, "ways": WAYS, "batch": BATCH}
    about |= {"steps": STEPS, "rounds": args.rounds}
    given = build, pool, device, args.seconds
    with record("benchmarks/deep.py", **about) as entry:
        flop = flop or counted(build, pool)
        print(f"{name}; {flop / 1e9:.3f} GFLOP a task-step", flush=True)
        for _ in range(args.rounds):
            measure("eager, torch.optim", 1, partial(eager, *given))
            for stack in stacks:
                if stack <= 160 and args.network in ("omniglot", "mini-imagenet", "mlp"):
                    measure("torch.func.vmap", stack, partial(vmapped, *given, stack))
            for precision in precisions:
                how = f"fmrl.deep, {NAMES.get(precision, precision)}"
                for stack in stacks:
                    measure(how, stack, partial(ours, *given, stack, precision))
        base = next(iter(best.values()))[0]
        entry["rows"] = [
            {
                "how": how, "stack": stack, "task-steps/s": round(rate, 1),
                "TFLOP/s": round(rate * flop / 1e12, 4),
                "GB": None if memory is None else round(memory / 1e9, 2),
                "ratio": round(rate / base, 2),
            }
            for (how, stack), (rate, memory) in best.items()
        ]  # fmt: skip
        for row in entry["rows"]:
            speed = f"{row['task-steps/s']:12,.0f} task-steps/s {row['TFLOP/s']:8.3f} TFLOP/s"
            print(f"{row['how']:28} {row['stack']:5} {speed} {row['ratio']:8.2f}x", flush=True)
    if args.out:
        write_json(args.out, entry)
        print(json.dumps({"written": args.out}))


if __name__ == "__main__":
    main()

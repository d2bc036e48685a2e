"""A training to be started by torchrun, and by the test itself in one process: digits, float64,
four compositions.
"""

# ruff: noqa: E402

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from sklearn.datasets import load_digits
from torch import nn

from fmrl.deep import (
    SGD,
    Adam,
    AdaptiveOGD,
    Doubling,
    FLIBatch,
    FLIOnline,
    Interpolate,
    Isotropic,
    MetaTrainer,
    Pool,
    Ranks,
    load,
    save,
)

torch.set_num_threads(1)
KINDS = {
    "reptile": (Adam(1e-3), FLIOnline(), Interpolate(1.0, 0.0, 40), None),
    "doubling": (SGD(lipschitz=5.0), FLIBatch(), AdaptiveOGD(), Doubling(0.05, 1.1, first=0.5)),
    "sgd": (SGD(0.05), FLIOnline(), Interpolate(0.5, 0.5, 1), None),
    "isotropic": (SGD(), FLIOnline(), Interpolate(0.5, 0.5, 1), Isotropic(0.05)),
}


def trainer(kind: str, ranks: Ranks | None, seed: int = 0) -> tuple[MetaTrainer, list]:
    """Two runs side by side, meta-batches of five: no even number for two ranks."""
    X, y = load_digits(return_X_y=True)
    pool = Pool.of(X / 16, y)
    tasks = [pool.tasks(5, 4, batch=5, steps=4, seed=s) for s in (1, 2)]
    nets = []
    for s in (seed, seed + 1):
        torch.manual_seed(s)
        nets.append(nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5)).double())
    within, update, meta, similarity = KINDS[kind]
    return MetaTrainer(nets, within, update, meta, similarity, meta_batch=5, ranks=ranks), tasks


def main(folder: Path) -> None:
    """Every composition: 6 meta-iterations, a checkpoint, 6 more."""
    ranks = Ranks.start("gloo")  # on CPUs, whatever GPUs there are
    for kind in KINDS:
        made, tasks = trainer(kind, ranks, seed=0 if ranks.first else 7)  # rank 0's modules count
        save(made.fit(tasks, 6), folder / f"{kind}-6.safetensors")
        assert (folder / f"{kind}-6.safetensors").exists()  # on every rank: save waits
        save(made.fit(tasks, 12), folder / f"{kind}-12.safetensors")
        torch.save(torch.cat(made.losses), folder / f"{kind}-losses-{ranks.rank}.pt")
        resumed, _ = trainer(kind, ranks)
        load(resumed, folder / "alone" / f"{kind}-6.safetensors").fit(tasks, 12, seconds=1e6)
        save(resumed, folder / f"{kind}-resumed.safetensors")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

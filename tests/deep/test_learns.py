"""Meta-training reaches an accuracy that the plain initialisation cannot; and importing fmrl does
not import torch.
"""
# ruff: noqa: E402

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fmrl.deep import Adam, Interpolate, MetaTrainer, Pool, evaluate, omniglot_net

torch.set_num_threads(1)


def _pool():
    """Omniglot where the data is, else scikit-learn's digits: (pool, training classes, test
    classes, side).
    """
    folder = os.environ.get("FMRL_DATA")
    if folder and (Path(folder) / "omniglot_105_packed.npz").exists():
        from fmrl.datasets.episodes import shuffled
        from fmrl.datasets.images import load_omniglot

        images = load_omniglot(Path(folder) / "omniglot_105_packed.npz", size=14)
        order = shuffled(1623, seed=0).tolist()
        return Pool.of_images(images), order[:1200], order[1200:], 14
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (
        Pool.of(digits.images.astype(np.float32) / 16, digits.target),
        list(range(7)),
        list(range(7, 10)),
        8,
    )


def test_learns_to_learn():
    pool, train, test, side = _pool()
    ways = 5 if len(test) >= 5 else 3
    iterations, steps, count = (100, 10, 100) if side == 8 else (300, 20, 200)
    net = omniglot_net(ways, filters=16, side=side, seed=0)
    tasks = pool.tasks(ways, 10, batch=10, steps=5, seed=0, classes=train)
    episodes = pool.tasks(ways, 1, batch=ways, steps=steps, queries=1, seed=1, classes=test)
    judge = {"protocol": "transductive", "count": count, "compare": False}
    before = evaluate(net, episodes, steps, within=Adam(2e-3), **judge)
    trainer = MetaTrainer(net, Adam(2e-3), meta=Interpolate(1.0, 0.0, iterations), meta_batch=5)
    after = evaluate(trainer.fit(tasks, iterations), episodes, steps, **judge)
    assert after.interval[0] > before.interval[1], (before, after)
    assert after.accuracy > 1.5 / ways


def test_torch_stays_out_of_the_core():
    code = "import sys, fmrl; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

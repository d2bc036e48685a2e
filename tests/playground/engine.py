"""What fmrl.deep itself answers, from the checkpoint of the playground or from any start."""

from __future__ import annotations

import json

import numpy as np
import torch

from fmrl.core.rules.meta import Interpolate
from fmrl.deep import Adam, MetaTrainer, adapt, load, omniglot_net
from fmrl.deep.networks import Layout
from fmrl.playground.weights import OWN

SIDE = 28


def trainer(training):
    """A trainer in the state of the checkpoint that scripts/train_playground.py wrote."""
    path, record = training.HOME / OWN, json.loads((training.HOME / "omniglot.json").read_text())
    net = omniglot_net(training.WAYS, filters=training.FILTERS)
    meta = Interpolate(1.0, 0.0, record["configuration"]["iterations"])
    made = MetaTrainer(net, Adam(training.STEP), meta=meta, meta_batch=training.META_BATCH)
    return load(made, path)


def pictures(pixels):
    return torch.tensor(np.asarray(pixels), dtype=torch.float32).view(-1, 1, SIDE, SIDE)


def answer(learner, images, labels, query, steps, within=None):
    """Probabilities of the query, in one batch with the drawings, after so many steps on these."""
    images, query = pictures(images), pictures(query)
    net = adapt(learner, images, labels, steps, within=within)
    with torch.no_grad():
        return torch.softmax(net(torch.cat([images, query]))[-1], 0).numpy()


def network(theta, ways, filters):
    """A network with the parameters theta."""
    net = omniglot_net(ways, filters=filters)
    return Layout.of(net).module(net, torch.tensor(theta, dtype=torch.float32))

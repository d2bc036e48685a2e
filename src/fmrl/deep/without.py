"""What a user would have got without meta-learning, on the same samples and queries: models of the
inputs for many tasks at once.

Both models of classes, and ridge regression, need of the inputs only their inner products, so a
stack of tasks costs a stack of small matrices whatever the size of an input."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from fmrl.deep.losses import Loss, squared_error
from fmrl.deep.tasks import Queried

NUMBERS = 2**25  # of the inputs looked at at once
LENGTH = 100.0  # mean squared length of the rows that a model with penalty ½‖w‖² is given
MOST, TOLERANCE = 500, 1e-4  # steps of logistic regression, and the largest slope it ends with
START, MEANS, LOGISTIC = "the same network untrained", "nearest class mean", "logistic regression"
CONSTANT, RIDGE = "the mean of the samples", "ridge regression"


class Products(NamedTuple):
    """Inner products of n tasks' rows, centred on each task's samples and scaled to `LENGTH`."""

    own: torch.Tensor  # [n, S, S] of the samples
    asked: torch.Tensor  # [n, Q, S] of queries and samples

    @classmethod
    def of(cls, inputs: torch.Tensor, support: torch.Tensor, query: torch.Tensor) -> Products:
        """Of rows ``support`` [n, S] and ``query`` [n, Q] of a table."""
        kind = inputs.dtype if inputs.dtype in (torch.float32, torch.float64) else torch.float32
        X, Q = (inputs[rows].to(kind).flatten(2) for rows in (support, query))
        centre = X.mean(1, keepdim=True)
        X, Q = X - centre, Q - centre
        square = X.square().sum(2).mean(1)[:, None, None].double()
        scale = LENGTH / torch.where(square > 0, square, torch.ones_like(square))
        return cls(*((A @ X.transpose(1, 2)).double() * scale for A in (X, Q)))


def nearest_mean(rows: Products, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """−½ squared distance of queries to the mean of each class, up to what all classes share.

    Args:
        rows: Of n tasks.
        labels: [n, S] of the samples.
        classes: How many there may be; one without samples is infinitely far.

    Returns:
        [n, Q, classes].
    """
    members = F.one_hot(labels, classes).to(rows.own.dtype)  # [n, S, C]
    count = members.sum(1, keepdim=True)
    share = members / count.clamp_min(1)
    size = (share * (rows.own @ share)).sum(1, keepdim=True)
    return (rows.asked @ share - size / 2).masked_fill(count == 0, -torch.inf)


def logistic(rows: Products, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Logits [n, Q, classes] of softmax regression with the penalty ½‖w‖² and free intercepts.

    Minimises Σ_i CE(W x_i + b, y_i) + ½‖W‖² for every task, in the coordinates of its samples'
    principal axes. There ½λ + 1 bounds the curvature in each, so every coordinate has a step of
    its own; momentum begins anew in a task whose last step went uphill.
    """
    target = F.one_hot(labels, classes).to(rows.own.dtype)
    values, axes = torch.linalg.eigh(rows.own)
    kept = values > 1e-10 * values.amax(1, keepdim=True).clamp_min(1e-300)
    values, root = values * kept, torch.where(kept, values, torch.ones_like(values)).sqrt()
    axes = axes * kept[:, None]
    one = torch.ones_like(axes[:, :, :1])
    Z = torch.cat([axes * root[:, None], one], 2)  # [n, S, S + 1], the last for the intercept
    penalty = torch.ones_like(Z[:, 0])
    penalty[:, -1] = 0
    energy = torch.cat([values, torch.full_like(values[:, :1], Z.shape[1])], 1)
    step = (1 / (energy / 2 + penalty))[..., None]
    W = before = torch.zeros(len(Z), Z.shape[2], classes, dtype=Z.dtype, device=Z.device)
    age = torch.zeros(len(Z), 1, 1, dtype=Z.dtype, device=Z.device)
    for i in range(MOST):
        ahead = W + age / (age + 3) * (W - before)
        slope = Z.transpose(1, 2) @ ((Z @ ahead).softmax(2) - target) + penalty[..., None] * ahead
        before, W = W, ahead - step * slope
        uphill = (slope * (W - before)).sum((1, 2), keepdim=True) > 0
        age = torch.where(uphill, torch.zeros_like(age), age + 1)
        if i % 25 == 24 and float(slope.abs().max()) < TOLERANCE:
            break
    asked = rows.asked @ (axes / root[:, None])
    return torch.cat([asked, torch.ones_like(asked[:, :, :1])], 2) @ W


def ridge(rows: Products, targets: torch.Tensor) -> torch.Tensor:
    """Answers [n, Q, k] of least squares with the penalty ½‖w‖²; the intercept is free."""
    centre = targets.mean(1, keepdim=True)
    eye = torch.eye(rows.own.shape[1], dtype=rows.own.dtype, device=rows.own.device)
    return centre + rows.asked @ torch.linalg.solve(rows.own + eye, targets - centre)


def scores(
    inputs: torch.Tensor, group: Queried, what: str, loss: Loss, classes: int
) -> dict[str, torch.Tensor]:
    """The score of each of n tasks, [n], by models of the inputs; those that fit the question.

    Args:
        inputs: The table.
        group: Tasks of one shape.
        what: "accuracy" or "loss".
        loss: Of the network. What is no class is predicted where it is the squared error.
        classes: Outputs of the network.
    """
    known = group.support_targets
    if known is None or (known.is_floating_point() and loss is not squared_error):
        return {}
    labelled = not known.is_floating_point() and known.ndim == 2 and loss is not squared_error
    width = group.support.shape[1] + group.query.shape[1]
    many = max(1, NUMBERS // (width * inputs[0].numel()))
    pieces: list[dict[str, torch.Tensor]] = []
    for at in range(0, len(group.support), many):
        piece = slice(at, at + many)
        rows = Products.of(inputs, group.support[piece], group.query[piece])
        found, answers = known[piece], group.targets[piece]
        if labelled:
            outputs = {LOGISTIC: logistic(rows, found, classes)}
            if what == "accuracy":  # distances are no log-likelihoods
                outputs[MEANS] = nearest_mean(rows, found, classes)
        else:
            flat = found.reshape(*found.shape[:2], -1).double()
            mean = flat.mean(1, keepdim=True).expand(-1, answers.shape[1], -1)
            outputs = {RIDGE: ridge(rows, flat), CONSTANT: mean}
        if what == "accuracy":
            judged = {k: v.argmax(-1).eq(answers).double().mean(1) for k, v in outputs.items()}
        else:
            judged = {k: loss(v, answers).double() for k, v in outputs.items()}
        pieces.append(judged)
    return {name: torch.cat([p[name] for p in pieces]) for name in pieces[0]}


def drawn_anew(module: nn.Module) -> nn.Module | None:
    """A copy with its parameters drawn again by their layers' ``reset_parameters``; what is frozen
    stays. None where a parameter has no layer that can draw it.
    """
    other, device = copy.deepcopy(module), next(module.parameters()).device
    held = {n: p.detach().clone() for n, p in other.named_parameters() if not p.requires_grad}
    drawn = {id(p) for p in other.parameters() if not p.requires_grad}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        for layer in other.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
                drawn |= {id(p) for p in layer.parameters()}
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name in held:
                parameter.copy_(held[name])
    return other if all(id(p) in drawn for p in other.parameters()) else None


def readable(module: nn.Module) -> bool:
    """Whether a model of the inputs' numbers makes sense: not where they name words."""
    return not any(isinstance(layer, nn.Embedding) for layer in module.modules())

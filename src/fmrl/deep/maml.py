"""MAML and its first-order form, for comparison: the meta-gradient of the query loss after
adaptation, by torch.func.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import grad, vmap

from fmrl.deep.batches import TasksWithQueries, whole
from fmrl.deep.checks import suited
from fmrl.deep.engines.iteration import STRETCH
from fmrl.deep.layout import Layout, bind
from fmrl.deep.losses import Loss, cross_entropy
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class MAML:
    """phi ← phi − outer·mean_t ∇ L_query(theta_t(phi)), theta_t after SGD steps of size ``inner``
    on the task's mini-batches.

    ``first_order`` takes the gradient at theta_t instead of differentiating through the steps. The
    outer optimiser is Adam. ``loss`` is as for `MetaTrainer`: of outputs [T, B, …] and targets [T,
    B, …], one number for each task.

    >>> from fmrl.deep import Arrays
    >>> X, y = torch.eye(2), [0, 1]
    >>> trained = MAML(0.1, 0.1).fit(nn.Linear(2, 2), Arrays([(X, y, X, y)], batch=2, steps=1), 100)
    >>> trained(X).argmax(1).tolist()
    [0, 1]
    """

    inner: float = 0.1
    outer: float = 1e-3
    first_order: bool = False
    loss: Loss = cross_entropy

    def __post_init__(self):
        for name in ("inner", "outer"):
            if not 0 < getattr(self, name) < float("inf"):
                raise FMRLError(f"{name}={getattr(self, name)!r} must be positive and finite")

    def fit(
        self, module: nn.Module, tasks: TasksWithQueries, iterations: int, meta_batch: int = 5, *, seed: int = 0,
        each: Callable[[int, nn.Module], None] | None = None, every: int | None = None, seconds: float | None = None,
    ) -> nn.Module:  # fmt: skip
        """A trained copy of ``module``; ``tasks``, from a Pool or as Arrays, must have queries.

        seed: which stretch of the sequence is played. each: called with the number of
        meta-iterations done and the module so far, after every ``every`` of them and at the end.
        seconds: stop when they are over."""
        whole(1, meta_batch=meta_batch, every=1 if every is None else every)
        whole(0, iterations=iterations, seed=seed)
        if not hasattr(tasks, "queried") or tasks.queries < 1:
            raise FMRLError(
                "MAML needs queries in its training tasks",
                fix="draw them with queries=1, or give Arrays (X, y, Xq, yq)",
            )
        apply = suited(module, tasks, self.loss, "functional")
        if apply.looped:
            raise FMRLError(f"{apply.name} does not go through torch.func.vmap, which MAML needs")
        layout, deadline = (
            Layout.of(module),
            None if seconds is None else time.monotonic() + seconds,
        )
        phi = layout.flat(module).clone().requires_grad_()
        optimiser = torch.optim.Adam([phi], lr=self.outer)
        for i in range(iterations):
            index, label, groups = tasks.queried(seed * STRETCH + i * meta_batch, meta_batch)
            phi.grad = torch.zeros_like(phi)
            for g in groups:  # tasks of one shape
                X, Q = (
                    apply.cast(tasks.inputs[rows], phi.dtype) for rows in (index[g.at], g.query)
                )
                phi.grad += self.gradient(module, layout, phi, (X, label[g.at], Q, g.targets)) * (
                    len(g.at) / meta_batch
                )
            optimiser.step()
            late = deadline is not None and time.monotonic() > deadline
            if each is not None and (
                i + 1 == iterations or late or (every and (i + 1) % every == 0)
            ):
                each(i + 1, layout.module(module, phi.detach()))
            if late:
                break
        return layout.module(module, phi.detach())

    def gradient(
        self, module: nn.Module, layout: Layout, phi: torch.Tensor, batch: Any
    ) -> torch.Tensor:
        """The mean meta-gradient [P] over tasks: batch = X [K, S, B, ...], y [K, S, B], queries [K,
        Q, ...], labels [K, Q].
        """
        call, frozen = bind(module), layout.mask(phi.device)
        free = 1.0 if frozen is None else (~frozen).to(phi.dtype)

        def loss(theta, x, y):
            return self.loss(call(theta, x)[None], y[None])[0]

        def adapted(start, x, y):
            theta = start
            for s in range(x.shape[0]):
                theta = theta - self.inner * free * grad(loss)(theta, x[s], y[s])
            return theta

        if self.first_order:
            ends = vmap(adapted, in_dims=(None, 0, 0))(phi.detach(), batch[0], batch[1])
            return free * vmap(grad(loss))(ends, batch[2], batch[3]).mean(0)

        def after(start, x, y, q, z):
            return loss(adapted(start, x, y), q, z)

        return free * vmap(grad(after), in_dims=(None, 0, 0, 0, 0))(phi.detach(), *batch).mean(0)

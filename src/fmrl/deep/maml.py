"""MAML and its first-order form, for comparison, by torch.func."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import nn
from torch.func import grad, vmap

from fmrl.deep.checks import suited, whole
from fmrl.deep.engines.forms import counters
from fmrl.deep.engines.functions import Replacing
from fmrl.deep.engines.iteration import STRETCH
from fmrl.deep.losses import Loss, cross_entropy
from fmrl.deep.networks import Layout, bind
from fmrl.deep.tasks import TasksWithQueries
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class MAML:
    """phi ← phi − outer·mean_t ∇ L_query(theta_t(phi)), theta_t after SGD steps on the task.

    The outer optimiser is Adam.

    Args:
        inner: Step of SGD inside a task.
        outer: Step of the outer optimiser.
        first_order: Take the gradient at theta_t instead of differentiating through the steps.
        loss: Of outputs [T, B, ...] and targets [T, B, ...]; returns [T], as for `MetaTrainer`.

    >>> from fmrl.deep import Arrays
    >>> X, y = torch.eye(2), [0, 1]
    >>> tasks = Arrays([(X, y, X, y)], batch=2, steps=1)
    >>> MAML(0.1, 0.1).fit(nn.Linear(2, 2), tasks, 100)(X).argmax(1).tolist()
    [0, 1]
    """

    inner: float = 0.1
    outer: float = 1e-3
    first_order: bool = False
    loss: Loss = cross_entropy

    def __post_init__(self):
        for name in ("inner", "outer"):
            step = getattr(self, name)
            if not isinstance(step, Real):
                raise FMRLError(f"{name}={step!r} is not a number", fix="give its step, e.g. 0.1")
            if not 0 < step < float("inf"):
                raise FMRLError(f"{name}={step!r} must be positive and finite")

    def fit(
        self, module: nn.Module, tasks: TasksWithQueries, iterations: int, meta_batch: int = 5, *,
        seed: int = 0, each: Callable[[int, nn.Module], None] | None = None,
        every: int | None = None, seconds: float | None = None,
    ) -> nn.Module:  # fmt: skip
        """A trained copy of ``module``.

        Args:
            module: The network; it is not changed.
            tasks: From a Pool or as Arrays, with queries.
            iterations: Meta-iterations.
            meta_batch: Tasks of a meta-iteration.
            seed: Which stretch of the sequence is played.
            each: Called with the meta-iterations done and the module so far, after every ``every``
                of them and at the end.
            every: Meta-iterations between two calls of ``each``.
            seconds: Stop when they are over.
        """
        whole(1, meta_batch=meta_batch, every=1 if every is None else every)
        whole(0, iterations=iterations, seed=seed)
        if not hasattr(tasks, "queried") or tasks.queries < 1:
            fix = "draw them with queries=1, or give Arrays (X, y, Xq, yq)"
            raise FMRLError("MAML needs queries in its training tasks", fix=fix)
        apply, layout = suited(module, tasks, self.loss, "functional"), Layout.of(module)
        if apply.looped:
            raise FMRLError(f"{apply.name} does not go through torch.func.vmap, which MAML needs")
        if apply.drops:
            what = f"{apply.name} drops units at random, which MAML's gradients do not repeat"
            raise FMRLError(what, fix="set p=0, or call eval() on these layers")
        deadline = None if seconds is None else time.monotonic() + seconds
        phi = layout.flat(module).clone().requires_grad_()
        optimiser = torch.optim.Adam([phi], lr=self.outer)
        for i in range(iterations):
            index, label, groups = tasks.queried(seed * STRETCH + i * meta_batch, meta_batch)
            phi.grad = torch.zeros_like(phi)
            for g in groups:  # tasks of one shape
                rows = index[g.at], g.query
                X, Q = (apply.cast(tasks.inputs[r], phi.dtype) for r in rows)
                mean = self.gradient(module, layout, phi, (X, label[g.at], Q, g.targets))
                phi.grad += mean * (len(g.at) / meta_batch)
            optimiser.step()
            late = deadline is not None and time.monotonic() > deadline
            due = i + 1 == iterations or late or (every and (i + 1) % every == 0)
            if each is not None and due:
                each(i + 1, layout.module(module, phi.detach()))
            if late:
                break
        return layout.module(module, phi.detach())

    def gradient(
        self, module: nn.Module, layout: Layout, phi: torch.Tensor, batch: Any
    ) -> torch.Tensor:
        """The mean meta-gradient [P] over K tasks.

        batch: X [K, S, B, ...], y [K, S, B, ...], queries [K, Q, ...], their targets [K, Q, ...].
        """
        call, frozen = bind(module), layout.mask(phi.device)
        free = 1.0 if frozen is None else (~frozen).to(phi.dtype)

        def loss(theta, x, y):
            with Replacing(stacked=False):
                return self.loss(call(theta, x, counters(module))[None], y[None])[0]

        def adapted(theta, x, y):
            for s in range(x.shape[0]):
                theta = theta - self.inner * free * grad(loss)(theta, x[s], y[s])
            return theta

        if self.first_order:
            ends = vmap(adapted, in_dims=(None, 0, 0))(phi.detach(), batch[0], batch[1])
            return free * vmap(grad(loss))(ends, batch[2], batch[3]).mean(0)

        def after(start, x, y, q, z):
            return loss(adapted(start, x, y), q, z)

        return free * vmap(grad(after), in_dims=(None, 0, 0, 0, 0))(phi.detach(), *batch).mean(0)

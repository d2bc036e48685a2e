"""MAML and its first-order form, for comparison: the meta-gradient of the query loss after adaptation, by torch.func."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fmrl.core.errors import FMRLError
from fmrl.deep.layout import Layout
from fmrl.deep.tasks import FewShot


@dataclass(frozen=True)
class MAML:
    """phi ← phi − outer·mean_t ∇ L_query(theta_t(phi)), theta_t after SGD steps of size ``inner`` on the task's mini-batches.

    ``first_order`` takes the gradient at theta_t instead of differentiating through the steps. The outer optimiser is Adam.
    """

    inner: float = 0.1
    outer: float = 1e-3
    first_order: bool = False

    def fit(self, module: nn.Module, tasks: FewShot, iterations: int, meta_batch: int = 5) -> nn.Module:
        """A trained copy of ``module``; ``tasks`` must have queries."""
        if tasks.episodes.queries < 1:
            raise FMRLError("MAML needs queries in its training tasks", fix="draw them with queries=1 or more")
        layout = Layout.of(module)
        phi = layout.flat(module).clone().requires_grad_()
        optimiser = torch.optim.Adam([phi], lr=self.outer)
        labels = tasks.query_labels.expand(meta_batch, -1)
        for i in range(iterations):
            index, label, _, query = tasks.draw_queries(i * meta_batch, meta_batch)
            X, Q = tasks.inputs[index].to(phi.dtype), tasks.inputs[query].to(phi.dtype)
            phi.grad = self.gradient(module, layout, phi, (X, label, Q, labels))
            optimiser.step()
        return layout.module(module, phi.detach())

    def gradient(self, module: nn.Module, layout: Layout, phi: torch.Tensor, batch: Any) -> torch.Tensor:
        """The mean meta-gradient [P] over tasks: batch = X [K, S, B, ...], y [K, S, B], queries [K, Q, ...], labels [K, Q]."""

        def loss(theta, x, y):
            return F.cross_entropy(functional_call(module, layout.split(theta), (x,)), y)

        def adapted(start, x, y):
            theta = start
            for s in range(x.shape[0]):
                theta = theta - self.inner * grad(loss)(theta, x[s], y[s])
            return theta

        if self.first_order:
            ends = vmap(adapted, in_dims=(None, 0, 0))(phi.detach(), batch[0], batch[1])
            return vmap(grad(loss))(ends, batch[2], batch[3]).mean(0)

        def after(start, x, y, q, z):
            return loss(adapted(start, x, y), q, z)

        return vmap(grad(after), in_dims=(None, 0, 0, 0, 0))(phi.detach(), *batch).mean(0)

"""A client's network: its arrays by name, its inner steps by `fmrl.deep`, and its scores. Nothing
here needs Flower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fmrl.core.metric import Diagonal, Metric
from fmrl.deep.adaptation import ends
from fmrl.deep.checks import extent
from fmrl.deep.engines.inner import InnerLoop, in_module_order
from fmrl.deep.engines.stacked import Stacked
from fmrl.deep.losses import CLASSIFIES, Loss, cross_entropy
from fmrl.deep.meta_level import OBSERVED, MetaLevel, Played
from fmrl.deep.networks import Layout
from fmrl.deep.within import SGD, known
from fmrl.errors import FMRLError
from fmrl.federated.server import Arrays, Form


class Ended(NamedTuple):
    """A client's round."""

    arrays: dict[str, np.ndarray]  # the update vector, by name
    seen: np.ndarray | None  # [k] what the similarity rule asked to observe
    sigma: float  # G·√m, the weight of a task in Algorithm 2
    loss: float  # mean over the inner steps


@dataclass(frozen=True, eq=False)
class Network:
    """A module and how a client adapts it.

    Args:
        module: The client's copy of the network; its parameters are not changed.
        within: `SGD`, or `Adam` with ``carry=False``. Its own step counts only where the server
            sends none.
        update: Which vector of the inner run is sent: FLIOnline, FLIBatch or LongRun.
        loss: Of outputs [T, B, ...] and targets [T, B, ...]; returns [T].
    """

    module: nn.Module
    within: Any
    update: Any
    loss: Loss = cross_entropy

    def __post_init__(self):
        if known(self.within).carry:
            what = f"{self.within!r} carries moments from task to task, which no server sends"
            raise FMRLError(what, fix="use SGD(), or Adam(carry=False)")
        MetaLevel(SGD(1.0), self.update)  # refuses an update rule that no network can follow

    def at(self, arrays: Arrays) -> nn.Module:
        """A copy of the module with the arrays that the server sent."""
        module = Layout.of(self.module).module(
            self.module, Layout.of(self.module).flat(self.module)
        )
        found = {name: torch.as_tensor(np.array(a)) for name, a in arrays.items()}
        try:
            module.load_state_dict(found)
        except RuntimeError as error:
            what = f"the server's arrays are not those of {type(module).__name__}: {error}"
            fix = "start the server with ArrayRecord(module.state_dict())"
            raise FMRLError(what, fix=fix) from None
        return module

    def play(
        self, arrays: Arrays, tasks: Any, number: int, guess: Any = None, *, absolute: bool = True,
        observes: str | None = None, masks: int | None = None,
    ) -> Ended:  # fmt: skip
        """Adapt from the server's arrays to task ``number`` of ``tasks``.

        Args:
            arrays: phi, by the names of the module's state dict.
            tasks: The client's own sequence of tasks, such as `fmrl.deep.Arrays`.
            number: Which of them: it decides the order of samples.
            guess: The step, a number or a `Diagonal`, or D where it is not ``absolute``; None for
                the step of ``within``.
            absolute: Whether the guess is the step itself.
            observes: What to observe: None, "norms" or "squares".
            masks: What dropout draws its masks from; by default ``number``.
        """
        if observes not in OBSERVED:
            fix = "use PerCoordinate(epsilon) or Isotropic(epsilon)"
            raise FMRLError(f"a network does not observe {observes!r}", fix=fix)
        module, form, rounds = self.at(arrays), Form.of(arrays), tasks.steps
        layout, phi = Layout.of(module), Layout.of(module).flat(module)
        sigma = self._sigma(layout.size, rounds, guess is None or absolute)
        eta = self._eta(module, form, guess, 1.0 if absolute else sigma)
        long = getattr(self.update, "longer", None)
        tasks = tasks if long is None else long([tasks])[0]
        index, label = tasks.draw(number, 1)
        averages = MetaLevel(SGD(1.0), self.update).averages
        loop = InnerLoop(
            module, self.within, tasks.inputs, tasks=1, steps=tasks.steps, batch=tasks.batch,
            loss=self.loss, average=averages, targets=label, shaped=eta.ndim == 1,
            observe=rounds if observes else 0,
        )  # fmt: skip
        loop.check(extent(tasks))
        order = slice(None) if loop.order is None else loop.order
        loop.index.copy_(index.transpose(0, 1))
        loop.label.copy_(label.transpose(0, 1))
        loop.theta.copy_(phi[order])
        loop.eta.copy_(eta[order] if eta.ndim else eta)
        loop.bias.copy_(loop.bias_at(0))
        if loop.number is not None:
            loop.number.fill_(number if masks is None else masks)
        loop.play()
        average = (
            None if loop.average is None else in_module_order(loop.average, loop.order) / loop.steps
        )
        theta = self.update.vector(Played(ends(loop), average), None)[0]
        seen = self._seen(module, form, loop, observes)
        return Ended(_arrays(layout.module(module, theta)), seen, sigma, float(loop.losses.mean()))

    def scores(self, arrays: Arrays, X: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """Mean loss on samples, and the accuracy where the loss is one of classes.

        Args:
            arrays: Where the network stands.
            X: [n, ...] inputs.
            y: [n, ...] targets.
        """
        module = self.at(arrays)
        theta, X, y = Layout.of(module).flat(module), torch.as_tensor(X), torch.as_tensor(y)
        with torch.no_grad():
            outputs = Stacked(module, sample=X)(theta[None], X[None].to(theta.device))
            found = {"loss": float(self.loss(outputs, y[None].to(theta.device))[0])}
        if self.loss in CLASSIFIES:
            found["accuracy"] = float((outputs[0].argmax(-1).cpu() == y.cpu()).double().mean())
        return found

    def _sigma(self, size: int, rounds: int, absolute: bool) -> float:
        bound = self.within.gradient_bound(size)
        if bound is None and not absolute:
            fix = "give lipschitz=, e.g. from gradient_norm()"
            raise FMRLError(f"{self.within!r}: a similarity rule needs G", fix=fix)
        return (1.0 if bound is None else bound) * math.sqrt(rounds)

    def _eta(self, module: nn.Module, form: Form, guess: Any, scale: float) -> torch.Tensor:
        """The step, a number or [P] in the module's order."""
        layout, like = Layout.of(module), next(module.parameters())
        if guess is None:
            if self.within.step is None:
                raise FMRLError(f"{self.within!r} has no step, and the server sends none")
            return torch.tensor(self.within.step).to(like)
        if isinstance(guess, Diagonal):
            steps = form.split(np.asarray(guess.steps))
            return (
                layout.join({n: torch.as_tensor(steps[n]).to(like) for n in layout.names}) / scale
            )
        if isinstance(guess, Metric):
            what = f"a network does not take a step of type {type(guess).__name__}"
            raise FMRLError(what, fix="use PerCoordinate(epsilon) or Isotropic(epsilon)")
        return torch.as_tensor(np.asarray(guess)).to(like) / scale

    def _seen(
        self, module: nn.Module, form: Form, loop: InnerLoop, observes: str | None
    ) -> np.ndarray | None:
        if observes is None:
            return None
        squares = in_module_order(loop.squares, loop.order)[0]
        if observes == "norms":
            return squares.sum()[None].cpu().numpy()
        holder = Layout.of(module).module(module, squares)
        for buffer in holder.buffers():
            buffer.zero_()
        return form.flat(_arrays(holder))


def _arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.detach().cpu().numpy().copy() for name, t in module.state_dict().items()}

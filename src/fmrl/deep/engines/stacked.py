"""A network applied to many tasks at once, each with its own parameters.

theta [T, P], x [T, B, ...] -> [T, B, out]. Three forms, the fastest that fits: batched products for
Sequential networks of known layers (`fmrl.deep.engines.layers`), torch.func.vmap of the module,
and, where vmap refuses (LSTM, GRU, branches that depend on data), the module task by task. All give
the numbers of the module called on each task alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.func import vmap

from fmrl.deep.engines.layers import batched
from fmrl.deep.layout import Layout, bind
from fmrl.errors import FMRLError

Apply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FORMS = ("auto", "stacked", "functional")
ROWS = 3  # of the batches that are tried


class Uncapturable(Exception):
    """Raised instead of doing what a CUDA graph may not be able to repeat."""


class Stacked:
    """The stacked form of ``module``: call it with theta [T, P] and x [T, B, ...].

    path: "auto", "stacked" (or an error if a layer has no fast form) or "functional". sample: some
    inputs [n, ...] to try it on; without them the first call's are taken. After that ``outputs`` is
    the shape of one sample's output and ``looped`` says whether tasks take turns. Inputs are cast
    to the parameters' dtype: floats, bytes (images) and bools always; other whole numbers only
    where the network does not take them as they are (a Linear does not, an Embedding does).
    Parameters that a mini-batch does not reach have gradient 0.

    >>> Stacked(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).shape
    torch.Size([4, 5, 3])
    """

    def __init__(self, module: nn.Module, path: str = "auto", sample: torch.Tensor | None = None):
        refuse_state(module)
        self.module, self.path, self.name = module, path, type(module).__name__
        self.layout, self.one = Layout.of(module), bind(module)
        if path not in FORMS:
            raise FMRLError(f"path={path!r} is unknown", fix=f"use one of {FORMS}")
        if path == "stacked" and batched(module) is None:
            what = f"{self.name} has a layer without a stacked form"
            raise FMRLError(what, fix="use path='functional'")
        self.form: Apply | None = None
        self.outputs: tuple[int, ...] = ()
        self.whole = self.looped = False
        if sample is not None:
            self.settle(sample)

    def __call__(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.form is None:
            self.settle(x[0])
        return self.form(theta, self.cast(x, theta.dtype))

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Inputs as the network takes them."""
        return x if self.whole and _whole(x) else x.to(dtype)

    def settle(self, sample: torch.Tensor) -> None:
        """Choose the form by trying ``sample`` [n, ...]; an error if the network refuses it."""
        if len(sample) == 0:
            raise FMRLError("there are no inputs")
        rows = sample[torch.arange(ROWS, device=sample.device) % len(sample)]
        rows = rows.to(next(self.module.parameters()).device)
        refused = []
        for self.whole in (True, False) if _whole(rows) else (False,):
            try:
                outputs = self._tried(rows)
                break
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                refused.append(str(error).partition("\n")[0])
        else:
            what = f"{self.name} does not take inputs {tuple(rows.shape)} of {rows.dtype}"
            raise FMRLError(f"{what}: {'; as floats: '.join(refused)}")
        self.outputs, self.form, self.looped = tuple(outputs.shape[1:]), None, False
        if self.path != "functional" and self._agrees(rows):
            self.form = batched(self.module)
        elif self.path == "stacked":
            what = f"{self.name} has no stacked form for inputs {tuple(rows.shape[1:])}"
            raise FMRLError(what, fix="use path='functional'")
        elif (reason := self._no_vmap(rows)) is None:
            self.form = vmap(self.one)
        else:  # stacklevel: one place, so that Python shows it once
            self.form, self.looped = self._each, True
            what = f"{self.name} is run task by task, which is exact but slow: {reason}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)

    def _each(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if theta.is_cuda and torch.cuda.is_current_stream_capturing():
            raise Uncapturable  # a branch that depends on data would be frozen as it was
        return torch.stack([self.one(t, own) for t, own in zip(theta, x, strict=True)])

    @torch.no_grad()
    def _tried(self, rows: torch.Tensor) -> torch.Tensor:
        """The module's own outputs, from copies of its buffers."""
        buffers = {n: b.clone() for n, b in self.module.named_buffers()}
        versions = {n: b._version for n, b in buffers.items()}
        theta = self.layout.flat(self.module)
        out = self.one(theta, self.cast(rows, theta.dtype), buffers)
        written = [n for n, b in buffers.items() if b._version != versions[n]]
        if written:
            raise FMRLError(f"its forward pass writes to {written[0]}, which mixes the tasks")
        if not isinstance(out, torch.Tensor) or out.shape[:1] != rows.shape[:1]:
            raise FMRLError("it must return one tensor with a row for every input")
        return out

    @torch.no_grad()
    def _agrees(self, rows: torch.Tensor) -> bool:
        """Whether batched products give the module's numbers on these rows, in float64."""
        if batched(self.module) is None:
            return False
        twin = copy.deepcopy(self.module).to("cpu", torch.float64)
        fast, one = batched(twin), bind(twin)
        theta = self.layout.flat(twin) * torch.tensor([[1.0], [1.1]], dtype=torch.float64)
        x = torch.stack([rows, rows.flip(0)]).to("cpu", torch.float64)
        plain = torch.stack([one(t, own) for t, own in zip(theta, x, strict=True)])
        close = {"rtol": 1e-6, "atol": 1e-6 * float(plain.abs().max()), "equal_nan": True}
        try:
            return torch.allclose(fast(theta, x), plain, **close)
        except (RuntimeError, IndexError, KeyError):  # axes that no batched form knows
            return False

    def _no_vmap(self, rows: torch.Tensor) -> str | None:
        """Why torch.func.vmap cannot run the module and its gradient; None when it can."""
        theta = self.layout.flat(self.module).repeat(2, 1).requires_grad_()
        x = self.cast(torch.stack([rows, rows.flip(0)]), theta.dtype)
        try:
            with torch.enable_grad():
                torch.autograd.grad(vmap(self.one)(theta, x).sum(), theta)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return str(error).partition("\n")[0]
        return None


def _whole(x: torch.Tensor) -> bool:
    real = x.is_floating_point() or x.is_complex()
    return not real and x.dtype not in (torch.uint8, torch.bool)


def refuse_state(module: nn.Module) -> None:
    """Running statistics would leak from task to task; dropout would differ between the paths."""
    for name, layer in module.named_modules():
        name = name or type(layer).__name__
        if getattr(layer, "track_running_stats", False) and layer.training:
            fix = "build it with track_running_stats=False, or call its eval()"
            raise FMRLError(f"{name} keeps running statistics, which mix the tasks", fix=fix)
        drops = isinstance(layer, nn.modules.dropout._DropoutNd)
        rate = layer.p if drops else getattr(layer, "dropout", 0)
        if isinstance(rate, (int, float)) and rate > 0 and layer.training:
            what = f"{name} drops units at random, which no stacked run can repeat"
            raise FMRLError(what, fix="set it to 0")

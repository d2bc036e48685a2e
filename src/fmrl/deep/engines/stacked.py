"""A network applied to many tasks at once, each with its own parameters: theta [T, P], x [T, B,
...] -> [T, B, out].

Three forms, the fastest that fits: batched products for Sequential networks of known layers
(`fmrl.deep.engines.layers`), torch.func.vmap of the module, and, where vmap refuses (LSTM, GRU,
branches that depend on data), the module task by task. All give the numbers of the module called on
each task alone."""

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
PATHS = ("auto", "stacked", "functional")
ROWS = 3  # of the batches that are tried


class Uncapturable(Exception):
    """Raised instead of doing what a CUDA graph may not be able to repeat."""


def stack(module: nn.Module, path: str = "auto", sample: torch.Tensor | None = None) -> Stacked:
    """The stacked form of ``module``. path: "auto", "stacked" (or an error if a layer has no fast
    form) or "functional".

    sample: some inputs [n, ...] to try it on; without them the first call's are taken.

    >>> stack(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).shape
    torch.Size([4, 5, 3])
    """
    found = Stacked(module, path)
    if sample is not None:
        found.settle(sample)
    return found


class Stacked:
    """What `stack` returns. After `settle`: ``outputs`` is the shape of one sample's output,
    ``looped`` whether tasks take turns.

    Inputs are cast to the parameters' dtype: floats, bytes (images) and bools always; other whole
    numbers only where the network does not take them as they are (a Linear does not, an Embedding
    does). Parameters that a mini-batch does not reach have gradient 0."""

    def __init__(self, module: nn.Module, path: str = "auto"):
        refuse_state(module)
        if path not in PATHS:
            raise FMRLError(
                f"path={path!r} is unknown", fix="use 'auto', 'stacked' or 'functional'"
            )
        self.module, self.path, self.layout, self.one = (
            module,
            path,
            Layout.of(module),
            bind(module),
        )
        if path == "stacked" and batched(module) is None:
            raise FMRLError(
                f"{type(module).__name__} has a layer without a stacked form",
                fix="use path='functional'",
            )
        self.form: Apply | None = None
        self.outputs: tuple[int, ...] = ()
        self.whole = self.looped = False

    def __call__(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.form is None:
            self.settle(x[0])
        return self.form(theta, self.cast(x, theta.dtype))

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Inputs as the network takes them."""
        return x if self.whole and _whole(x) else x.to(dtype)

    def settle(self, sample: torch.Tensor) -> None:
        """Choose the form by trying ``sample`` [n, ...]; an error that says so where the network
        itself refuses it.
        """
        if len(sample) == 0:
            raise FMRLError("there are no inputs")
        rows = sample[torch.arange(ROWS, device=sample.device) % len(sample)].to(
            next(self.module.parameters()).device
        )
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
            raise FMRLError(
                f"{self.name} does not take inputs {tuple(rows.shape)} of {rows.dtype}: {'; as floats: '.join(refused)}"
            )
        self.outputs, self.form, self.looped = tuple(outputs.shape[1:]), None, False
        if self.path != "functional" and self._agrees(rows):
            self.form = batched(self.module)
        if self.form is None and self.path == "stacked":
            raise FMRLError(
                f"{self.name} has no stacked form for inputs {tuple(rows.shape[1:])}",
                fix="use path='functional'",
            )
        if self.form is None:
            reason = self._no_vmap(rows)
            self.form, self.looped = (
                (vmap(self.one), False) if reason is None else (self._each, True)
            )
            if reason is not None:  # stacklevel: one place, so that Python shows it once
                warnings.warn(
                    f"{self.name} is run task by task, which is exact but slow: {reason}",
                    RuntimeWarning,
                    stacklevel=2,
                )

    @property
    def name(self) -> str:
        """For messages."""
        return type(self.module).__name__

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

    def _agrees(self, rows: torch.Tensor) -> bool:
        """Whether batched products give the module's numbers on these rows, in float64 and up to
        rounding.
        """
        twin = (
            copy.deepcopy(self.module).to("cpu", torch.float64)
            if batched(self.module) is not None
            else None
        )
        fast = None if twin is None else batched(twin)
        if fast is None:
            return False
        theta = self.layout.flat(twin) * torch.tensor([[1.0], [1.1]], dtype=torch.float64)
        x = torch.stack([rows, rows.flip(0)]).to("cpu", torch.float64)
        with torch.no_grad():
            plain = torch.stack([bind(twin)(t, own) for t, own in zip(theta, x, strict=True)])
            try:
                return torch.allclose(
                    fast(theta, x),
                    plain,
                    rtol=1e-6,
                    atol=1e-6 * float(plain.abs().max()),
                    equal_nan=True,
                )
            except (RuntimeError, IndexError, KeyError):  # axes that no batched form knows
                return False

    def _no_vmap(self, rows: torch.Tensor) -> str | None:
        """Why torch.func.vmap cannot run the module and its gradient; None when it can."""
        theta = self.layout.flat(self.module).repeat(2, 1).requires_grad_()
        try:
            with torch.enable_grad():
                out = vmap(self.one)(
                    theta, self.cast(torch.stack([rows, rows.flip(0)]), theta.dtype)
                )
                torch.autograd.grad(out.sum(), theta)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return str(error).partition("\n")[0]
        return None


def _whole(x: torch.Tensor) -> bool:
    return (
        not x.is_floating_point()
        and not x.is_complex()
        and x.dtype not in (torch.uint8, torch.bool)
    )


def refuse_state(module: nn.Module) -> None:
    """Statistics that are still running would leak from task to task, and dropout would differ
    between the paths.
    """
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False) and layer.training:
            raise FMRLError(
                f"{name or type(layer).__name__} keeps running statistics, which mix the tasks",
                fix="build it with track_running_stats=False, so that it always uses the batch at hand, or call its eval()",
            )
        rate = (
            layer.p
            if isinstance(layer, nn.modules.dropout._DropoutNd)
            else getattr(layer, "dropout", 0)
        )
        if isinstance(rate, (int, float)) and rate > 0 and layer.training:
            raise FMRLError(
                f"{name or type(layer).__name__} drops units at random, which no stacked run can repeat",
                fix="set it to 0",
            )

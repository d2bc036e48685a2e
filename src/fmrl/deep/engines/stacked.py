"""A network applied to many tasks at once, each with its own parameters.

theta [T, P], x [T, B, ...] -> [T, B, out], by torch.func.vmap of the module with the functions of
`fmrl.deep.engines.functions` in place of those that vmap refuses or runs slowly. A layer that vmap
still refuses (branches that depend on data) is run task by task, the rest of the network is not.
All give the numbers of the module called on each task alone, which is checked before they are used.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn

from fmrl.deep.engines.forms import (
    COUNTER,
    Apply,
    at_once,
    each_in_turn,
    run_in_turn,
    tracked,
)
from fmrl.deep.engines.functions import Replacing
from fmrl.deep.networks import Layout, bind, copied, place
from fmrl.errors import FMRLError

FORMS = ("auto", "stacked", "functional")
ROWS = 3  # of the batches that are tried
CALLS = 4  # on the same inputs, to see whether a network repeats
CLOSE = 1e-10  # of the largest number, in float64 on a CPU
SINGLE = 1e-4  # of the largest number, in the network's own dtype on a CPU
NEAR = 0.05  # of the length of outputs and gradient, in reduced precision on a GPU
WORDS = {  # for what vmap says
    "data-dependent control flow": "a branch in it (if, while) depends on the data",
    ".item()": "it makes a plain number of a tensor (.item(), float, int)",
    "dynamic shape": "the shape of a tensor in it depends on the data",
}


class Stacked:
    """The stacked form of ``module``: call it with theta [T, P], x [T, B, ...] and, where dropout
    takes part, a key [T] for its masks; without a key nothing is left out.

    path: "auto", "stacked" (or an error if a layer has no stacked form) or "functional" (vmap of
    the module as it is). sample: some inputs [n, ...] to try it on; without them the first call's
    are taken. After that ``outputs`` is the shape of one sample's output, ``drops`` says whether
    dropout takes part, ``slow`` names layers that are run task by task, and ``looped`` says whether
    the whole network is. Inputs are cast to the parameters' dtype: floats, bytes (images) and bools
    always; other whole numbers only where the network does not take them as they are (a Linear does
    not, an Embedding does). Parameters that a mini-batch does not reach have gradient 0. The module
    itself is never called, only copies of it: others may use it meanwhile.

    >>> Stacked(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).shape
    torch.Size([4, 5, 3])
    """

    def __init__(self, module: nn.Module, path: str = "auto", sample: torch.Tensor | None = None):
        look_over(module)
        self.module, self.path, self.name = module, path, type(module).__name__
        self.layout = Layout.of(module)
        if path not in FORMS:
            raise FMRLError(f"path={path!r} is unknown", fix=f"use one of {FORMS}")
        self.form: Apply | None = None
        self.outputs: tuple[int, ...] = ()
        self.whole = self.looped = self.drops = False
        self.slow: list[str] = []
        self.parts: list[str] = []  # their names in the module
        if sample is not None:
            self.settle(sample)

    def __call__(
        self, theta: torch.Tensor, x: torch.Tensor, key: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.form is None:
            self.settle(x[0])
        return self.form(theta, self.cast(x, theta.dtype), key)

    def another(self) -> Stacked:
        """The same for another thread: a module is called by one at a time."""
        twin = copy.copy(self)
        twin.form = self._own()
        return twin

    def _own(self) -> Apply:
        """The chosen form on a copy of the module, which it alone calls."""
        if self.looped:
            return each_in_turn(copied(self.module))
        return at_once(self._twin(self.parts), self.fast)

    @property
    def fast(self) -> bool:
        """Whether functions are replaced by those for stacks."""
        return self.path != "functional"

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Inputs as the network takes them."""
        return x if self.whole and _whole(x) else x.to(dtype)

    def settle(self, sample: torch.Tensor) -> None:
        """Choose the form by trying ``sample`` [n, ...]; an error if the network refuses it."""
        if len(sample) == 0:
            raise FMRLError("there are no inputs")
        rows = sample[torch.arange(ROWS, device=sample.device) % len(sample)]
        rows = rows.to(next(self.module.parameters()).device)
        refused, entered = [], []
        for self.whole in (True, False) if _whole(rows) else (False,):
            entered.clear()
            try:
                outputs = self._tried(rows, entered)
                break
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                reason = str(error).partition("\n")[0]
                refused.append(f"{self._at(entered[-1])}: {reason}" if entered[1:] else reason)
        else:
            what = f"{self.name} does not take inputs {tuple(rows.shape)} of {rows.dtype}"
            raise FMRLError(f"{what}: {'; as floats: '.join(refused)}")
        self.outputs, self.slow, self.parts = tuple(outputs.shape[1:]), [], []
        reason, self.looped = self._stack(rows)
        if reason is not None and self.path == "stacked":
            where = " and ".join(self.slow) or self._at("")
            what = f"{where} has no stacked form: {reason}"
            raise FMRLError(what, fix="use path='auto'")
        self.form = self._own()
        if reason is not None:
            self._repeats(rows)
            what = " and ".join(self.slow) or self._at("")
            what += " is run task by task, which is exact but slow"
            # stacklevel: one place, so that Python shows it once
            warnings.warn(f"{what}: {reason}", RuntimeWarning, stacklevel=2)

    @torch.no_grad()
    def _tried(self, rows: torch.Tensor, entered: list[str]) -> torch.Tensor:
        """The module's own outputs; an error if every call writes to its buffers."""
        module = copied(self.module)
        theta = self.layout.flat(module)
        key = torch.zeros((), dtype=torch.int64, device=theta.device)
        first = dict(module.named_buffers())
        versions = {n: b._version for n, b in first.items()}
        for _ in range(2):  # the first call may make what later ones only read
            before = dict(module.named_buffers())
            with tracked(module, entered), Replacing(key, stacked=False) as mode:
                out = bind(module)(theta, self.cast(rows, theta.dtype))
        self.drops = mode.calls > 0
        written = [n for n, b in first.items() if b._version != versions[n]]
        written += [n for n, b in module.named_buffers() if b is not before.get(n)]
        written = [n for n in written if not n.endswith(COUNTER)]
        if written:
            raise FMRLError(f"its forward pass writes to {written[0]}, which mixes the tasks")
        if not isinstance(out, torch.Tensor) or out.shape[:1] != rows.shape[:1]:
            raise FMRLError("it must return one tensor with a row for every input")
        return out

    def _repeats(self, rows: torch.Tensor) -> None:
        """Refuse a network without a gradient, and one whose calls do not repeat."""
        theta = self.layout.flat(self.module)[None].requires_grad_()
        x = self.cast(rows[None], theta.dtype)
        key = torch.tensor([3], device=rows.device) if self.drops else None
        try:
            with torch.enable_grad():
                first, *others = [self.form(theta, x, key) for _ in range(CALLS)]
                torch.autograd.grad(first.abs().sum(), theta)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise FMRLError(f"{self.name} cannot be trained: {reason}") from None
        apart = max(float((first - other).detach().norm()) for other in others)
        if apart > max(CLOSE, 1e3 * torch.finfo(first.dtype).eps) * float(first.detach().norm()):
            what = f"{self.name} gives other outputs when it is called again on the same inputs: "
            what += "it draws random numbers, which no run can repeat, or remembers earlier calls"
            raise FMRLError(what, fix="use nn.Dropout, or call its eval()")

    def _stack(self, rows: torch.Tensor) -> tuple[str | None, bool]:
        """Why not everything is stacked (None: it is), and whether nothing is."""
        first, slow = None, []
        while True:
            layer, error = self._failure(slow, rows)
            if error is None:
                self.slow, self.parts = [self._at(name) for name in slow], slow
                return first, False
            if "random operation" in error:  # of vmap: a mask of the user's own
                what = f"{self._at(layer)} draws random numbers, which no run can repeat"
                raise FMRLError(what, fix="use nn.Dropout, or call its eval()")
            first = first or error
            if not layer or layer in slow or not self.fast:
                return first, True
            slow.append(layer)

    def _at(self, name: str) -> str:
        """A layer as one would speak of it."""
        return f"the {type(self.module.get_submodule(name)).__name__} at {place(name)}"

    def _twin(self, slow: list[str]) -> nn.Module:
        """A copy to put into the stack: in it layers ``slow`` are run task by task."""
        twin = copied(self.module)
        for layer in twin.modules():
            if isinstance(layer, nn.RNNBase):  # cuDNN's layout of weights, which no stack has
                layer.flatten_parameters = lambda: None
        for name in slow:
            run_in_turn(twin.get_submodule(name))
        return twin

    def _failure(self, slow: list[str], rows: torch.Tensor) -> tuple[str, str | None]:
        """The innermost layer in which the stacked form fails and the error; ("", None) if none."""
        entered: list[str] = []
        tries = [("cpu", torch.float64, CLOSE)]
        if not self._takes_double(rows):  # its forward pass makes float32 of its own
            tries = [("cpu", None, SINGLE)]
        if rows.device.type != "cpu":
            tries.append((rows.device, None, NEAR))
        for device, dtype, close in tries:
            twin = self._twin(slow).to(device, dtype)
            form = at_once(twin, self.fast)  # before it has hooks
            try:
                with tracked(twin, entered):
                    error = self._apart(form, twin, rows.to(device))
            except torch.OutOfMemoryError:
                raise
            except Exception as refusal:
                said = str(refusal).partition("\n")[0].removeprefix("vmap: ")
                said = next((plain for part, plain in WORDS.items() if part in said), said)
                return entered[-1] if entered else "", said
            if not error < close:
                return "", f"it differs from the network called alone by {error:.1g} on {device}"
        return "", None

    @torch.no_grad()
    def _takes_double(self, rows: torch.Tensor) -> bool:
        """Whether the module, called alone, runs in double precision at all."""
        alone = copied(self.module).to("cpu", torch.float64)
        theta = self.layout.flat(alone)[None]
        try:
            each_in_turn(alone)(theta, self.cast(rows.to("cpu"), theta.dtype)[None])
        except Exception:
            return False
        return True

    def _apart(self, fast: Apply, twin: nn.Module, rows: torch.Tensor) -> float:
        """How far stacked outputs and their gradients lie from the module's own, relative."""
        theta = self.layout.flat(twin)
        theta = (theta * torch.tensor([[1.0], [1.1]]).to(theta)).requires_grad_()
        x = self.cast(torch.stack([rows, rows.flip(0)]), theta.dtype)
        alone, worst = each_in_turn(copied(self.module).to(theta)), 0.0
        keys = [None, torch.tensor([3, 5], device=rows.device)] if self.drops else [None]
        for key in keys:
            found = []
            for form in (alone, fast):
                with torch.enable_grad():
                    out = form(theta, x, key)
                    total = out * torch.linspace(1, 2, out[0].numel()).to(out).view(out[0].shape)
                    (gradient,) = torch.autograd.grad(total.sum(), theta)
                found.append((out.detach(), gradient))
            (out, gradient), (other, steep) = found
            size = float(out.norm()) or 1.0  # a gradient may be 0 but for rounding
            worst = max(worst, float((out - other).norm()) / size)
            worst = max(worst, float((gradient - steep).norm()) / max(size, float(gradient.norm())))
        return worst


def _whole(x: torch.Tensor) -> bool:
    real = x.is_floating_point() or x.is_complex()
    return not real and x.dtype not in (torch.uint8, torch.bool)


def look_over(module: nn.Module) -> None:
    """Refuse masks that no run can repeat; say what batch norm does."""
    for name, layer in module.named_modules():
        where = f"the {type(layer).__name__} at {place(name)}"
        if isinstance(layer, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
            if layer.p > 0 and layer.training:
                fix = "use nn.Dropout, set p=0, or call its eval()"
                raise FMRLError(f"{where} has no mask that a run can repeat", fix=fix)
        elif getattr(layer, "track_running_stats", False) and layer.training:
            what = f"{where} normalises each task by its own mini-batch; its running statistics "
            what += "are neither used nor moved. To use them as they are, call its eval() first"
            warnings.warn(what, RuntimeWarning, stacklevel=2)

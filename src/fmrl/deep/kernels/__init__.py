"""Triton kernels of networks. Without Triton they can be imported, but not run."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:
    from types import SimpleNamespace

    def _unchanged(function: Any = None, **options: Any) -> Any:
        return function or _unchanged

    triton, tl = SimpleNamespace(jit=_unchanged), SimpleNamespace(constexpr=None)

__all__ = ["compiling", "launch", "stepped", "tl", "triton"]

Launch = Callable[[Any, tuple[int, ...]], Callable[..., Any]]

# For kernels that get a row of these, which may begin anywhere: without it each is compiled twice.
stepped = triton.jit(do_not_specialize_on_alignment=["index", "label", "loss", "bias"])


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel over its grid, to be called with its arguments."""
    return kernel[grid]


@contextmanager
def compiling() -> Iterator[Launch]:
    """What stands in for `launch` to compile kernels without running them, side by side in threads:
    one after another the twenty of a step take half a minute."""
    with ThreadPoolExecutor() as pool:
        beside = getattr(triton, "AsyncCompileMode", nullcontext)
        with beside(pool):
            yield lambda kernel, grid: partial(kernel.warmup, grid=grid)

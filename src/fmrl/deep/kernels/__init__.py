"""Triton kernels of networks. Without Triton they can be imported, but not run."""

try:
    import triton
    import triton.language as tl
except ImportError:
    from types import SimpleNamespace

    triton, tl = SimpleNamespace(jit=lambda function: function), SimpleNamespace(constexpr=None)

__all__ = ["tl", "triton"]

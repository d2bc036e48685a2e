"""Triton kernels of the two networks of the paper."""

"""The paper's two networks, as Reptile has them.

TensorFlow's 'same' padding, Glorot weights, batch norm on batch statistics."""

from __future__ import annotations

import math
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F


class SameConv2d(nn.Conv2d):
    """A convolution padded so that the output side is ceil(input side / stride).

    An odd pixel of padding goes below and to the right.

    Args:
        channels: Of the input.
        filters: Channels of the output.
        kernel: Side of the kernel.
        stride: Pixels between two positions of the kernel.
        bias: Whether a constant is added to every filter.

    >>> SameConv2d(1, 2, 3, stride=2)(torch.zeros(1, 1, 7, 28)).shape
    torch.Size([1, 2, 4, 14])
    """

    def __init__(
        self, channels: int, filters: int, kernel: int, stride: int = 1, bias: bool = False
    ):
        super().__init__(channels, filters, kernel, stride=stride, padding=0, bias=bias)
        nn.init.xavier_uniform_(self.weight)
        if bias:
            nn.init.zeros_(self.bias)

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(left, right, top, bottom) for an input of this size."""
        sides = []
        for size, kernel, stride in zip(
            (width, height), self.kernel_size, self.stride, strict=True
        ):
            extra = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            sides += [extra // 2, extra - extra // 2]
        return tuple(sides)

    def forward(self, x):
        return F.conv2d(F.pad(x, self.pads(*x.shape[-2:])), self.weight, self.bias, self.stride)


def omniglot_net(
    ways: int, *, filters: int = 64, side: int = 28, channels: int = 1, seed: int | None = None
) -> nn.Sequential:
    """4 × [3×3 convolution with stride 2, batch norm, ReLU], then a dense layer.

    The convolutions have no bias: batch norm would take any constant out again.

    Args:
        ways: Outputs.
        filters: Channels of every convolution.
        side: Of the images, [B, channels, side, side].
        channels: Of the images.
        seed: Of the initial weights; None draws them from torch's global generator.

    >>> sum(p.numel() for p in omniglot_net(5).parameters())
    112965
    """
    return _network(ways, filters, side, channels, seed, stride=2)


def mini_imagenet_net(
    ways: int, *, filters: int = 32, side: int = 84, channels: int = 3, seed: int | None = None
) -> nn.Sequential:
    """4 × [3×3 convolution, batch norm, 2×2 max-pool, ReLU], then a dense layer.

    Args:
        ways: Outputs.
        filters: Channels of every convolution.
        side: Of the images, [B, channels, side, side].
        channels: Of the images.
        seed: Of the initial weights; None draws them from torch's global generator.

    >>> mini_imagenet_net(5)(torch.zeros(2, 3, 84, 84)).shape
    torch.Size([2, 5])
    """
    return _network(ways, filters, side, channels, seed, stride=1)


def _network(ways, filters, side, channels, seed, stride: int) -> nn.Sequential:
    """Four blocks that halve the side each, by their stride or by pooling, and a dense layer."""
    with _seeded(seed):
        layers: list[nn.Module] = []
        for before in (channels, filters, filters, filters):
            norm = nn.BatchNorm2d(filters, eps=1e-3, track_running_stats=False)
            layers += [SameConv2d(before, filters, 3, stride=stride), norm]
            layers += [nn.MaxPool2d(2, ceil_mode=True)] * (stride == 1) + [nn.ReLU()]
            side = math.ceil(side / 2)
        dense = nn.Linear(filters * side * side, ways)
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
        return nn.Sequential(*layers, nn.Flatten(), dense)


@contextmanager
def _seeded(seed: int | None):
    """Torch's global generator at ``seed`` inside the block and as it was after it."""
    kept = torch.random.get_rng_state()
    if seed is not None:
        torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        if seed is not None:
            torch.random.set_rng_state(kept)

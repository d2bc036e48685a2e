"""The paper's two networks, as Reptile has them: TensorFlow's 'same' padding, Glorot weights, batch
norm on batch statistics.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


class SameConv2d(nn.Conv2d):
    """A convolution padded so that the output side is ceil(input side / stride), the odd pixel
    below and to the right.

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


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm that always uses the statistics of the batch at hand and keeps none."""
    return nn.BatchNorm2d(channels, eps=1e-3, track_running_stats=False)


def _dense(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def omniglot_net(
    ways: int, *, filters: int = 64, side: int = 28, channels: int = 1, seed: int | None = None
) -> nn.Sequential:
    """4 × [3×3 convolution with stride 2, batch norm, ReLU], then a dense layer. Input [B, 1, 28,
    28].

    The convolutions carry no bias: batch norm takes any constant out again.

    >>> sum(p.numel() for p in omniglot_net(5).parameters())
    112965
    """
    with _seeded(seed):
        layers: list[nn.Module] = []
        for i in range(4):
            layers += [
                SameConv2d(channels if i == 0 else filters, filters, 3, stride=2),
                batch_norm(filters),
                nn.ReLU(),
            ]
            side = math.ceil(side / 2)
        return nn.Sequential(*layers, nn.Flatten(), _dense(filters * side * side, ways))


def mini_imagenet_net(
    ways: int, *, filters: int = 32, side: int = 84, channels: int = 3, seed: int | None = None
) -> nn.Sequential:
    """4 × [3×3 convolution, batch norm, 2×2 max-pool, ReLU], then a dense layer. Input [B, 3, 84,
    84].

    >>> mini_imagenet_net(5)(torch.zeros(2, 3, 84, 84)).shape
    torch.Size([2, 5])
    """
    with _seeded(seed):
        layers: list[nn.Module] = []
        for i in range(4):
            layers += [SameConv2d(channels if i == 0 else filters, filters, 3), batch_norm(filters)]
            layers += [nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
            side = math.ceil(side / 2)
        return nn.Sequential(*layers, nn.Flatten(), _dense(filters * side * side, ways))


class _seeded:
    """Torch's global generator at ``seed`` inside the block and as it was after it; None leaves it
    alone.
    """

    def __init__(self, seed: int | None):
        self.seed = seed

    def __enter__(self):
        if self.seed is not None:
            self.kept = torch.random.get_rng_state()
            torch.random.default_generator.manual_seed(self.seed)

    def __exit__(self, *_):
        if self.seed is not None:
            torch.random.set_rng_state(self.kept)

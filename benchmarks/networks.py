"""Networks that users have, for benchmarks/deep.py: images [B, 1, 28, 28] to logits [B, ways]."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F


def _seeded(build):
    def seeded(ways, *, seed=0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(ways)

    return seeded


@_seeded
def mlp(ways):
    """Four dense layers: 784, 256, 128, 64, ways."""
    sizes = 784, 256, 128, 64
    dense = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(nn.Flatten(), *(m for d in dense for m in (d, nn.ReLU())),
                         nn.Linear(64, ways))  # fmt: skip


class Block(nn.Module):
    """Two 3x3 convolutions with group norm around which the input goes, halved where stride 2."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(2))
        same = before == channels and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(before, channels, 1, stride)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.around(x) + self.norms[1](self.second(y)))


@_seeded
def resnet(ways):
    """A stem with stride 2 and four residual blocks of 32, 32, 64 and 64 channels."""
    sizes = (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1)
    stem = nn.Conv2d(1, 32, 3, 2, 1, bias=False), nn.GroupNorm(8, 32), nn.ReLU()
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, ways)
    return nn.Sequential(*stem, *(Block(*s) for s in sizes), *end)


class Transformer(nn.Module):
    """Sixteen patches of 7x7 pixels, two encoder layers of width 64 with four heads."""

    def __init__(self, ways):
        super().__init__()
        self.into, self.at = nn.Linear(49, 64), nn.Parameter(0.02 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, ways)

    def forward(self, x):
        patches = x.unflatten(2, (4, 7)).unflatten(4, (4, 7)).permute(0, 2, 4, 1, 3, 5)
        return self.out(self.encoder(self.into(patches.reshape(len(x), 16, 49)) + self.at).mean(1))


class LSTM(nn.Module):
    """The image row by row, 128 hidden numbers."""

    def __init__(self, ways):
        super().__init__()
        self.recurrent, self.out = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, ways)

    def forward(self, x):
        return self.out(self.recurrent(x[:, 0])[0][:, -1])


transformer, lstm = _seeded(Transformer), _seeded(LSTM)

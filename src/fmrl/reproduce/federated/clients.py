"""The clients of the study: roles of Shakespeare's plays, and the sizes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fmrl.datasets.shakespeare import load_shakespeare
from fmrl.errors import FMRLError
from fmrl.records import checksum

SHARE = 0.8  # of a role's characters to train on, the first; and of the roles, by a draw


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that decides nothing."""

    seed: int = 0
    seeds: int = 3
    rounds: int = 500
    clients: int = 10  # of a round
    batch: int = 10
    steps: int = 40  # mini-batches of a client's epoch, at most
    rate: float = 1.0  # the fixed step, and the first of the learned ones
    context: int = 80  # characters before the one that is predicted
    embedding: int = 8
    hidden: int = 256
    layers: int = 2
    tested: int = 60  # clients of the last look, of every seed
    looked: int = 10  # clients of the other looks
    every: int = 25  # rounds between looks
    held: int = 200  # samples that a client is scored on, at most

    def quick(self) -> Config:
        """The same study, small."""
        small = {"seeds": 2, "rounds": 6, "clients": 3, "batch": 5, "steps": 5, "context": 15}
        sizes = {"hidden": 24, "layers": 1, "tested": 8, "looked": 3, "every": 3, "held": 50}
        return replace(self, **small, **sizes)

    @property
    def shortest(self) -> int:
        """Characters a role must have to be a client."""
        return int(max((self.batch + self.context) / SHARE, 50 / (1 - SHARE))) + 1


@dataclass(frozen=True, repr=False)
class Clients:
    """Roles as clients: role r is ``text[offsets[r]:offsets[r + 1]]``.

    Args:
        text: Codes of the characters, [N].
        offsets: [roles + 1].
        context: Characters before the one that is predicted.
        sha256: Of text and offsets.
    """

    text: np.ndarray
    offsets: np.ndarray
    context: int
    sha256: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Clients({len(self)} roles, {len(self.text):,} characters)"

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Roles that train and roles that are tested."""
        order = np.random.default_rng([seed, 1]).permutation(len(self))
        return np.split(order, [int(SHARE * len(self))])

    def samples(self, role: int, part: int) -> tuple[int, int]:
        """Where the contexts of a role's samples begin, from and to: part 0 to train, 1 to score.

        A held-out character may be predicted from characters of the training part before it.
        """
        start, stop = int(self.offsets[role]), int(self.offsets[role + 1])
        middle = start + int(SHARE * (stop - start))
        first = start if part == 0 else middle - self.context
        return first, (middle if part == 0 else stop) - self.context

    def draw(self, role: int, part: int, count: int, key: Sequence[int]) -> np.ndarray:
        """``count`` samples of a role in the order of a draw, each at most once."""
        first, stop = self.samples(role, part)
        return first + np.random.default_rng([*key, role]).permutation(stop - first)[:count]


def read(config: Config, data: Path | None = None) -> Clients:
    """The clients of a run.

    Args:
        config: Its sizes.
        data: The folder of local copies (default: ``FMRL_DATA``).
    """
    roles = load_shakespeare(data=data).longer(config.shortest)
    if len(roles) < 5 * config.clients:
        raise FMRLError(f"{len(roles)} roles are too few clients", fix="make the rounds smaller")
    found = checksum(roles.text, roles.offsets)
    return Clients(roles.text, roles.offsets, config.context, found)

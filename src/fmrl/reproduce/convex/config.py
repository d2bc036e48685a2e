"""What a run of the study is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmrl.errors import FMRLError
from fmrl.reproduce.convex.sets import SHOTS


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that takes under a minute."""

    presets: tuple[str, ...] = ("paper", "released")
    shots: tuple[int, ...] = SHOTS
    orders: int = 20  # random task orders
    ftrl_orders: int = 5  # the same for FTRL, which is dearer
    seed: int = 0
    repeats: int = 40  # of the growth figure
    passes: int = 4  # of MAML over the training tasks
    tasks: tuple[int, int] | None = None  # train and dev/test tasks kept, None for all

    def __post_init__(self):
        if unknown := set(self.presets) - {"paper", "released"}:
            raise FMRLError(
                f"there is no preset {sorted(unknown)[0]!r}", fix="choose paper, released or both"
            )
        if self.seed < 0:
            raise FMRLError(f"a seed is 0 or more, not {self.seed}", fix="give --seed 0 or more")
        if min(self.orders, self.ftrl_orders) < 2:
            raise FMRLError(
                "an interval needs at least two task orders", fix="give --orders 2 or more"
            )

    def quick(self) -> Config:
        """The same study, small."""
        return replace(
            self,
            shots=(1, 4, 8),
            orders=min(self.orders, 4),
            ftrl_orders=3,
            repeats=4,
            passes=2,
            tasks=(72, 12),
        )

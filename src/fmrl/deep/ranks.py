"""Ranks: one training on several processes or GPUs under ``torchrun``, with the numbers of one.

Each rank plays its share of every meta-batch from the same phi. One all-reduce of one vector ends
the meta-iteration: the sum of the update vectors, of the weighted squared gradients where Adam
carries them, each task's deviation from phi, and the losses. After it every rank makes the same
meta-step, so phi never has to be sent.

    torchrun --nproc-per-node 2 train.py        # train.py: MetaTrainer(net, …, ranks=Ranks.start()).fit(tasks, 10_000)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fmrl.core.rules.meta import End
from fmrl.deep.meta_level import DOMAIN, MetaLevel, MetaState, write
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Ranks:
    """This process among the ``world`` processes of a training.

    >>> Ranks(1, 3).share(8), Ranks().share(8)
    (slice(2, 5, None), slice(0, 8, None))
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def start(cls, backend: str | None = None) -> Ranks:
        """Join the other processes as torchrun's environment says; by default over nccl where there
        are GPUs, else gloo.
        """
        if not dist.is_initialized():
            if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
                raise FMRLError(
                    "this process was not started by torchrun",
                    fix="torchrun --nproc-per-node 2 train.py",
                )
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
            dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes checkpoints and logs."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's tasks of a meta-batch of ``count``."""
        if count < self.world:
            raise FMRLError(
                f"a meta-batch of {count} tasks leaves some of {self.world} ranks without one",
                fix="raise meta_batch",
            )
        return slice(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    def same(self, *tensors: torch.Tensor) -> None:
        """Rank 0's values everywhere, in place: modules that were initialised differently would
        train apart.
        """
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def agree(self, flag: bool) -> bool:
        """What rank 0 says: clocks differ, and one rank that stops alone would leave the others
        waiting for ever.
        """
        said = [flag]
        if self.world > 1:
            dist.broadcast_object_list(said, 0)
        return bool(said[0])

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.world > 1:
            dist.barrier()

    def meet(
        self, level: MetaLevel, state: MetaState, ends: torch.Tensor, second: torch.Tensor | None, losses: torch.Tensor,
        count: int, steps: int, fraction: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Move ``state`` in place after a meta-batch of ``count`` tasks, of which this rank played
        ``ends`` [R, k, P].

        second [R, k, P]: Adam's moments where they ended, if they are carried. losses [R]: sum over
        this rank's tasks of their mean loss. Returns the mean loss of all tasks [R]."""
        mine = self.share(count)
        deviation = ends.new_zeros(ends.shape[0], count)
        if level.similarity is not None:
            deviation[:, mine] = DOMAIN.divergence(ends, state.phi[:, None])
        parts = [ends.sum(1), losses[:, None], deviation]
        if second is not None:
            weights = level.weights(count, steps)[mine]
            parts.append(sum(w * second[:, k] for k, w in enumerate(weights)))  # type: ignore[arg-type]
        vector = torch.cat(parts, 1)
        if self.world > 1:
            dist.all_reduce(vector)
        total, losses, deviation, *folded = vector.split([p.shape[1] for p in parts], 1)
        if level.similarity is not None:
            self._guess(level, state, deviation, ends.shape[2])
        level.move(state, total / count, count, fraction)
        if folded:
            level.fold(state.second, folded[0], count, steps)  # type: ignore[arg-type]
        return losses[:, 0] / count

    @staticmethod
    def _guess(level: MetaLevel, state: MetaState, deviation: torch.Tensor, size: int) -> None:
        """The rule sees points on a line that lie as far from 0 as the tasks did from phi: rules of
        the core ask for no more.
        """
        zero, sigma = (
            torch.zeros_like(deviation[:, :1]),
            torch.full_like(state.guess, level.sigma(size)),
        )
        guess, memory = state.guess, state.similarity
        for k in range(deviation.shape[1]):
            far = torch.sqrt(2 * deviation[:, k : k + 1])
            guess, memory = level.similarity.update(
                DOMAIN, zero, guess, memory, End(far, far, sigma)
            )
        write(state.guess, guess)
        write(state.similarity, memory)


def shared(ranks: Ranks | None, count: int) -> tuple[slice, int]:
    """The tasks of a meta-batch that are played here, and how many."""
    mine = slice(0, count) if ranks is None else ranks.share(count)
    return mine, mine.stop - mine.start


__all__: list[Any] = ["Ranks", "shared"]

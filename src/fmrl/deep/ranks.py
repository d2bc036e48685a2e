"""Ranks: one training on several processes or GPUs under ``torchrun``, with the numbers of one.

Each rank plays its share of every meta-batch from the same phi. One all-reduce of one vector ends
the meta-iteration: the sum of the update vectors, of the weighted squared gradients where Adam
carries them, each task's deviation from phi (and the norms of its gradients, where a rule observes
them), and the losses. After it every rank makes the same
meta-step, so phi never has to be sent.

    torchrun --nproc-per-node 2 train.py
    # train.py: MetaTrainer(net, …, ranks=Ranks.start()).fit(tasks, 10_000)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End
from fmrl.deep.meta_level import DOMAIN, MetaLevel, MetaState
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a training; `Ranks.start` makes it under torchrun.

    Args:
        rank: Number of this process, from 0.
        world: Number of processes.

    >>> Ranks(1, 3).share(8), Ranks().share(8)
    (slice(2, 5, None), slice(0, 8, None))
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def start(cls, backend: str | None = None) -> Ranks:
        """Join the other processes, as torchrun's environment says.

        Args:
            backend: "nccl" (one GPU for every rank) or "gloo" (CPUs; GPUs may be shared). Left out,
                it is nccl where there are GPUs, else gloo.
        """
        if not dist.is_initialized():
            if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
                fix = "torchrun --nproc-per-node 2 train.py"
                raise FMRLError("this process was not started by torchrun", fix=fix)
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            backend = backend or ("nccl" if gpus else "gloo")
            local = int(os.environ.get("LOCAL_RANK", 0))
            here = max(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), local + 1)
            if backend == "nccl" and here > gpus:
                what = f"{here} ranks were started on this machine, which has {gpus} GPUs"
                fix = f"torchrun --nproc-per-node {max(gpus, 1)}, or train on CPUs"
                raise FMRLError(what, fix=f'{fix} with Ranks.start("gloo")')
            if gpus:
                torch.cuda.set_device(local % gpus)
            dist.init_process_group(backend)
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes checkpoints and logs."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's tasks of a meta-batch of ``count``."""
        if count < self.world:
            what = f"a meta-batch of {count} tasks leaves some of {self.world} ranks without one"
            raise FMRLError(what, fix="raise meta_batch")
        return slice(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    def same(self, *tensors: torch.Tensor) -> None:
        """Rank 0's values everywhere, in place, in case modules were initialised differently."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def agree(self, flag: bool) -> bool:
        """What rank 0 says: a rank that stopped alone would leave the others waiting."""
        said = [flag]
        if self.world > 1:
            dist.broadcast_object_list(said, 0)
        return bool(said[0])

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.world > 1:
            dist.barrier()

    def check(self, within: Any, similarity: Any) -> None:
        """Refuse rules that need more than the ranks exchange."""
        if similarity is not None and not by_distance(similarity):
            what = f"ranks exchange how far tasks ended from phi, but {similarity!r} asks where"
            raise FMRLError(what, fix="use a rule of distances, or no ranks")
        if self.world > 1 and within.carry == "in turn":
            what = f"{within!r}: moments that pass from task to task cannot be shared"
            raise FMRLError(what, fix="use carry=True")

    def advance(
        self, level: MetaLevel, state: MetaState, played: tuple[Any, ...], count: int, steps: int,
        fraction: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Move ``state`` in place after a meta-batch of which this rank played k tasks.

        Args:
            level: The rules.
            state: Of all ranks alike.
            played: This rank's tasks: their update vectors [R, k, P], what the similarity rule saw
                of them [R, k, 1] or None, Adam's moments where they ended [R, k, P] if they are
                carried, and the sum of their mean losses [R].
            count: Tasks of the whole meta-batch.
            steps: Inner steps of a task.
            fraction: [R] weight of the tasks' mean in the next phi, where it is known beforehand.

        Returns:
            The mean loss of all tasks, [R].
        """
        ends, seen, second, losses = played
        mine, far = self.share(count), ends.new_zeros(2, ends.shape[0], count)
        if level.similarity is not None:
            far[0, :, mine] = DOMAIN.divergence(ends, state.phi[:, None])
        if seen is not None:
            far[1, :, mine] = seen[..., 0]
        parts = [ends.sum(1), losses[:, None], *far]
        if second is not None:
            weights = level.weights(count, steps)[mine]
            parts.append(sum(w * second[:, k] for k, w in enumerate(weights)))  # type: ignore[arg-type]
        vector = torch.cat(parts, 1)
        if self.world > 1:
            dist.all_reduce(vector)
        total, losses, deviation, norms, *folded = vector.split([p.shape[1] for p in parts], 1)
        if level.similarity is not None:
            sigma, far = level.weight(state), torch.sqrt(2 * deviation)[..., None]
            pairs = zip(far.unbind(1), norms[..., None].unbind(1), strict=True)
            line = [End(f, f, sigma, met) for f, met in pairs]
            level.learn(state, torch.zeros_like(deviation[:, :1]), line)
        level.move(state, total / count, count, fraction)
        if folded:
            level.fold(state.second, folded[0], count, steps)  # type: ignore[arg-type]
        return losses[:, 0] / count


def by_distance(rule: Any) -> bool:
    """Whether a similarity rule depends on distances from phi alone, or on the norms of gradients
    too, tried on a few tasks.

    Then tasks can be replaced by points on a line that lie as far from 0 as they do from phi.

    >>> from fmrl.core.rules.similarity import AverageDeviation
    >>> by_distance(AverageDeviation(first=1.0))
    True
    """
    if getattr(rule, "observes", None) not in (None, "norms"):
        return False
    random = torch.Generator().manual_seed(0)
    phi, *ends = torch.randn(6, 1, 3, generator=random, dtype=torch.float64)
    line = [torch.sqrt(2 * DOMAIN.divergence(end, phi))[:, None] for end in ends]
    found = []
    for start, points in ((phi, ends), (torch.zeros_like(line[0]), line)):
        guess, memory = rule.init(DOMAIN, phi)
        if isinstance(guess, Metric):
            return False
        for point in points:
            end = End(point, point, torch.ones_like(guess), torch.ones_like(phi[:, :1]))
            try:
                guess, memory = rule.update(DOMAIN, start, guess, memory, end)
            except (RuntimeError, IndexError):  # a memory of phi's shape
                return False
            found.append(guess)
    return torch.allclose(*torch.stack(found).chunk(2), rtol=1e-9)


def shared(ranks: Ranks | None, count: int) -> tuple[slice, int]:
    """The tasks of a meta-batch that are played here, and how many."""
    mine = slice(0, count) if ranks is None else ranks.share(count)
    return mine, mine.stop - mine.start

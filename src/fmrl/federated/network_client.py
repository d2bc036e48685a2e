"""A client with a network: what it does with a message of `FedFMRL` (or of plain FedAvg), in one
call each.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message
from torch import nn

from fmrl.core.rules.update import FLIOnline
from fmrl.deep.engines.iteration import STRETCH
from fmrl.deep.losses import Loss, cross_entropy
from fmrl.deep.within import SGD
from fmrl.federated.networks import Network
from fmrl.federated.records import CLIENT, EXAMPLES, SIGMA, client_of, read, reply


def train_network(
    message: Message, context: Context, module: nn.Module, tasks: Any, *, within: Any = None,
    update: Any = None, loss: Loss = cross_entropy, number: int | None = None,
    examples: int | None = None,
) -> Message:  # fmt: skip
    """Adapt a network to the client's data by the inner steps of `fmrl.deep`, from the server's
    phi and with its step, and answer with the update vector and what the server asked to observe.

    Args:
        message: From the server.
        context: Of the client; its partition number orders the replies.
        module: The network; it is not changed.
        tasks: The client's data, such as ``fmrl.deep.Arrays([(X, y)], batch=10, steps=20)``.
        within: `SGD` (the default), or `Adam` with ``carry=False``.
        update: FLIOnline (last iterate, the default), FLIBatch (average) or LongRun(steps).
        loss: Of outputs [T, B, ...] and targets [T, B, ...]; returns [T].
        number: Which task of ``tasks``; by default that of the round, so that every round has its
            own order of samples, and every client its own masks of dropout.
        examples: What the client weighs under FedAvg; by default the samples it has.
    """
    asked = read(message)
    network = Network(module, within or SGD(), update or FLIOnline(), loss)
    at = asked.round if number is None else number
    ended = network.play(
        asked.arrays, tasks, at, asked.guess, absolute=asked.absolute, observes=asked.observes,
        masks=_masks(context, at) if number is None else number,
    )  # fmt: skip
    weight = {EXAMPLES: _examples(tasks) if examples is None else examples, SIGMA: ended.sigma}
    return reply(message, context, weight | {"loss": ended.loss}, ended.arrays, ended.seen)


def evaluate_network(
    message: Message, context: Context, module: nn.Module, tasks: Any, test: tuple[Any, Any], *,
    within: Any = None, loss: Loss = cross_entropy, number: int | None = None,
) -> Message:  # fmt: skip
    """Personalised evaluation: adapt on the client's data, then score on samples it did not see.

    The answer has ``loss`` (and ``accuracy`` for classes) of the adapted network, and
    ``unadapted-loss`` and ``unadapted-accuracy`` of phi as it came.

    Args:
        message: From the server.
        context: Of the client.
        module: The network; it is not changed.
        tasks: What to adapt to.
        test: Inputs and targets to be scored on.
        within: `SGD` (the default), or `Adam` with ``carry=False``.
        loss: Of outputs [T, B, ...] and targets [T, B, ...]; returns [T].
        number: Which task of ``tasks``, that is, which order of samples and masks of dropout; by
            default task 0 and the client's own masks.
    """
    asked, network = read(message), Network(module, within or SGD(), FLIOnline(), loss)
    at = 0 if number is None else number
    ended = network.play(
        asked.arrays, tasks, at, asked.guess, absolute=asked.absolute,
        masks=_masks(context, at) if number is None else number,
    )  # fmt: skip
    before, after = (network.scores(a, *test) for a in (asked.arrays, ended.arrays))
    numbers: dict[str, Any] = {EXAMPLES: len(test[1])}
    numbers |= after | {f"unadapted-{name}": value for name, value in before.items()}
    return reply(message, context, numbers)


def _masks(context: Context, at: int) -> int:
    """A number that no two clients of a round share; without a partition number, by the node."""
    client = client_of(context).get(CLIENT, getattr(context, "node_id", 0))
    return client % (2**31 - 1) * STRETCH + at


def _examples(tasks: Any) -> int:
    sizes = getattr(tasks, "sizes", None)
    return int(sum(sizes)) if sizes is not None else tasks.steps * tasks.batch

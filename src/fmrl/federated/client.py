"""What a client does with a message of `FedFMRL` (or of plain FedAvg), in one call each."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context, Message
from torch import nn  # fmrl[federated] brings torch along

from fmrl.core.algorithm import FMRL
from fmrl.core.arrays import namespace
from fmrl.core.meta_level import State, looked
from fmrl.core.rules.update import FLIOnline
from fmrl.core.samples import Samples
from fmrl.deep.losses import Loss, cross_entropy
from fmrl.deep.within import SGD
from fmrl.errors import FMRLError
from fmrl.federated.networks import Network
from fmrl.federated.records import EXAMPLES, SIGMA, Asked, read, reply


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
            own order of samples.
        examples: What the client weighs under FedAvg; by default the samples it has.
    """
    asked = read(message)
    network = Network(module, within or SGD(), update or FLIOnline(), loss)
    at = asked.round if number is None else number
    ended = network.play(
        asked.arrays, tasks, at, asked.guess, absolute=asked.absolute, observes=asked.observes
    )
    weight = {EXAMPLES: _examples(tasks) if examples is None else examples, SIGMA: ended.sigma}
    return reply(message, context, weight | {"loss": ended.loss}, ended.arrays, ended.seen)


def evaluate_network(
    message: Message, context: Context, module: nn.Module, tasks: Any, test: tuple[Any, Any], *,
    within: Any = None, loss: Loss = cross_entropy, number: int = 0,
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
        number: Which task of ``tasks``, that is, which order of samples.
    """
    asked, network = read(message), Network(module, within or SGD(), FLIOnline(), loss)
    ended = network.play(asked.arrays, tasks, number, asked.guess, absolute=asked.absolute)
    before, after = (network.scores(a, *test) for a in (asked.arrays, ended.arrays))
    numbers: dict[str, Any] = {EXAMPLES: len(test[1])}
    numbers |= after | {f"unadapted-{name}": value for name, value in before.items()}
    return reply(message, context, numbers)


def train_task(message: Message, context: Context, algo: FMRL, task: Any) -> Message:
    """Play a convex `Task` with the composition's learner and domain, and answer with the update
    vector of its update rule.

    Args:
        message: From a server that was started with ``{"phi": phi}`` as its arrays.
        context: Of the client; its partition number orders the replies.
        algo: The composition, the same as the server's.
        task: A `Task`, or any object whose ``open()`` returns a `Game`.
    """
    asked, game = read(message), task.open()
    round, end = algo.play(_state(algo, asked, game), game)
    numbers = {EXAMPLES: int(game.rounds), SIGMA: float(end.sigma)}
    numbers |= {"loss": float(np.mean(round.losses)), "regret": float(round.regret)}
    seen = end.seen if asked.observes else None
    return reply(message, context, numbers, {_name(asked): end.theta}, seen)


def evaluate_task(message: Message, context: Context, algo: FMRL, task: Any, test: Any) -> Message:
    """Personalised evaluation of a convex `Task`: ``loss`` is the mean loss on ``test`` after
    adapting to ``task``, ``unadapted-loss`` that of phi.

    Args:
        message: From the server.
        context: Of the client.
        algo: The composition, the same as the server's.
        task: What to adapt to.
        test: A `Task` of rows to be scored on.
    """
    asked, game, held = read(message), task.open(), test.open()
    state = _state(algo, asked, game)
    xp = namespace(state.phi)
    losses = [float(xp.mean(held.losses(a))) for a in (algo.adapt(state, task), state.phi)]
    numbers = {EXAMPLES: int(held.rounds), "loss": losses[0], "unadapted-loss": losses[1]}
    return reply(message, context, numbers)


def _state(algo: FMRL, asked: Asked, game: Any) -> State:
    """Where a task starts; the memories of the rules stay on the server."""
    if isinstance(game, Samples) and looked(algo, game.X[..., 0, :]) is not None:
        what = f"{algo.meta!r} starts every task elsewhere, from a memory that stays on the server"
        raise FMRLError(what, fix="use FollowLeader()")
    if asked.guess is None:
        raise FMRLError("the server sends no guess", fix="use FedFMRL as its strategy")
    return State(asked.round, asked.arrays[_name(asked)], asked.guess, (), ())


def _name(asked: Asked) -> str:
    names = list(asked.arrays)
    if len(names) != 1 or asked.arrays[names[0]].ndim != 1:
        what = f"a convex task needs one flat array, and the server sent {names}"
        raise FMRLError(what, fix='start it with ArrayRecord({"phi": Array(phi)})')
    return names[0]


def _examples(tasks: Any) -> int:
    sizes = getattr(tasks, "sizes", None)
    return int(sum(sizes)) if sizes is not None else tasks.steps * tasks.batch

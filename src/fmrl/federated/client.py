"""A client with a convex task: what it does with a message of `FedFMRL`, in one call each."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message

from fmrl.core.algorithm import FMRL
from fmrl.core.arrays import namespace
from fmrl.core.domains import Domain
from fmrl.core.meta_level import State, looked
from fmrl.core.rules.observe import OBSERVATIONS
from fmrl.core.samples import Samples
from fmrl.errors import FMRLError
from fmrl.federated.records import EXAMPLES, SIGMA, Asked, read, reply


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
    state = _state(algo, asked, game)
    sigma, eta, played = algo.play_rounds(state, game)
    theta = algo.update.vector(played, _Hindsight(game, algo.domain))  # type: ignore[arg-type]
    seen = None
    if asked.observes:
        seen = OBSERVATIONS[asked.observes](game, algo.domain, state.phi, eta, played)
    numbers = {EXAMPLES: int(game.rounds), SIGMA: float(sigma)}
    numbers |= {"loss": float(namespace(state.phi).mean(played.losses))}
    return reply(message, context, numbers, {_name(asked): theta}, seen)


class _Hindsight:
    """The optimum of a task, solved for when a rule asks for it: most do not."""

    def __init__(self, game: Any, domain: Domain):
        self._game, self._domain, self._found = game, domain, None

    def __getattr__(self, name: str) -> Any:
        if self._found is None:
            self._found = self._game.hindsight(self._domain)
        return getattr(self._found, name)


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

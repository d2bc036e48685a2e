"""What travels, as Flower's records: phi, the guess and the round to a client; its update vector,
what was observed and its numbers back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fmrl.core.metric import METRICS, Metric
from fmrl.federated.server import Reply

GUESS, SEEN, METRICS_KEY, FAILED = "guess", "seen", "metrics", "failed"
ROUND, OBSERVES, ABSOLUTE, STEP = "server-round", "observes", "absolute", "step"
CLIENT, SIGMA, EXAMPLES = "client", "sigma", "num-examples"
OWN = (CLIENT, ROUND, SIGMA)  # numbers of a reply that are no scores


class Asked(NamedTuple):
    """What the server asks of a client, read from its message."""

    arrays: dict[str, np.ndarray]  # phi
    guess: Any  # the step, or D: a number, a metric, or None where the server sends none
    round: int
    observes: str | None
    absolute: bool


def numpy_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The arrays of a record, by name."""
    return {name: array.numpy() for name, array in record.items()}


def array_record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    """A record of arrays by name."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def size_of(content: RecordDict) -> int:
    """Bytes of all arrays in a message."""
    found = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(len(a.data) for record in found for a in record.values())


def guess_record(guess: Any) -> ArrayRecord:
    """The guess, exactly: a number as one array, a metric as its arrays by name."""
    if isinstance(guess, Metric):
        kind = type(guess).__name__
        return array_record({f"{kind}.{n}": np.asarray(a) for n, a in guess.arrays.items()})
    return array_record({GUESS: np.asarray(guess)})


def read_guess(record: ArrayRecord) -> Any:
    """The guess of a record."""
    arrays = numpy_arrays(record)
    if GUESS in arrays:
        return arrays[GUESS]
    kind = next(iter(arrays)).partition(".")[0]
    return METRICS[kind](**{name.partition(".")[2]: a for name, a in arrays.items()})


def read(message: Message) -> Asked:
    """What a message asks for; one of plain FedAvg sends no guess and asks for no gradients."""
    content = message.content
    config = next(iter(content.config_records.values()), ConfigRecord())
    records = dict(content.array_records)
    guess = records.pop(GUESS, None)
    arrays = numpy_arrays(next(iter(records.values())))
    observes = str(config.get(OBSERVES, "")) or None
    number = int(config.get(ROUND, 0))  # type: ignore[arg-type]
    sent = None if guess is None else read_guess(guess)
    return Asked(arrays, sent, number, observes, bool(config.get(ABSOLUTE, True)))


def client_of(context: Context | None) -> dict[str, int]:
    """The client's number, where Flower or the one who started it gave it one."""
    config = {} if context is None else context.node_config
    return {CLIENT: int(config["partition-id"])} if "partition-id" in config else {}


def reply(
    message: Message, context: Context | None, numbers: dict[str, Any],
    arrays: dict[str, np.ndarray] | None = None, seen: np.ndarray | None = None,
) -> Message:  # fmt: skip
    """A client's answer to a message."""
    numbers = client_of(context) | {ROUND: read_round(message)} | numbers
    content: dict[str, Any] = {METRICS_KEY: MetricRecord(numbers)}
    if arrays is not None:
        content = {"arrays": array_record(arrays)} | content
    if seen is not None:
        content[SEEN] = array_record({SEEN: np.asarray(seen)})
    return Message(content=RecordDict(content), reply_to=message)


def read_round(message: Message) -> int:
    """The round a message belongs to."""
    config = next(iter(message.content.config_records.values()), ConfigRecord())
    return int(config.get(ROUND, 0))  # type: ignore[arg-type]


def host(
    message: Message, context: Context, clients: Iterable[int],
    answer: Callable[[Message, Context], Message],
) -> Message:  # fmt: skip
    """One answer for many clients that live on this node, each of them a client of its own to the
    server: phi travels to the node once, and Flower has one message a node to look after.

    Args:
        message: From the server.
        context: Of the node.
        clients: Their numbers, which no other node has.
        answer: What one client does, such as `train_task`. It is called with the message and a
            context whose ``partition-id`` is the client's number. One that fails is refused alone.
    """
    content = RecordDict()
    for client in clients:
        own = {**context.node_config, "partition-id": client}
        inside = Context(context.run_id, context.node_id, own, context.state, context.run_config)
        try:
            found = dict(answer(message, inside).content)
        except Exception as error:  # the others have done nothing wrong
            found = {FAILED: ConfigRecord({"reason": f"{type(error).__name__}: {error}"})}
        for name, record in found.items():
            content[f"{client}/{name}"] = record
    return Message(content=content, reply_to=message)


def of_clients(content: RecordDict) -> list[dict[str, Any]]:
    """The records of each client in an answer: of a node that hosts several, or of one client."""
    if not all("/" in name for name in content):
        return [dict(content)]
    found: dict[str, dict[str, Any]] = {}
    for name, record in content.items():
        client, _, own = name.partition("/")
        found.setdefault(client, {})[own] = record
    return list(found.values())


def read_reply(records: dict[str, Any], node: int, weight: str) -> Reply:
    """A client's answer as the server takes it; what cannot be read raises.

    weight: the name of the number that weighs the client.
    """
    sent = {name: r for name, r in records.items() if isinstance(r, ArrayRecord)}
    seen = sent.pop(SEEN, None)
    numbers = dict(next((r for r in records.values() if isinstance(r, MetricRecord)), {}))
    arrays = numpy_arrays(next(iter(sent.values()))) if sent else {}
    observed = None if seen is None else next(iter(numpy_arrays(seen).values()), None)
    at = numbers.get(ROUND)
    number = int(at) if isinstance(at, (int, float)) else None
    client = int(numbers.get(CLIENT, node))  # type: ignore[arg-type]
    return Reply(client, arrays, numbers.get(weight), observed, number, numbers, node)

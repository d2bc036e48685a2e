"""Replies as Flower brings them: read, refused by name where they cannot be, and their metrics put
together. Whatever a client sends, nothing here raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from logging import WARNING
from typing import NamedTuple

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.supercore import log

from fmrl.federated import records
from fmrl.federated.server import Reply, less_is_better, numbers_of, spread

Average = Callable[[list[RecordDict], str], MetricRecord]


class Collected(NamedTuple):
    """What came back in a round."""

    replies: list[Reply]
    refused: list[tuple[int, str]]  # node and reason
    size: int  # bytes

    def tell(self, what: str) -> dict[str, int]:
        """Log every refusal, and count them by reason."""
        for node, reason in self.refused:
            log(WARNING, "%s: refused node %d: %s", what, node, reason)
        counts = Counter(f"refused-{reason}" for _, reason in self.refused)
        return {"refused": len(self.refused)} | dict(counts)


def collect(messages: Iterable[Message], weight: str, asked: Iterable[int] = ()) -> Collected:
    """Read replies; those that failed, cannot be read or did not come are refused.

    Args:
        messages: From the clients.
        weight: The number by which a client weighs.
        asked: Nodes that were asked.
    """
    found, refused, size, silent = [], [], 0, dict.fromkeys(asked)
    for message in messages:
        node = message.metadata.src_node_id
        silent.pop(node, None)
        if message.has_error():
            log(WARNING, "node %d failed: %s", node, message.error.reason)
            refused.append((node, "failed"))
            continue
        size += records.size_of(message.content)
        for content in records.of_clients(message.content):
            if records.FAILED in content:
                log(WARNING, "a client of node %d failed: %s", node, content[records.FAILED])
                refused.append((node, "failed"))
                continue
            try:
                found.append(records.read_reply(content, node, weight))
            except Exception as error:  # arrays of a stranger can fail in any way
                log(WARNING, "node %d sent what cannot be read: %s", node, error)
                refused.append((node, "wrong-keys"))
    refused += [(node, "no-reply") for node in silent]
    return Collected(found, refused, size)


def unscored(number: int, reply: Reply) -> str | None:
    """Why the scores of a reply cannot be used; None where they can.

    Args:
        number: Of the round.
        reply: What came.
    """
    if reply.round is not None and reply.round != number:
        return "stale-round"
    if not np.isfinite(numbers_of(reply.metrics)).all():
        return "not-finite"
    examples = reply.metrics.get(records.EXAMPLES)
    return None if isinstance(examples, (int, float)) and examples > 0 else "no-weight"


def averaged(replies: Sequence[Reply], weight: str, average: Average) -> MetricRecord:
    """The metrics of clients by one of Flower's functions; without them where it cannot.

    Args:
        replies: Good ones.
        weight: The number by which a client weighs.
        average: Flower's, or the user's.
    """
    weights = [reply.metrics.get(weight, 0) for reply in replies]
    contents = []
    for reply, own in zip(replies, weights, strict=True):
        numbers = {n: v for n, v in reply.metrics.items() if n not in records.OWN}
        numbers[weight] = own if any(weights) else 1  # where none weighs, all weigh alike
        contents.append(RecordDict({records.METRICS_KEY: MetricRecord(numbers)}))
    try:
        return average(contents, weight) if contents else MetricRecord()
    except Exception as error:  # one client may send lists of another length
        log(WARNING, "the clients' metrics do not fit together: %s", error)
        return MetricRecord()


def over_clients(replies: Sequence[Reply], names: Iterable[str]) -> dict[str, float]:
    """Mean, spread and worst decile of the scores that every client has.

    Args:
        replies: Good ones.
        names: Of scores.
    """
    made = {}
    for name in names:
        values = [reply.metrics.get(name) for reply in replies]
        if all(isinstance(v, (int, float)) for v in values):
            told = spread(values, less_is_better(name))  # type: ignore[arg-type]
            made |= {f"{name}-{what}": v for what, v in told.items()}
    return made

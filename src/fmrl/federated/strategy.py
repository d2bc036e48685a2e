"""FedFMRL: Flower's FedAvg with a learned initialisation, a learned step, a memory on disk and
replies that are looked at before they are used.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore import log

from fmrl.core.algorithm import FMRL
from fmrl.core.domains import Euclidean
from fmrl.core.meta_level import State
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import LastUpdate
from fmrl.core.rules.private import promises
from fmrl.core.rules.within import FTRL, OMD
from fmrl.errors import FMRLError
from fmrl.federated import records
from fmrl.federated.replies import averaged, collect, over_clients, unscored
from fmrl.federated.saving import Rounds
from fmrl.federated.server import Form, Server


class FedFMRL(FedAvg):
    """Follow-the-Meta-Regularized-Leader as a Flower strategy.

    phi travels as the arrays, the guess as a record of its own (and a scalar step also as
    ``config["step"]``); clients send their update vector and, where the similarity rule learns from
    them, their squared gradients. With `LastUpdate` and a `KnownStep` it is FedAvg. A reply that
    failed, has a NaN, other names or shapes, no weight, no gradients, or answers another round is
    refused by name (logged, and counted as ``refused`` and ``refused-…`` in the metrics of the
    round) and changes nothing.

    Args:
        algo: A composition whose domain, meta-update and similarity rule are used (convex tasks).
        meta: Without ``algo``: how update vectors move phi. Default `LastUpdate`, whose phi is the
            mean of the round, as FedAvg's.
        similarity: Without ``algo``: the rule that sets the step, such as ``KnownStep(0.1)``,
            ``Isotropic(0.1)`` or ``PerCoordinate(0.1)``.
        folder: Where the state is saved after every round. A server that is started again with the
            same folder goes on after the last round saved.
        seed: Of the choice of clients: the same nodes in the same round are chosen again.
        min_replies: A round with fewer good replies changes nothing.
        attempts: How often such a round is asked for before it is given up.
        at_once: How many clients of a round are asked at one time; all by default. Flower's
            simulation runtime slows down with the square of it, and is best at about 50 to 100.
        weighted_by_key: The number by which a client weighs. Default: "sigma" with ``algo``
            (Algorithm 2), else "num-examples" (FedAvg).
        options: Of `FedAvg`: fraction_train, min_train_nodes, …
    """

    def __init__(
        self, algo: FMRL | None = None, *, meta: Any = None, similarity: Any = None,
        folder: str | Path | None = None, seed: int = 0, min_replies: int = 1, attempts: int = 1,
        at_once: int | None = None, weighted_by_key: str | None = None, **options: Any,
    ):  # fmt: skip
        key = weighted_by_key or (records.EXAMPLES if algo is None else records.SIGMA)
        super().__init__(weighted_by_key=key, **options)
        if algo is None and similarity is None:
            fix = "give similarity=KnownStep(0.1), or Isotropic(0.1) to learn it"
            raise FMRLError("nothing says what step clients take", fix=fix)
        if algo is not None and (meta, similarity) != (None, None):
            raise FMRLError("a composition has its own meta and similarity", fix="leave them out")
        if min_replies < 1 or attempts < 1 or (at_once is not None and at_once < 1):
            raise FMRLError("min_replies, attempts and at_once must be at least 1")
        within = FTRL() if getattr(similarity, "played_by", None) == "FTRL" else OMD()
        self.algo = algo or FMRL(
            Euclidean(), within, meta=meta or LastUpdate(), similarity=similarity
        )
        for part in promises(self.algo):
            what = f"{part!r} counts every task once, and here a client is asked in many rounds"
            raise FMRLError(what, fix="leave privacy out; see docs/privacy.md")
        self.folder, self.seed = None if folder is None else Path(folder), seed
        self.min_replies, self.attempts, self.at_once = min_replies, attempts, at_once
        self.server: Server | None = None
        self.state: State | None = None
        self.done = 0  # rounds
        self._rounds: Rounds | None = None
        self._fixed: dict[str, np.ndarray] = {}  # arrays of whole numbers
        self._busy, self._down = 0.0, 0  # seconds and bytes of the round
        self._asked: list[int] = []  # nodes that messages were made for

    def summary(self) -> None:
        """Log what the strategy is made of."""
        log(INFO, "\t├──> Rules: %r", self.algo)
        log(INFO, "\t├──> State: %s", self.folder or "not saved")
        super().summary()

    def begin(self, arrays: ArrayRecord) -> ArrayRecord:
        """Start at these arrays, or where the folder says; returns where that is.

        Args:
            arrays: The model's.
        """
        found = records.numpy_arrays(arrays)
        self.server = Server(self.algo, Form.of(found))
        moving = {name for name, _, _ in self.server.form.moving}
        self._fixed = {name: a for name, a in found.items() if name not in moving}
        about = {"weighted_by": self.weighted_by_key, "seed": self.seed}
        saved = None
        if self.folder is not None:
            self._rounds = Rounds(self.folder, self.server, about)
            saved = self._rounds.load()
        self.done, self.state = saved or (0, self.server.init(found))
        if saved:
            log(INFO, "%s: going on after round %d", self.folder, self.done)
        return self.arrays

    @property
    def arrays(self) -> ArrayRecord:
        """phi as the model's arrays."""
        server, state = self._begun()
        moved = server.form.split(np.asarray(state.phi))
        return records.array_record({n: (moved | self._fixed)[n] for n in server.form.names})

    @property
    def step(self) -> float | None:
        """The step of the next round as one number; None where clients make it of the guess."""
        server, state = self._begun()
        guess = state.guess
        return (
            float(guess.mean if isinstance(guess, Metric) else guess) if server.absolute else None
        )

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Run until ``num_rounds`` rounds are done in all, those before a restart included.

        Args:
            grid: Flower's, to reach the nodes.
            initial_arrays: The model before the first round.
            num_rounds: Rounds in all.
            timeout: Seconds to wait for the replies of a round.
            train_config: Sent with every training message.
            evaluate_config: Sent with every evaluation message.
            evaluate_fn: Called with the round and the arrays after it, and before the first round.
        """
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        result = Result(arrays=self.begin(initial_arrays))
        configs = [ConfigRecord() if c is None else c for c in (train_config, evaluate_config)]

        def central() -> None:
            found = None if evaluate_fn is None else evaluate_fn(self.done, self.arrays)
            if found is not None:
                result.evaluate_metrics_serverapp[self.done] = found

        central()
        while self.done < num_rounds:
            number = self.done + 1
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            for _ in range(self.attempts):
                messages = self.configure_train(number, self.arrays, configs[0], grid)
                replies = self._ask(grid, messages, timeout)
                arrays, metrics = self.aggregate_train(number, replies)
                if metrics is not None:
                    log(INFO, "\t└──> train: %s", metrics)
                    result.train_metrics_clientapp[number] = metrics
                if arrays is not None:
                    break
            else:
                log(WARNING, "round %d changed nothing: too few good replies", number)
                self._keep(number)
            result.arrays = self.arrays
            messages = self.configure_evaluate(number, self.arrays, configs[1], grid)
            replies = self._ask(grid, messages, timeout)
            scores = self.aggregate_evaluate(number, replies)
            if scores is not None:
                log(INFO, "\t└──> evaluate: %s", scores)
                result.evaluate_metrics_clientapp[number] = scores
            central()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages with phi, the guess and what clients should observe."""
        if self.fraction_train == 0.0:
            return []
        share = self.fraction_train, self.min_train_nodes
        nodes = self._sample(grid, *share, f"train {server_round}")
        return self._messages(server_round, arrays, config, nodes, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same for evaluation."""
        if self.fraction_evaluate == 0.0:
            return []
        share = self.fraction_evaluate, self.min_evaluate_nodes
        nodes = self._sample(grid, *share, f"evaluate {server_round}")
        return self._messages(server_round, arrays, config, nodes, MessageType.EVALUATE)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """phi after the round and its metrics; None for phi where too few replies were good."""
        started, (server, state) = time.perf_counter(), self._begun()
        came = collect(replies, self.weighted_by_key, self._asked)
        moved, good, bad = server.round(state, server_round, came.replies)
        came.refused.extend((reply.node, reason) for reply, reason in bad)
        enough = len(good) >= self.min_replies
        if enough:
            self.state = moved
            self._keep(server_round)
        metrics = averaged(good, self.weighted_by_key, self.train_metrics_aggr_fn)
        metrics.update({"clients": len(good) if enough else 0})
        metrics.update(came.tell(f"round {server_round}"))
        if self.step is not None:
            metrics["step"] = self.step
        self._busy += time.perf_counter() - started
        metrics.update({"bytes-down": self._down, "bytes-up": came.size})
        metrics["server-seconds"] = self._busy
        return self.arrays if enough else None, metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Scores of the clients: weighted mean as under FedAvg, and over clients ``…-mean``,
        ``…-spread`` and ``…-worst-decile``.
        """
        came, good = collect(replies, records.EXAMPLES, self._asked), []
        for reply in sorted(came.replies, key=lambda r: (r.client, r.node)):
            reason = unscored(server_round, reply)
            if reason is None:
                good.append(reply)
            else:
                came.refused.append((reply.node, reason))
        counts = came.tell(f"evaluation {server_round}")
        if not good:
            return MetricRecord({"clients": 0} | counts) if counts["refused"] else None
        metrics = averaged(good, records.EXAMPLES, self.evaluate_metrics_aggr_fn)
        metrics.update(over_clients(good, list(metrics)))
        metrics.update({"clients": len(good)} | counts)
        return metrics

    def _ask(self, grid: Grid, messages: Iterable[Message], timeout: float) -> list[Message]:
        """The replies to messages, asked for a part at a time."""
        left, replies = list(messages), []
        while left:
            part, left = left[: self.at_once], left[self.at_once :] if self.at_once else []
            replies += grid.send_and_receive(messages=part, timeout=timeout)
        return replies

    def _begun(self) -> tuple[Server, State]:
        if self.server is None or self.state is None:
            raise FMRLError("the strategy has no arrays yet", fix="call start, or begin(arrays)")
        return self.server, self.state

    def _keep(self, number: int) -> None:
        """The round is over."""
        self.done = number
        if self._rounds is not None:
            self._rounds.save(number, self._begun()[1])

    def _sample(self, grid: Grid, fraction: float, least: int, what: str) -> list[int]:
        """Nodes by a draw that depends on the seed, the round and who is there."""
        size = max(int(len(list(grid.get_node_ids())) * fraction), least)
        _, nodes = sample_nodes(grid, max(self.min_available_nodes, size), 0)
        size = max(int(len(nodes) * fraction), least)
        return sorted(random.Random(f"{self.seed} {what}").sample(sorted(nodes), size))

    def _messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, nodes: list[int], kind: str
    ) -> Iterable[Message]:
        started = time.perf_counter()
        own = self.begin(arrays) if self.server is None else self.arrays
        if self.done and any(own[n].data != a.data for n, a in arrays.items() if n in own):
            what = "these arrays are not those that the last round left"
            raise FMRLError(what, fix="leave them as they are between rounds")
        arrays, (server, state) = own, self._begun()
        told = ConfigRecord(dict(config) | {records.ROUND: number})
        told[records.ABSOLUTE] = server.absolute
        if kind == MessageType.TRAIN:
            told[records.OBSERVES] = server.observes or ""
        if self.step is not None:
            told[records.STEP] = self.step
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: told})
        content[records.GUESS] = records.guess_record(state.guess)
        messages = self._construct_messages(content, nodes, kind)
        self._asked, self._busy = nodes, time.perf_counter() - started
        self._down = records.size_of(content) * len(nodes)
        return messages

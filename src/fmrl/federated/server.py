"""One federated round above the clients: which replies are used, how phi and the guess move, and
what the mean of many clients' scores hides.

All rules are the core's. The clients of a round are one meta-batch: they start from the same phi
and the same guess, and `fmrl.core.meta_level.together` moves both, as in
``fmrl.run(…, meta_batch=…)`` and in `fmrl.deep.MetaTrainer`. Nothing here needs Flower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.arrays import Array, namespace
from fmrl.core.meta_level import State, together
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End
from fmrl.errors import FMRLError

Arrays = Mapping[str, np.ndarray]
# Why a reply can be refused; also the names under which refusals are counted.
REASONS = (
    "failed", "no-reply", "stale-round", "twice", "wrong-keys", "wrong-shapes", "not-finite",
    "no-weight", "no-gradients", "outside-domain",
)  # fmt: skip
BAD = ("loss", "error", "perplexity")  # in a name: less is better


class Reply(NamedTuple):
    """What a client sends back after a round."""

    client: int  # its number; replies are taken in this order, and one of each client
    arrays: Arrays  # its update vector, by the names of the model's arrays
    weight: float  # of the client in the mean
    seen: np.ndarray | None = None  # [k] what the similarity rule asked to observe
    round: int | None = None  # the round it answers; None where the client does not say
    metrics: Mapping[str, Any] = {}  # other numbers, which must be finite
    node: int = 0  # where it came from, for messages


@dataclass(frozen=True)
class Form:
    """Names, shapes and types of a model's arrays, and the one flat vector they are to the core.

    Arrays of whole numbers (counters of batch norm) are no part of the vector: the server keeps
    them as they were at the start.

    Args:
        names: Of the arrays, in the order of the vector.
        shapes: Of the arrays.
        dtypes: Of the arrays, as NumPy prints them.

    >>> form = Form.of({"w": np.ones((2, 2), np.float32), "n": np.array(3)})
    >>> form.size, form.flat({"w": np.eye(2), "n": np.array(4)})
    (4, array([1., 0., 0., 1.], dtype=float32))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Arrays) -> Form:
        """The form of a model's arrays."""
        found = {name: np.asarray(a) for name, a in arrays.items()}
        form = cls(
            tuple(found), tuple(a.shape for a in found.values()),
            tuple(str(a.dtype) for a in found.values()),
        )  # fmt: skip
        if form.size == 0:
            raise FMRLError("the model has no arrays of real numbers", fix="send its parameters")
        return form

    @property
    def moving(self) -> list[tuple[str, tuple[int, ...], np.dtype]]:
        """Name, shape and type of the arrays that the vector is made of."""
        parts = zip(self.names, self.shapes, map(np.dtype, self.dtypes), strict=True)
        return [part for part in parts if part[2].kind == "f"]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(math.prod(shape) for _, shape, _ in self.moving)

    @property
    def dtype(self) -> np.dtype:
        """Of the vector: float64 where any array is, else float32."""
        wide = any(dtype == np.float64 for _, _, dtype in self.moving)
        return np.dtype(np.float64 if wide else np.float32)

    def flat(self, arrays: Arrays) -> np.ndarray:
        """The vector of arrays of this form, [d]."""
        parts = [np.asarray(arrays[name], self.dtype).ravel() for name, _, _ in self.moving]
        return np.concatenate(parts)

    def split(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Arrays of a vector [d], without those of whole numbers."""
        sizes = [math.prod(shape) for _, shape, _ in self.moving]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(shape).astype(dtype)
            for (name, shape, dtype), part in zip(self.moving, parts, strict=True)
        }


def advance(
    algo: FMRL, state: State, theta: Array, weight: Array, seen: Array | None = None
) -> State:
    """The state after clients that all started at ``state`` ended at theta.

    Args:
        algo: Whose domain, meta-update and similarity rule move phi and the guess.
        state: Before the round.
        theta: Update vectors, [clients, ..., d].
        weight: Of the clients, [clients, ...].
        seen: What the similarity rule observes of each, [clients, ..., k].

    >>> algo = FMRL()
    >>> theta = np.array([[0.5, 0.0], [0.0, 0.2]])
    >>> advance(algo, algo.init(np.zeros(2)), theta, np.array([1.0, 3.0])).phi
    array([0.125, 0.15 ])
    """
    return together(algo, state, End(theta, theta, weight, seen))


@dataclass(frozen=True)
class Server:
    """The server's side of a round, as a value.

    Args:
        algo: Whose domain, meta-update and similarity rule are used.
        form: Of the model's arrays.
    """

    algo: FMRL
    form: Form

    @property
    def observes(self) -> str | None:
        """What clients are asked to observe; a known step learns from nothing."""
        return getattr(self.algo.similarity, "observes", None)

    @property
    def absolute(self) -> bool:
        """Whether the guess is the step itself."""
        return getattr(self.algo.similarity, "absolute", False)

    def init(self, arrays: Arrays) -> State:
        """The state before the first round."""
        return self.algo.init(self.form.flat(arrays))

    def why_not(self, state: State, number: int, reply: Reply) -> str | None:
        """The reason to refuse a reply in round ``number``, one of `REASONS`; None for a good one.

        Args:
            state: Before the round.
            number: Of the round.
            reply: What came.
        """
        if reply.round is not None and reply.round != number:
            return "stale-round"
        if set(reply.arrays) != set(self.form.names):
            return "wrong-keys"
        shapes = zip(self.form.names, self.form.shapes, strict=True)
        if any(np.shape(reply.arrays[name]) != shape for name, shape in shapes):
            return "wrong-shapes"
        theta, numbers = self._vector(reply.arrays), numbers_of(reply.metrics)
        if theta is None or not (np.isfinite(theta).all() and np.isfinite(numbers).all()):
            return "not-finite"
        if not (isinstance(reply.weight, (int, float)) and 0 <= reply.weight < math.inf):
            return "no-weight"
        if self.observes is not None and not self._observed(reply.seen):
            return "no-gradients"
        xp = namespace(state.phi)
        inside = self.algo.domain.contains(xp.asarray(theta, dtype=state.phi.dtype))
        return None if bool(xp.all(inside)) else "outside-domain"

    def round(
        self, state: State, number: int, replies: Sequence[Reply]
    ) -> tuple[State, list[Reply], list[tuple[Reply, str]]]:
        """The state after round ``number``, the replies it was made of in their order, and (reply,
        reason) of those that were refused. Without a good reply the state stays as it is.

        Args:
            state: Before the round.
            number: Of the round.
            replies: In any order.
        """
        good, refused, known = [], [], set()
        for reply in sorted(replies, key=lambda r: (r.client, r.node)):
            reason = "twice" if reply.client in known else self.why_not(state, number, reply)
            if reason is None:
                known.add(reply.client)
                good.append(reply)
            else:
                refused.append((reply, reason))
        moved = self.move(state, good) if good else state
        if not _finite(moved):  # numbers that are finite may be too large for what is made of them
            large = [not _finite(self.move(state, [reply])) for reply in good]
            large = large if any(large) else [True] * len(good)
            refused += [(r, "not-finite") for r, bad in zip(good, large, strict=True) if bad]
            good = [r for r, bad in zip(good, large, strict=True) if not bad]
            moved = self.move(state, good) if good else state
        return moved, good, refused

    def move(self, state: State, replies: Iterable[Reply]) -> State:
        """The state after good replies."""
        replies, seen = list(replies), None
        with np.errstate(over="ignore", invalid="ignore"):
            theta = np.stack([self.form.flat(reply.arrays) for reply in replies])
            weight = np.array([reply.weight for reply in replies], self.form.dtype)
            if self.observes is not None:
                seen = np.stack([np.asarray(reply.seen, self.form.dtype) for reply in replies])
            return advance(self.algo, state, theta, weight, seen)

    def _vector(self, arrays: Arrays) -> np.ndarray | None:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return self.form.flat(arrays)
        except (TypeError, ValueError):  # not numbers
            return None

    def _observed(self, seen: np.ndarray | None) -> bool:
        """Whether what was observed has the right size and is finite; squares are not negative."""
        d, kind = self.form.size, self.observes
        sizes = {"norms": 1, "squares": d, "products": d * d, "posterior": 2 * d + d * d + 2}
        found = np.asarray(np.nan if seen is None else seen)
        if found.dtype.kind != "f" or found.shape != (sizes.get(kind or "", found.size),):
            return False
        signed = kind not in ("norms", "squares")
        with np.errstate(over="ignore"):
            finite = np.isfinite(found.astype(self.form.dtype)).all()
        return bool(finite and (signed or (found >= 0).all()))


def _finite(state: State) -> bool:
    """Whether phi and the guess are finite."""
    guess = state.guess.finite if isinstance(state.guess, Metric) else np.isfinite(state.guess)
    return bool(np.isfinite(np.asarray(state.phi)).all() and np.all(guess))


def numbers_of(metrics: Mapping[str, Any]) -> np.ndarray:
    """All numbers of a client's metrics, which hold numbers and lists of them."""
    return np.concatenate([np.zeros(0), *(np.ravel(v).astype(float) for v in metrics.values())])


def less_is_better(name: str) -> bool:
    """Whether a score of that name is a loss.

    >>> less_is_better("test-loss"), less_is_better("accuracy")
    (True, False)
    """
    return any(word in name for word in BAD)


def spread(values: Sequence[float], less: bool = False) -> dict[str, float]:
    """Mean, standard deviation and worst decile of one score over clients, each counted once.

    The worst decile is the mean of the worst tenth of the clients, at least of one.

    Args:
        values: One for each client.
        less: Whether less is better.

    >>> spread([0.5, 0.6, 0.7, 0.9], less=False)["worst-decile"]
    0.5
    """
    found = np.sort(np.asarray(values, dtype=float))
    if not found.size:
        raise FMRLError("there are no clients to score")
    worst = (found[::-1] if less else found)[: max(1, math.floor(len(found) / 10))]
    return {
        "mean": float(found.mean()),
        "spread": float(found.std(ddof=1)) if len(found) > 1 else 0.0,
        "worst-decile": float(worst.mean()),
    }

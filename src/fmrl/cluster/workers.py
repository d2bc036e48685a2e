"""The workers: the same work on every block, in this process or on a Ray cluster, and the ledger of
who did what, how fast, which the progress view prints. Ray schedules, retries and moves.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fmrl.cluster.work import Done, Job, attend
from fmrl.core.metric import Metric
from fmrl.errors import FMRLError

RETRIES = 20  # of one block, when the process or the machine that works on it dies
AHEAD = 3  # blocks given out for each CPU: one in work, the others ready when it ends


class Here:
    """Blocks one after the other in this process: what Ray's cost is measured against."""

    def __init__(self, ledger: Ledger | None = None):
        self.ledger = ledger or Ledger()

    def put(self, value: Any) -> Any:
        """The value itself."""
        return value

    def map(
        self, function: str, job: Job, items: Iterable[tuple], ordered: bool = False
    ) -> Iterator[Done]:
        """``function`` on every (item, held, …)."""
        for item, held, *rest in items:
            done = attend(function, job, item, held() if callable(held) else held, *rest)
            yield _check(done, self.ledger)


class OnRay:
    """Blocks on the workers of a Ray cluster.

    address: of a running cluster ("auto" finds one on this machine); None uses the one this
    process is connected to, or that RAY_ADDRESS names, or else starts one here that ends with the
    run."""

    def __init__(
        self,
        address: str | None = None,
        ledger: Ledger | None = None,
        view: Callable[[Ledger], None] | None = None,
    ):
        try:
            import ray
        except ImportError:
            what = "the engine 'ray' needs Ray, which is not installed"
            raise FMRLError(what, fix='pip install "fmrl[ray]"') from None
        self.ray, self.ledger, self.view = ray, ledger or Ledger(), view
        self.started = not ray.is_initialized()
        if self.started:
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            try:
                _reach(address)
                more = {"include_dashboard": False} if address == "local" else {}
                ray.init(address, log_to_driver=False, **more)
            except (ConnectionError, TimeoutError, socket.gaierror) as error:
                what = f"there is no Ray cluster at {address!r} ({error})"
                raise FMRLError(what, fix="start one: ray start --head") from None
        self.work = ray.remote(num_cpus=1, max_retries=RETRIES)(_attend)

    def close(self) -> None:
        """End the cluster if it was started for this run."""
        if self.started:
            self.ray.shutdown()

    def put(self, value: Any) -> Any:
        """A reference to the value in the object store."""
        return self.ray.put(value)

    @property
    def hosts(self) -> set[str]:
        """The machines of the cluster."""
        return {node["NodeManagerHostname"] for node in self.ray.nodes() if node["Alive"]}

    def size(self) -> dict[str, int]:
        """Of the cluster, for a record: Ray's nodes, the machines they are on, and their CPUs."""
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        cpus = int(self.ray.cluster_resources().get("CPU", 0))
        return {"nodes": len(nodes), "machines": len(self.hosts), "cpus": cpus}

    def map(
        self, function: str, job: Job, items: Iterable[tuple], ordered: bool = False
    ) -> Iterator[Done]:
        """``function`` on every (item, held, …), as they end or in their own order; at most a few
        for each CPU are given out.
        """
        ray, source = self.ray, enumerate(items)
        job_ref = ray.put(job)
        waiting: dict[Any, tuple[int, Any, float]] = {}
        ready: dict[int, Done] = {}
        expected, more = 0, True
        limit = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        try:
            while more or waiting or ready:
                while more and len(waiting) + len(ready) < limit:
                    found = next(source, None)
                    if found is None:
                        more = False
                        break
                    number, (item, held, *rest) = found
                    self.ledger.moved += _size(rest)
                    ref = self.work.remote(function, job_ref, item, held, *rest)
                    waiting[ref] = number, item, time.perf_counter()
                if waiting and expected not in ready:
                    self._collect(waiting, ready)
                for number in sorted({expected} & ready.keys() if ordered else ready):
                    expected = number + 1 if ordered else expected
                    yield _check(ready.pop(number), self.ledger)
        finally:
            for ref in waiting:  # after an error: what is under way is of no use to anyone
                ray.cancel(ref, force=False, recursive=False)

    def _collect(self, waiting: dict, ready: dict[int, Done]) -> None:
        refs, _ = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=0.0)
        if not refs:
            refs, _ = self.ray.wait(list(waiting), num_returns=1, timeout=0.5)
        for ref in refs:
            number, item, _ = waiting.pop(ref)
            try:
                done = self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as error:
                what = f"block {_number(item)} failed: {str(error.cause or error).splitlines()[0]}"
                fix = "every machine must see the folders of table and run under the same path"
                raise FMRLError(what, fix=fix) from error
            except self.ray.exceptions.RayError as error:
                kind = type(error).__name__
                what = f"block {_number(item)} was lost {RETRIES + 1} times ({kind})"
                fix = "look at that machine's memory; run it again with resume: the rest is kept"
                raise FMRLError(what, fix=fix) from error
            self.ledger.moved += _size(done.value)
            ready[number] = done
        now = time.perf_counter()
        self.ledger.waiting = [(_number(i), now - since) for _, i, since in waiting.values()]
        if self.view is not None:
            self.view(self.ledger)


def _number(item: Any) -> Any:
    """Of a block; a file that is indexed has its name."""
    return getattr(item, "number", item)


def _reach(address: str) -> None:
    """Whether anybody listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _attend(function: str, job: Job, item: Any, held: Any, *rest: Any) -> Done:
    if isinstance(held, dict):  # tables of a Ray Dataset: only those of this block travel
        import ray

        held = {name: ray.get(ref) for name, ref in held.items()}
    return attend(function, job, item, held, *rest)


def _check(done: Done, ledger: Ledger) -> Done:
    if done.error is not None:
        raise done.error
    ledger.add(done)
    return done


def _size(value: Any) -> int:
    """Bytes of the arrays in nested tuples and metrics."""
    if isinstance(value, Metric):
        return _size(tuple(value.arrays.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 8))


# A block is a straggler when it takes so many times the median of its phase, and so many seconds.
SLOW, LEAST = 2.0, 1.0


@contextmanager
def watch(console: Any = None):
    """A live table on the terminal: ``with watch() as view: play(…, view=view)``."""
    from rich.live import Live

    with Live(console=console, refresh_per_second=2, transient=True) as live:
        yield lambda ledger: live.update(ledger.table())


@dataclass
class Ledger:
    """What was done by whom. `add` is called once for each finished block; `table` prints the
    present state.

    >>> from fmrl.cluster.work import Done
    >>> ledger = Ledger()
    >>> ledger.begin("solve", 2)
    >>> for worker, seconds in (("a:1", 1.0), ("b:2", 4.0)):
    ...     ledger.add(Done(None, "solve", tasks=100, seconds=seconds, worker=worker))
    >>> ledger.rates()
    {'a:1': 100.0, 'b:2': 25.0}
    """

    blocks: dict[str, tuple[int, int]] = field(default_factory=dict)  # phase: done, of
    tasks: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # phase: tasks done
    reused: int = 0
    read: int = 0  # bytes that workers read from tables and finished blocks
    written: int = 0  # bytes they wrote
    moved: int = 0  # bytes between workers and the driver
    # phase: seconds of each block
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # worker: tasks, seconds
    workers: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    # phase: seconds of processors
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # blocks under way, and for how long
    waiting: list[tuple[Any, float]] = field(default_factory=list)
    # phase, block, seconds, worker
    slow: list[tuple[str, Any, float, str]] = field(default_factory=list)
    wall: dict[str, float] = field(default_factory=dict)  # phase: from its first block to its last
    _began: dict[str, float] = field(default_factory=dict)

    def begin(self, phase: str, of: int) -> None:
        """A phase of ``of`` blocks is next."""
        self.blocks[phase] = (0, of)
        self._began[phase] = time.perf_counter()

    def add(self, done: Any) -> None:
        """One more block."""
        n, of = self.blocks.get(done.phase, (0, 0))
        self.blocks[done.phase] = (n + 1, of)
        now = time.perf_counter()
        self.wall[done.phase] = now - self._began.get(done.phase, now)
        self.tasks[done.phase] += done.tasks
        self.read, self.written = self.read + done.read, self.written + done.written
        if done.reused:
            self.reused += 1
            return
        usual = self.usual(done.phase)
        if usual and done.seconds > max(LEAST, SLOW * usual):
            self.slow.append((done.phase, _number(done.item), done.seconds, done.worker))
        self.seconds[done.phase].append(done.seconds)
        self.cpu[done.phase] += done.cpu
        mine = self.workers[done.worker]
        mine[0], mine[1] = mine[0] + done.tasks, mine[1] + done.seconds

    def usual(self, phase: str) -> float | None:
        """Median seconds of a block of this phase, once there are a few."""
        return median(self.seconds[phase]) if len(self.seconds[phase]) >= 4 else None

    def rates(self) -> dict[str, float]:
        """Tasks a second of every worker while it works, over all phases."""
        known = sorted(self.workers.items())
        return {name: tasks / seconds for name, (tasks, seconds) in known if seconds > 0}

    def stragglers(self, phase: str) -> list[tuple[Any, float]]:
        """Blocks given out more than `SLOW` medians ago (and `LEAST` seconds): they wait, or
        their worker is slow.
        """
        usual = self.usual(phase)
        late = max(LEAST, SLOW * usual) if usual else math.inf
        return [(block, age) for block, age in self.waiting if age > late]

    def table(self) -> Any:
        """A rich table of the present state."""
        from rich.table import Table

        out = Table(title=self.line(), title_justify="left")
        for name in ("worker", "tasks", "tasks/s"):
            out.add_column(name, justify="left" if name == "worker" else "right")
        slowest = sorted(self.rates().items(), key=lambda item: item[1])
        for name, rate in slowest[:20]:
            out.add_row(name, f"{self.workers[name][0]:,.0f}", f"{rate:,.0f}")
        return out

    def line(self) -> str:
        """The present state in one line."""
        phases = "  ".join(f"{phase} {done}/{of}" for phase, (done, of) in self.blocks.items())
        found = (straggler for phase in self.blocks for straggler in self.stragglers(phase))
        late = [f"block {block} for {age:.0f} s" for block, age in found]
        size = f"{self.read / 1e6:,.0f} MB read, {self.written / 1e6:,.0f} MB written"
        parts = [phases, f"{len(self.workers)} workers", size]
        parts += [f"{self.reused} blocks reused"] if self.reused else []
        return " · ".join(parts + (["waiting for " + ", ".join(late[:3])] if late else []))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the record of a run."""
        return {
            "blocks": {phase: done for phase, (done, _) in self.blocks.items()},
            "blocks_reused": self.reused,
            "bytes": {"read": self.read, "written": self.written, "moved": self.moved},
            "seconds": {phase: round(s, 3) for phase, s in self.wall.items()},
            "work_seconds": {phase: round(sum(s), 3) for phase, s in self.seconds.items()},
            "cpu_seconds": {phase: round(s, 3) for phase, s in self.cpu.items()},
            "tasks_per_second": {name: round(rate, 1) for name, rate in self.rates().items()},
            "stragglers": [
                {"phase": p, "block": b, "seconds": round(s, 3), "worker": w}
                for p, b, s, w in self.slow
            ],
        }

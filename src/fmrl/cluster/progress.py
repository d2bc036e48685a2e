"""The progress view: tasks a second of every worker, blocks that take too long, and bytes, from
what each block reports.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SLOW, LEAST = (
    2.0,
    1.0,
)  # a block is a straggler when it takes so many times the median of its phase, and so many seconds


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
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )  # phase: one number a block
    workers: dict[str, list[float]] = field(
        default_factory=lambda: defaultdict(lambda: [0.0, 0.0])
    )  # tasks, seconds
    cpu: dict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # phase: seconds of processors
    waiting: list[tuple[Any, float]] = field(
        default_factory=list
    )  # blocks under way, and for how long
    slow: list[tuple[str, Any, float, str]] = field(
        default_factory=list
    )  # phase, block, seconds, worker
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
        self.wall[done.phase] = time.perf_counter() - self._began.get(
            done.phase, time.perf_counter()
        )
        self.tasks[done.phase] += done.tasks
        self.read, self.written = self.read + done.read, self.written + done.written
        if done.reused:
            self.reused += 1
            return
        usual = self.usual(done.phase)
        if usual and done.seconds > max(LEAST, SLOW * usual):
            self.slow.append(
                (done.phase, getattr(done.item, "number", done.item), done.seconds, done.worker)
            )
        self.seconds[done.phase].append(done.seconds)
        self.cpu[done.phase] += done.cpu
        mine = self.workers[done.worker]
        mine[0], mine[1] = mine[0] + done.tasks, mine[1] + done.seconds

    def usual(self, phase: str) -> float | None:
        """Median seconds of a block of this phase, once there are a few."""
        return median(self.seconds[phase]) if len(self.seconds[phase]) >= 4 else None

    def rates(self) -> dict[str, float]:
        """Tasks a second of every worker while it works, over all phases."""
        return {
            name: tasks / seconds
            for name, (tasks, seconds) in sorted(self.workers.items())
            if seconds > 0
        }

    def stragglers(self, phase: str) -> list[tuple[Any, float]]:
        """Blocks given out more than `SLOW` medians ago (and `LEAST` seconds): they wait, or
        their worker is slow.
        """
        usual = self.usual(phase)
        return [
            (block, age) for block, age in self.waiting if usual and age > max(LEAST, SLOW * usual)
        ]

    def table(self) -> Any:
        """A rich table of the present state."""
        from rich.table import Table

        out = Table(title=self.line(), title_justify="left")
        for name in ("worker", "tasks", "tasks/s"):
            out.add_column(name, justify="left" if name == "worker" else "right")
        rates = self.rates()
        for name, rate in sorted(rates.items(), key=lambda item: item[1])[
            :20
        ]:  # the slowest first: they are what matters
            out.add_row(name, f"{self.workers[name][0]:,.0f}", f"{rate:,.0f}")
        return out

    def line(self) -> str:
        """The present state in one line."""
        phases = "  ".join(f"{phase} {done}/{of}" for phase, (done, of) in self.blocks.items())
        late = [
            f"block {block} for {age:.0f} s"
            for phase in self.blocks
            for block, age in self.stragglers(phase)
        ]
        parts = [
            phases,
            f"{len(self.workers)} workers",
            f"{self.read / 1e6:,.0f} MB read, {self.written / 1e6:,.0f} MB written",
        ]
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

"""Maps: the same work on every block, in this process or on a Ray cluster. Ray does the rest: it
schedules, retries and moves.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fmrl.cluster.progress import Ledger
from fmrl.cluster.work import Done, Job, attend
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
            raise FMRLError(
                "the engine 'ray' needs Ray, which is not installed", fix='pip install "fmrl[ray]"'
            ) from None
        self.ray, self.ledger, self.view = ray, ledger or Ledger(), view
        self.started = not ray.is_initialized()
        if self.started:
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            try:
                _reach(address)
                ray.init(
                    address,
                    log_to_driver=False,
                    **({"include_dashboard": False} if address == "local" else {}),
                )
            except (ConnectionError, TimeoutError, socket.gaierror) as error:
                raise FMRLError(
                    f"there is no Ray cluster at {address!r} ({error})",
                    fix="start one: ray start --head",
                ) from None
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
        return {
            "nodes": len(nodes),
            "machines": len(self.hosts),
            "cpus": int(self.ray.cluster_resources().get("CPU", 0)),
        }

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
                    waiting[self.work.remote(function, job_ref, item, held, *rest)] = (
                        number,
                        item,
                        time.perf_counter(),
                    )
                if waiting and expected not in ready:
                    self._collect(waiting, ready)
                for number in (
                    sorted(ready) if not ordered else ([expected] if expected in ready else [])
                ):
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
                what = f"{_name(item)} failed: {str(error.cause or error).splitlines()[0]}"
                fix = "every machine must see the folders of table and run under the same path"
                raise FMRLError(what, fix=fix) from error
            except self.ray.exceptions.RayError as error:
                what = f"{_name(item)} was lost {RETRIES + 1} times ({type(error).__name__})"
                fix = (
                    "look at that machine's memory; run it again with resume: what is done is kept"
                )
                raise FMRLError(what, fix=fix) from error
            self.ledger.moved += _size(done.value)
            ready[number] = done
        now = time.perf_counter()
        self.ledger.waiting = [
            (getattr(item, "number", item), now - since) for _, item, since in waiting.values()
        ]
        if self.view is not None:
            self.view(self.ledger)


def _name(item: Any) -> str:
    return f"block {getattr(item, 'number', item)}"


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
    """Bytes of the arrays in nested tuples."""
    if isinstance(value, (tuple, list)):
        return sum(map(_size, value))
    return int(getattr(value, "nbytes", 8))

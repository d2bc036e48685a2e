"""The study: rounds until they are done or time is over, looks on the way, and what they say."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fmrl.core.checkpoint import load_state, save_state
from fmrl.errors import FMRLError
from fmrl.files import atomic
from fmrl.records import plain, record, write_json
from fmrl.reproduce.federated.claims import judge, rows
from fmrl.reproduce.federated.clients import Clients, Config
from fmrl.reproduce.study import usable, write

NAME, TITLE = "federated", "LEAF Shakespeare, next character"


class Study:
    """A run in a folder; the same folder goes on.

    Args:
        config: Its sizes.
        clients: The roles.
        out: The folder.
        device: "cuda" or "cpu".
    """

    def __init__(self, config: Config, clients: Clients, out: Path, device: str):
        usable(Path(out))
        self.config, self.clients, self.device = config, clients, device
        self.folder = Path(out) / NAME
        self.made_by = plain({"config": asdict(config), "sha256": clients.sha256})
        self.kept: dict[str, Any] = {"looks": [], "last": None, "round": 0, "seconds": 0.0}
        path = self.folder / "progress.json"
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            if held["made by"] != self.made_by:
                fix = "go on with the same, or choose another --out"
                raise FMRLError(f"{self.folder} holds a run of other sizes", fix=fix)
            self.kept = held["kept"]

    @property
    def finished(self) -> bool:
        """Whether the last look was taken."""
        return self.kept["last"] is not None

    def go(
        self, seconds: float | None = None, tick: Callable[[int], Any] = lambda rounds: None
    ) -> bool:
        """Go on; whether everything is finished.

        Args:
            seconds: Stop when they are over.
            tick: Called with the rounds just played.
        """
        if self.finished:
            return True
        from fmrl.reproduce.federated.rounds import Stack

        started, config = time.monotonic(), self.config
        stack = Stack(config, self.clients, self.device)
        self._restore(stack)
        before = self.kept["seconds"]
        tick(stack.done)
        while stack.done < config.rounds:
            stack.round()
            tick(1)
            late = seconds is not None and time.monotonic() - started > seconds
            due = stack.done % config.every == 0 or stack.done == config.rounds
            if due:
                self.kept["looks"].append(stack.look(config.looked, apart=False))
            if due or late:
                self.kept["seconds"] = before + time.monotonic() - started
                self._save(stack)
            if late:
                return False
        last = stack.look(config.tested, apart=True)
        names = last["after"]
        self.kept["last"] = {
            n: {"before": last["before"][n], "after": last["after"][n]} for n in names
        }
        self.kept["bytes"] = stack.bytes
        self.kept["parameters"] = stack.first.shape[1]
        self.kept["seconds"] = before + time.monotonic() - started
        self._note()
        return True

    def tell(self) -> dict[str, Any]:
        """Rows, verdicts, record and picture of a finished run, written beside each other."""
        with record(f"reproduce {NAME}", **asdict(self.config)) as entry:
            about = {"title": f"{TITLE}, {len(self.clients)} roles", "sha256": self.clients.sha256}
            facts = {n: self.kept[n] for n in ("parameters", "bytes")}
            entry |= {"data": about, "device": self.device} | facts
            made = plain(rows(self.kept))
            verdicts = judge(made)
        entry["seconds"] = round(self.kept["seconds"], 1)
        files = write(NAME, made, verdicts, entry, self.folder.parent)
        return {"record": entry, "verdicts": verdicts, "files": files, "rows": made}

    def _restore(self, stack: Any) -> None:
        number = self.kept["round"]
        if number:
            place = self.folder / f"after-{number:04d}"
            for i, name in enumerate(stack.states):
                stack.states[name] = load_state(place / f"{i}.npz", like=stack.first)
            stack.done = number

    def _save(self, stack: Any) -> None:
        """The states in a folder of their own first, then the note that names it."""
        old, place = self.kept["round"], self.folder / f"after-{stack.done:04d}"
        with atomic(place) as partial:
            partial.mkdir()
            for i, state in enumerate(stack.states.values()):
                save_state(state, partial / f"{i}.npz")
        self.kept["round"] = stack.done
        self._note()
        if old and old != stack.done:
            shutil.rmtree(self.folder / f"after-{old:04d}", ignore_errors=True)

    def _note(self) -> None:
        write_json(self.folder / "progress.json", {"made by": self.made_by, "kept": self.kept})

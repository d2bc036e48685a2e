"""The study: the sizes of a run, roles of Shakespeare's plays as clients, rounds until they are
done or time is over, looks on the way, and what they say.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.core.checkpoint import load_state, save_state
from fmrl.datasets.shakespeare import load_shakespeare
from fmrl.errors import FMRLError
from fmrl.files import atomic, read_json
from fmrl.records import checksum, plain, record, write_json
from fmrl.reproduce.federated.claims import judge, rows
from fmrl.reproduce.study import usable, write

NAME, TITLE = "federated", "LEAF Shakespeare, next character"
SHARE = 0.8  # of a role's characters to train on, the first; and of the roles, by a draw


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that decides nothing."""

    seed: int = 0
    seeds: int = 3
    rounds: int = 500
    clients: int = 10  # of a round
    batch: int = 10
    steps: int = 40  # mini-batches of a client's epoch, at most
    rate: float = 1.0  # the fixed step, and the first of the learned ones
    context: int = 80  # characters before the one that is predicted
    embedding: int = 8
    hidden: int = 256
    layers: int = 2
    tested: int = 60  # clients of the last look, of every seed
    looked: int = 10  # clients of the other looks
    every: int = 25  # rounds between looks
    held: int = 200  # samples that a client is scored on, at most

    def quick(self) -> Config:
        small = {"seeds": 2, "rounds": 6, "clients": 3, "batch": 5, "steps": 5, "context": 15}
        sizes = {"hidden": 24, "layers": 1, "tested": 8, "looked": 3, "every": 3, "held": 50}
        return replace(self, **small, **sizes)

    @property
    def shortest(self) -> int:
        """Characters a role must have to be a client."""
        return int(max((self.batch + self.context) / SHARE, 50 / (1 - SHARE))) + 1


@dataclass(frozen=True, repr=False)
class Clients:
    """Roles as clients: role r is ``text[offsets[r]:offsets[r + 1]]``."""

    text: np.ndarray  # codes of the characters, [N]
    offsets: np.ndarray  # [roles + 1]
    context: int  # characters before the one that is predicted
    sha256: str  # of text and offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Clients({len(self)} roles, {len(self.text):,} characters)"

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Roles that train and roles that are tested."""
        order = np.random.default_rng([seed, 1]).permutation(len(self))
        return np.split(order, [int(SHARE * len(self))])

    def samples(self, role: int, part: int) -> tuple[int, int]:
        """Where the contexts of a role's samples begin, from and to: part 0 to train, 1 to score.

        A held-out character may be predicted from characters of the training part before it.
        """
        start, stop = int(self.offsets[role]), int(self.offsets[role + 1])
        middle = start + int(SHARE * (stop - start))
        first = start if part == 0 else middle - self.context
        return first, (middle if part == 0 else stop) - self.context

    def draw(self, role: int, part: int, count: int, key: Sequence[int]) -> np.ndarray:
        """``count`` samples of a role in the order of a draw, each at most once."""
        first, stop = self.samples(role, part)
        return first + np.random.default_rng([*key, role]).permutation(stop - first)[:count]


def read(config: Config, data: Path | None = None) -> Clients:
    """The clients of a run, from the folder of local copies (default: ``FMRL_DATA``)."""
    roles = load_shakespeare(data=data).longer(config.shortest)
    if len(roles) < 5 * config.clients:
        raise FMRLError(f"{len(roles)} roles are too few clients", fix="make the rounds smaller")
    found = checksum(roles.text, roles.offsets)
    return Clients(roles.text, roles.offsets, config.context, found)


class Study:
    """A run in a folder; the same folder goes on."""

    def __init__(self, config: Config, clients: Clients, out: Path, device: str):
        usable(Path(out))
        self.config, self.clients, self.device = config, clients, device
        self.folder = Path(out) / NAME
        self.made_by = plain({"config": asdict(config), "sha256": clients.sha256})
        self.kept: dict[str, Any] = {"looks": [], "last": None, "round": 0, "seconds": 0.0}
        path = self.folder / "progress.json"
        if path.exists():
            held = read_json(path)
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
        """Go on until the ``seconds`` are over; whether everything is finished. ``tick`` is called
        with the rounds just played.
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
        both = ("before", "after")
        self.kept["last"] = {n: {k: last[k][n] for k in both} for n in last["after"]}
        self.kept |= {"bytes": stack.bytes, "parameters": stack.first.shape[1]}
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
            verdicts = list(judge(made))
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

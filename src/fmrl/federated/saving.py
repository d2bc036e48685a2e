"""The server's state on disk, after every round: a server that is killed goes on where it was."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fmrl.core.checkpoint import load_state, save_state
from fmrl.core.meta_level import State
from fmrl.errors import FMRLError
from fmrl.federated.server import Server
from fmrl.files import read_json, sweep
from fmrl.records import plain, write_json

KEPT = 2  # rounds on disk: the last one and the one before
ROUND = re.compile(r"round-(\d+)\.npz")


@dataclass(frozen=True)
class Rounds:
    """A folder with the state after the last rounds, ``round-000012.npz``, and ``run.json``, which
    says by what they were made.

    Args:
        folder: Where; it is made.
        server: Whose states they are.
        about: What else must be the same when a run goes on.
    """

    folder: Path
    server: Server
    about: dict[str, Any]

    def save(self, number: int, state: State) -> None:
        """Write the state after round ``number``; it is there whole or not at all."""
        if not self._numbers():  # else it was read, or written by this run
            write_json(self.folder / "run.json", self._made_by())
        save_state(state, self.folder / f"round-{number:06d}.npz")
        for old in sorted(self._numbers())[:-KEPT]:
            (self.folder / f"round-{old:06d}.npz").unlink(missing_ok=True)
        sweep(self.folder)

    def load(self) -> tuple[int, State] | None:
        """The last round that was saved and the state after it; None in a new folder.

        A state of another model or of other rules is refused.
        """
        numbers = self._numbers()
        if not numbers:
            return None
        try:
            found = read_json(self.folder / "run.json")
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise FMRLError(f"{self.folder} has no run.json", fix="use another folder")
        wanted = plain(self._made_by())
        for name, value in wanted.items():
            if found.get(name) != value:
                what = f"{self.folder} holds a run with other {name}: {found.get(name)}"
                raise FMRLError(what, fix="go on with the same, or use another folder")
        state = load_state(self.folder / f"round-{max(numbers):06d}.npz")
        self.server.algo.check(state)
        return max(numbers), state

    def _numbers(self) -> list[int]:
        found = (ROUND.fullmatch(path.name) for path in self.folder.glob("round-*.npz"))
        return [int(match[1]) for match in found if match]

    def _made_by(self) -> dict[str, Any]:
        return {"rules": repr(self.server.algo), "arrays": asdict(self.server.form)} | self.about

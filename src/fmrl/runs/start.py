"""The beginning of a run in a folder: what it is about, written down before its first task is
played, or found there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fmrl.errors import FMRLError
from fmrl.runs import folder
from fmrl.runs.options import Options
from fmrl.runs.run import Settings
from fmrl.runs.source import Source, files, open_source

Progress = Callable[[str, int, int | None], None]  # what is being done, how far it is, and of how much


def begin(options: Options, out: Path, scratch: Path, resume: bool, progress: Progress) -> tuple[Settings, Source]:
    """The settings of the run in this folder, or new ones, written there."""
    progress("reading the table", 0, None)
    data = [{"name": path.name, "sha256": folder.sha256(path)} for path in files(options.table, options.engine)]
    if (out / folder.SETTINGS).exists():
        if not resume:
            raise FMRLError(f"{out} holds a run already", fix="give --resume to go on with it, or another folder")
        found = Settings.read(out)
        same(found.options, options, out)
        if found.data != data:
            changed = next((d["name"] for d in data if d not in found.data), "a file of the table")
            raise FMRLError(f"{changed} is not what this run began with", fix="train anew in another folder")
        return found, open_source(options, found.encoder, found.loss, found.expected, scratch)
    if any(p.name not in (folder.LOCK, folder.SCRATCH) for p in out.iterdir()):
        raise FMRLError(f"{out} is not empty, and holds no run", fix="choose another folder")
    source = open_source(options, scratch=scratch)
    found = Settings(options, data, source.encoder, source.loss, source.expected)
    folder.write_sealed(out / folder.SETTINGS, found.to_dict())
    return found, source


def same(held: Options, given: Options, out: Path) -> None:
    """Refuse to go on with a run that was asked for in other words."""
    if differs := [name for name, value in held.to_dict().items() if given.to_dict()[name] != value]:
        what = f"the run in {out} was begun with another {differs[0]}"
        raise FMRLError(what, fix=f"go on with: {held.command(str(out), '--resume')}")

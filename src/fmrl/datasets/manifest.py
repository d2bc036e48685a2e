"""The manifest of a rebuilt Mini-Wiki: how many files each folder has and what they hash to, so
that an altered one is noticed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fmrl.errors import LayoutError

NAME = "Mini-Wiki (rebuilt)"
_FIX = "an altered copy is never used: build it again with `fmrl data build mini-wiki`"


def summarise(files: Iterable[tuple[str, int, bytes]]) -> dict[str, dict[str, Any]]:
    """Per folder ('bal/train/32', 'raw') the number of files and a hash of their numbers and
    contents, from (folder, id, bytes).

    >>> summarise([("raw", 1, b"b"), ("raw", 0, b"a")]) == summarise([("raw", 0, b"a"), ("raw", 1, b"b")])
    True
    """
    held: dict[str, list[tuple[int, str]]] = {}
    for folder, number, content in files:
        held.setdefault(folder, []).append((number, hashlib.sha256(content).hexdigest()))
    text = {f: "".join(f"{n} {h}\n" for n, h in sorted(rows)) for f, rows in held.items()}
    return {
        f: {"files": len(held[f]), "sha256": hashlib.sha256(text[f].encode()).hexdigest()}
        for f in sorted(held)
    }


def read_manifest(path: Path) -> Mapping[str, Any] | None:
    """The manifest that lies in a folder or beside it; None where there is none."""
    for file in (path / "manifest.json", path.parent / "manifest.json"):
        if file.is_file():
            try:
                held = json.loads(file.read_text(encoding="utf-8"))
            except (ValueError, OSError) as e:
                raise LayoutError(f"{file} cannot be read ({e})", fix=_FIX) from None
            return held if isinstance(held, dict) else {}
    return None


def check_manifest(
    manifest: Mapping[str, Any], files: Iterable[tuple[str, int, bytes]], shots: int | None
) -> None:
    """Raise LayoutError unless the m-shot (or raw) files are those the manifest was written for."""
    expected = manifest.get("folders")
    if not isinstance(expected, dict):
        return
    found = summarise(files)
    for folder, want in expected.items():
        if folder == "raw" if shots is None else folder.endswith(f"/{shots}"):
            got = found.get(folder, {"files": 0, "sha256": ""})
            if got["files"] != want["files"]:
                raise LayoutError(
                    f"{NAME} has {got['files']} files in {folder}, {want['files']} were built",
                    fix=_FIX,
                )
            if got["sha256"] != want["sha256"]:
                raise LayoutError(
                    f"{NAME} was altered: the files in {folder} are not those that were built",
                    fix=_FIX,
                )
    if extra := [f for f in found if f not in expected]:
        raise LayoutError(f"{NAME} was altered: {extra[0]} was not built", fix=_FIX)

"""Every test has its own cache, no test sees the machine's, and shared data is used only where
FMRL_DATA names it.
"""

import os
from pathlib import Path

import pytest

SHARED = os.environ.get("FMRL_DATA")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("FMRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FMRL_DATA", raising=False)


@pytest.fixture(scope="session")
def shared():
    """A function from a file's name to its path in the shared data folder; skips by name when it
    is not there.
    """

    def find(name: str) -> Path:
        if not SHARED or not (Path(SHARED) / name).exists():
            pytest.skip(f"{name} is not here: set FMRL_DATA to a folder that holds it")
        return Path(SHARED) / name

    return find


def left_behind(folder: Path) -> list[str]:
    """Files under a folder, hidden ones included: what a failure left."""
    return (
        sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        if folder.exists()
        else []
    )

"""The command line: ``fmrl demo | train | adapt | predict | report | certify | …``."""

from typing import Any

from fmrl_program import run as run  # the entry point, under the name it had before


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'fmrl.cli' has no attribute {name!r}")
    from fmrl.cli.main import app

    return app

"""The command line: ``fmrl demo | train | adapt | predict | report | certify | …``."""

import sys
from typing import Any


def run() -> None:
    """Entry point of the program ``fmrl``; Ctrl-C is one line, while it is still loading too."""
    try:
        from fmrl.cli.main import app

        app()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'fmrl.cli' has no attribute {name!r}")
    from fmrl.cli.main import app

    return app

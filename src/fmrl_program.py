"""Where the program ``fmrl`` begins: Ctrl-C ends it quietly, also while its modules still load.

It stands outside the package because importing anything of ``fmrl`` loads numpy first, and a
Ctrl-C meanwhile would print a traceback."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


def _end(number, frame) -> None:
    """No command runs that would need an orderly end."""
    os.write(2, b"stopped\n")
    os._exit(130)


def run() -> None:
    """Load the command line and do what was asked."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a script may ignore it
        signal.signal(signal.SIGINT, _end)
    from fmrl.cli.main import app

    app()


@contextmanager
def interruptible() -> Iterator[None]:
    """While a command runs, Ctrl-C is KeyboardInterrupt as elsewhere."""
    ours = signal.getsignal(signal.SIGINT) is _end
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _end)

"""What commands that read users' tables share: errors in the command line's own words, progress,
and a way to stop in order.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import polars as pl
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fmrl.errors import FMRLError

# The library names its arguments; on the command line they are options.
_QUANTITY = "give --kind regression for a quantity, or --kind classification"
_WORDS = (
    (r" or apart='split' if they are different tasks", " or give different tasks different names"),
    (r"pass loss=fmrl\.Squared\(\) for a quantity, or loss=fmrl\.\w+\(\w*\)", _QUANTITY),
    (r"policy=Policy\((\w+)='(\w+)'\)", r"--\1 \2"),
    (r"policy=Policy\((\w+)=\.\.\.\)", r"--\1"),
    (r"\b(kind|apart|engine)='(\w+)'", r"--\1 \2"),
    (r"\bskip_bad_tasks\b", "--skip-bad-tasks"),
    (r"\bmeta_batch\b", "--meta-batch"),
    (r"\bone_class='(\w+)'", r"--one-class \1"),
    (r"\border=", "--order"),
    (r"\((holdout)\)", r"(--\1)"),
    (r"name them in features", "name them with --features"),
    (r"leave it out of features", "name the others with --features"),
)


def in_options(text: str) -> str:
    """An error's text with the library's arguments as options of the command line.

    >>> in_options("column 'a' is empty; use policy=Policy(missing='mean'), or train on such rows")
    "column 'a' is empty; use --missing mean, or train on such rows"
    """
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


@contextmanager
def guarded() -> Iterator[None]:
    """Errors a user can act on are one line and exit code 2; a stop in order is one line and 130."""
    errors = Console(stderr=True)

    def end(text: str, code: int, head: str = "[bold red]error:[/] ") -> None:
        errors.print(head + escape(text), highlight=False, soft_wrap=True)
        raise typer.Exit(code) from None

    try:
        yield
    except FMRLError as error:
        code = getattr(error, "exit_code", 2)
        end(in_options(str(error)), code, **({} if code == 2 else {"head": ""}))
    except OSError as error:
        end(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), 2)
    except pl.exceptions.PanicException as error:
        end(f"the table cannot be read: {str(error).splitlines()[0]}; check the file", 2)
    except MemoryError:
        end(
            "there is not enough memory; use fewer --rows, fewer --levels, or a machine with more",
            2,
        )
    except KeyboardInterrupt:
        end("stopped", 130, "")


class _Rate(ProgressColumn):
    def render(self, task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


@contextmanager
def bar(unit: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar on stderr, with rate and time left; nothing where stderr is no terminal.
    Yields show(what, done, total).
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        _Rate(),
    )
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as shown:
        rows: dict[str, int] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in rows:
                for other in rows.values():
                    shown.update(other, visible=False)  # type: ignore[arg-type]
                rows[what] = shown.add_task(what, total=total)
            shown.update(rows[what], completed=done, total=total)  # type: ignore[arg-type]

        yield show


class Stop:
    """Ctrl-C (or SIGTERM) while tasks are played: asks to stop after this window; a second one, or
    at other times, stops at once.
    """

    def __init__(self):
        self.asked = self.waits = False

    def __call__(self) -> bool:
        return self.asked

    def _signal(self, number, frame) -> None:
        if self.asked or not self.waits:
            raise KeyboardInterrupt
        self.asked = True
        Console(stderr=True).print(
            "stopping after this window of tasks; press Ctrl-C again to stop at once"
        )

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Listen while the block runs; signals reach the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {
            number: signal.signal(number, self._signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

"""What all commands share: the one way from an error to an exit code, progress, a way to stop in
order, and the options that several commands have.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich import progress as widgets
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer.core import TyperGroup

from fmrl.errors import FMRLError
from fmrl_program import interruptible

RunFolder = Annotated[Path, typer.Argument(help="Folder that fmrl train made.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# The library names its arguments; on the command line they are options.
_QUANTITY = "give --kind regression for a quantity, or --kind classification"
_WORDS = (
    (r" or apart='split' if they are different tasks", " or give different tasks different names"),
    (r"pass loss=fmrl\.Squared\(\) for a quantity, or loss=fmrl\.\w+\(\w*\)", _QUANTITY),
    (r"policy=Policy\((\w+)='(\w+)'\)", r"--\1 \2"),
    (r"policy=Policy\((\w+)=\.\.\.\)", r"--\1"),
    (r"\b(kind|apart|engine)='(\w+)'", r"--\1 \2"),
    (r"\bloss='(\w+)'", r"--kind \1"),
    (r"\bskip_bad_tasks\b", "--skip-bad-tasks"),
    (r"\bmeta_batch\b", "--meta-batch"),
    (r"\bone_class='(\w+)'", r"--one-class \1"),
    (r"\border=", "--order"),
    (r"\((holdout)\)", r"(--\1)"),
    (r"name them in features", "name them with --features"),
    (r"give each by itself", "repeat the option for each, as in --features a --features b"),
    (r"leave it out of features", "leave it out with --ignore"),
)


def in_options(text: str) -> str:
    """An error's text with the library's arguments as options of the command line.

    >>> in_options("column 'a' is empty; use policy=Policy(missing='mean')")
    "column 'a' is empty; use --missing mean"
    """
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


@contextmanager
def guarded() -> Iterator[None]:
    """Errors a user can act on are one line and exit code 2; Ctrl-C is one line and 130.

    `Guarded` puts every command inside. A block inside another one is harmless.
    """
    head, code = "[bold red]error:[/] ", 2
    try:
        yield
        return
    except FMRLError as error:
        text, code = in_options(str(error)), getattr(error, "exit_code", 2)
    except BrokenPipeError:
        raise  # nobody reads on, as in fmrl … | head: typer ends quietly
    except OSError as error:
        text = f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
    except pl.exceptions.PanicException as error:
        text = f"the table cannot be read: {str(error).splitlines()[0]}; check the file"
    except MemoryError:
        text = "there is not enough memory; use fewer --rows, fewer --levels, or a larger machine"
    except KeyboardInterrupt:
        text, code = "stopped", 130
    shown = (head if code == 2 else "") + escape(text)
    Console(stderr=True).print(shown, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


class Guarded(TyperGroup):
    """A group of commands that all end as `guarded` says."""

    def invoke(self, ctx):
        """Run the command that was named."""
        with guarded(), interruptible(), warnings.catch_warnings():
            warnings.showwarning = _show
            return super().invoke(ctx)


def _show(message: Warning | str, *_: object) -> None:
    """A warning as one line."""
    said = f"[yellow]warning:[/] {escape(in_options(str(message)))}"
    Console(stderr=True).print(said, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one line as it is, without markup."""
    Console().print(escape(text), highlight=False, soft_wrap=True)


class _Rate(widgets.ProgressColumn):
    def render(self, task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


@contextmanager
def bar(unit: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar on stderr, with rate and time left; nothing where stderr is no terminal.
    Yields show(what, done, total).
    """
    what = (widgets.SpinnerColumn(), widgets.TextColumn("{task.description}"), widgets.BarColumn())
    far = (widgets.MofNCompleteColumn(), widgets.TextColumn(unit), _Rate())
    far = (widgets.DownloadColumn(),) if unit == "bytes" else far
    hidden = not sys.stderr.isatty()
    errors = Console(stderr=True, quiet=hidden)  # old versions end a hidden bar with an empty line
    given = {"console": errors, "transient": True, "disable": hidden}
    with widgets.Progress(*what, *far, widgets.TimeRemainingColumn(), **given) as shown:
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
        said = "stopping after this window of tasks; press Ctrl-C again to stop at once"
        Console(stderr=True).print(said)

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Listen while the block runs; signals reach the main thread only."""
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {number: signal.signal(number, self._signal) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

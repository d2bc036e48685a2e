"""What the commands of ``fmrl data`` print with: a console, one for errors, and errors that a user
can act on.
"""

from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from fmrl.errors import FMRLError

console, errors = Console(), Console(stderr=True)


@contextmanager
def plainly():
    """Errors a user can act on are one line and exit code 1, not a traceback."""
    try:
        yield
    except FMRLError as e:
        # Escaped: a name the user typed may look like markup.
        errors.print(f"[bold red]error:[/] {escape(str(e))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None

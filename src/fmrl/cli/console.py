"""What the commands of ``fmrl data`` print with."""

from rich.console import Console

from fmrl.cli.guard import guarded as plainly

__all__ = ["console", "errors", "plainly"]

console, errors = Console(), Console(stderr=True)

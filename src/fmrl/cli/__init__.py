"""The command line: ``fmrl demo | data | …``."""

from fmrl.cli.main import app

__all__ = ["app"]

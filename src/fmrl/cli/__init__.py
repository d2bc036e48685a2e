"""The command line: ``fmrl demo | train | adapt | predict | report | certify | …``."""

from fmrl.cli.main import app

__all__ = ["app"]

"""FMRL (say "ephemeral"): gradient-based meta-learning with guarantees."""

from fmrl.core.errors import FMRLError

__all__ = ["FMRLError"]
__version__ = "0.1.0"

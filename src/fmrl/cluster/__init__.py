"""Beyond one machine: tasks on a Ray cluster, with the same numbers as `fmrl.run` on one. Needs
the extra ``fmrl[ray]``.
"""

from fmrl.cluster.engine import Played, Ray, play
from fmrl.cluster.tables import Tables
from fmrl.cluster.workers import Ledger, watch

__all__ = ["Ledger", "Played", "Ray", "Tables", "play", "watch"]

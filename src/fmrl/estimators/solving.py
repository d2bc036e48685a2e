"""Names of `core.prior` that estimators use."""

from fmrl.core.prior.mixture import Posterior, asked, averaged, evidence, solved

__all__ = ["Posterior", "asked", "averaged", "evidence", "solved"]

"""Names of `core.prior` that estimators use."""

from fmrl.core.prior.mixture import Mixture as Population
from fmrl.core.prior.mixture import Posterior
from fmrl.core.prior.mixture_fit import Sums, around, estimate, families

__all__ = ["Population", "Posterior", "Sums", "around", "estimate", "families"]

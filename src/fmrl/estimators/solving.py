"""Earlier names of `core.prior`, until their callers use the new ones."""

from fmrl.core.prior.mixture import Posterior
from fmrl.core.prior.mixture import adapt_members as solved
from fmrl.core.prior.mixture import average_posteriors as averaged
from fmrl.core.prior.mixture import log_evidence as evidence
from fmrl.core.prior.mixture import predict_margins as asked

__all__ = ["Posterior", "asked", "averaged", "evidence", "solved"]

"""Earlier names of `core.prior`, until their callers use the new ones."""

from fmrl.core.prior.mixture import Mixture as Population
from fmrl.core.prior.mixture import Posterior
from fmrl.core.prior.mixture_fit import FamilySums as Sums
from fmrl.core.prior.mixture_fit import families
from fmrl.core.prior.mixture_fit import fit_family as estimate
from fmrl.core.prior.mixture_fit import fit_mixture as around

__all__ = ["Population", "Posterior", "Sums", "around", "estimate", "families"]

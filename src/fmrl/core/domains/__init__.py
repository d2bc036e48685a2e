"""Domains: an action set with its Bregman regulariser. Ball, Box, Euclidean and Simplex."""

from fmrl.core.domains.base import Domain
from fmrl.core.domains.euclidean import Ball, Box, Euclidean
from fmrl.core.domains.simplex import Simplex

__all__ = ["Ball", "Box", "Domain", "Euclidean", "Simplex"]

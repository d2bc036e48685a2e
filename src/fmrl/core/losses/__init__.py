"""Losses of linear models: convex functions of the margins z = ⟨θ_c, x⟩, one margin per output."""

from fmrl.core.losses.base import Binary, Loss
from fmrl.core.losses.basic import Hinge, Linear, Squared, Weighted, weigh
from fmrl.core.losses.logistic import Logistic, OneVsAll, Softmax

__all__ = [
    "Binary", "Hinge", "Linear", "Logistic", "Loss", "OneVsAll", "Softmax", "Squared", "Weighted",
    "weigh",
]  # fmt: skip

"""Minimising summed losses over a domain, with a duality gap that proves the answer.

`minimise` decides which method runs; `closed form`, `majorise`, `interior` and `least_norm` are the
methods, and `gap` is the proof they share.
"""

from fmrl.core.solve.minimise import Leaders, Solution, minimise

__all__ = ["Leaders", "Solution", "minimise"]

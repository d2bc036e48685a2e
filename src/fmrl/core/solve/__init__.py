"""Minimising summed losses over a domain, with a duality gap that proves the answer.

`minimise` is the one entry and decides which method runs: a closed form (there), `majorise`
or `interior`. `gap` is the proof they share.
"""

from fmrl.core.solve.minimise import Leaders, Solution, minimise

__all__ = ["Leaders", "Solution", "minimise"]

"""Minimising summed losses over a domain, with a duality gap that proves the answer.

`minimise` is the one entry and decides which method runs: a closed form (there), `majorise` or
`interior`. `gap` is the proof they share. `newton` is FTRL in a metric.
"""

from fmrl.core.solve.minimise import Leaders, Solution, minimise
from fmrl.core.solve.newton import MetricLeaders

__all__ = ["Leaders", "MetricLeaders", "Solution", "minimise"]

"""From the encoder's units to the user's: coefficients that multiply the numbers as they stand in
the table.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fmrl.tables.encoder import Encoder


def unscaled(encoder: Encoder) -> Encoder:
    """The same columns, numbers left as they are in the table."""
    return Encoder(tuple(replace(c, centre=0.0, spread=1.0) for c in encoder.columns), encoder.policy)


def in_user_units(encoder: Encoder, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Models [..., outputs, f] and [..., outputs] of encoded rows as models of the rows of
    `unscaled`.

    >>> from fmrl.tables.encoder import Column
    >>> encoder = Encoder((Column("age", centre=40.0, spread=10.0),))
    >>> in_user_units(encoder, np.array([[2.0]]), np.array([1.0]))
    (array([[0.2]]), array([-7.]))
    """
    centre, spread = [], []
    for c in encoder.columns:
        own = 1 if c.levels is None else len(c.levels)
        centre += [c.centre] * own + [0.0] * c.indicator
        spread += [c.spread] * own + [1.0] * c.indicator
    # Levels and flags are noughts and ones; only numbers are scaled.
    coef = coef / np.array(spread)
    return coef, intercept - coef @ np.array(centre)

"""What server and clients share: the composition, and the data of a client."""

import numpy as np

import fmrl

FEATURES = 8
ALGO = fmrl.FMRL(
    fmrl.Ball(5.0), fmrl.OMD(), fmrl.FLIOnline(), fmrl.FollowLeader(), fmrl.PerCoordinate(0.2)
)


def rows(client: int, count: int, part: int) -> fmrl.Task:
    """``count`` rows of a client: part 0 to adapt to, part 1 to be scored on."""
    centre = np.linspace(-1, 1, FEATURES)
    own = centre + 0.3 * np.random.default_rng([client, 2]).normal(size=FEATURES)
    rng = np.random.default_rng([client, part])
    X = rng.normal(size=(count, FEATURES)) / FEATURES**0.5
    return fmrl.Task(X, X @ own + 0.1 * rng.normal(size=count), loss=fmrl.Squared())

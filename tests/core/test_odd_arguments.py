"""Whatever is given for an argument: it works, or one exception says what is wrong."""

import functools
import math

import numpy as np
import pytest

import fmrl
from fmrl.core.losses import Weighted

ODD = [
    None, "a", "1", b"x", -1, 0, 2.5, True, math.nan, math.inf, 1e308, 1j, [], (), {}, [1, 2],
    [None], [[1], [1, 2]], np.ones(2), np.ones((2, 2)), np.array(["a"]), object(), fmrl.OMD,
]  # fmt: skip
TASK = fmrl.Task([[1.0, 0.5], [0.2, -1.0]], [0.5, 1.0], loss=fmrl.Squared())
ALGO, BALL, PHI = fmrl.FMRL(), fmrl.Ball(1.0), np.zeros(2)
BOTH, PAIR = [fmrl.FMRL(), fmrl.FMRL()], [fmrl.FollowLeader(), fmrl.Fixed()]
HOLE = object()  # where the odd value goes
CALLS = {
    fmrl.Ball: [(HOLE,), (1.0, HOLE)],
    fmrl.Box: [(HOLE, 1.0), (-1.0, HOLE)],
    fmrl.Simplex: [(HOLE,)],
    fmrl.OneVsAll: [(HOLE,)],
    fmrl.Softmax: [(HOLE,)],
    fmrl.Logistic: [(HOLE,)],
    fmrl.Hinge: [(HOLE,)],
    Weighted: [(HOLE,), (fmrl.Logistic(), HOLE)],
    fmrl.Doubling: [(HOLE, 1.1), (0.1, HOLE), (0.1, 1.1, HOLE)],
    fmrl.ReleasedDoubling: [(HOLE, 1.1), (0.1, HOLE)],
    fmrl.Known: [(HOLE,)],
    fmrl.AverageDeviation: [(HOLE,), (1.0, HOLE)],
    fmrl.EWOO: [(HOLE,), (0.1, HOLE), (0.1, 1.0, HOLE)],
    fmrl.Isotropic: [(HOLE,), (0.1, HOLE), (0.1, 1.0, HOLE)],
    fmrl.LowRank: [(HOLE, 0.1), (1, HOLE)],
    fmrl.KnownStep: [(HOLE,)],
    fmrl.Covariance: [(HOLE,), (1.0, HOLE), (1.0, None, HOLE)],
    fmrl.Observed: [(HOLE,), (fmrl.Known(1.0), HOLE)],
    fmrl.MetaSGD: [(HOLE,), (0.1, HOLE), (0.1, 0.1, HOLE)],
    fmrl.Interpolate: [(HOLE, 1.0, 3), (1.0, HOLE, 3), (1.0, 0.5, HOLE)],
    fmrl.Fixed: [(HOLE,)],
    fmrl.Discounted: [(HOLE,)],
    fmrl.Window: [(HOLE,)],
    fmrl.Restart: [(HOLE,)],
    fmrl.Mixture: [(HOLE,), (PAIR, HOLE), (PAIR, 0.0, HOLE)],
    fmrl.Conditional: [(HOLE,), ([0], HOLE)],
    fmrl.Tree: [(HOLE, 1e-5, 5), (1.0, HOLE, 5), (1.0, 1e-5, HOLE), (1.0, 1e-5, 5, HOLE)],
    fmrl.NoisyGradients: [(HOLE, 1.0, 1e-5, 1.0), (fmrl.OMD(), 1.0, 1e-5, HOLE)],
    fmrl.Hedge: [(HOLE,), (BOTH, HOLE)],
    fmrl.Centres: [(HOLE, ALGO), (2, HOLE)],
    fmrl.FMRL: [
        (HOLE,), (BALL, HOLE), (BALL, fmrl.OMD(), HOLE), (BALL, fmrl.OMD(), fmrl.FAL(), HOLE),
        (BALL, fmrl.OMD(), fmrl.FAL(), fmrl.Fixed(), HOLE),
        (BALL, fmrl.OMD(), fmrl.FAL(), fmrl.Fixed(), fmrl.Known(1.0), HOLE),
    ],
    ALGO.init: [(HOLE,)],
    fmrl.Hedge(BOTH).init: [(HOLE,)],
    ALGO.step: [(HOLE, TASK), (ALGO.init(PHI), HOLE)],
    ALGO.adapt: [(HOLE, TASK), (ALGO.init(PHI), HOLE)],
    ALGO.check: [(HOLE,)],
    fmrl.Hedge(BOTH).step: [(HOLE, TASK), (fmrl.Hedge(BOTH).init(PHI), HOLE)],
    fmrl.run: [(HOLE, [TASK]), (ALGO, HOLE), (ALGO, [HOLE]), (ALGO, [TASK], HOLE)],
    fmrl.minimise: [(HOLE, BALL), (TASK, HOLE), (TASK, BALL, HOLE, 0.1), (TASK, BALL, PHI, HOLE)],
    fmrl.play: [
        (HOLE, TASK, BALL, PHI, 0.1), (fmrl.OMD(), HOLE, BALL, PHI, 0.1),
        (fmrl.OMD(), TASK, HOLE, PHI, 0.1), (fmrl.OMD(), TASK, BALL, HOLE, 0.1),
        (fmrl.OMD(), TASK, BALL, PHI, HOLE),
    ],
    fmrl.parse: [(HOLE,)],
    fmrl.stack: [(HOLE,), ([HOLE],)],
    fmrl.prior: [(HOLE,), (ALGO.init(PHI), HOLE)],
    fmrl.presets.paper: [(HOLE,), ("omd", HOLE)],
    fmrl.presets.omniscient: [(HOLE, 1.0), ([0.0], HOLE)],
    fmrl.save_state: [(HOLE, "/nowhere/state")],
}  # fmt: skip
NAMED = {
    fmrl.Task: [
        {"X": HOLE, "y": [1.0], "loss": fmrl.Squared()}, {"X": [[1.0]], "y": [1.0], "loss": HOLE},
        *({"X": [[1.0]], "y": HOLE, "loss": loss}
          for loss in (fmrl.Squared(), fmrl.Logistic(), fmrl.Softmax(3), fmrl.Linear())),
    ],
    functools.partial(fmrl.run, ALGO, [TASK]): [
        {name: HOLE} for name in ("state", "orders", "meta_batch", "engine", "keep")
    ],
    functools.partial(fmrl.presets.paper): [{"domain": HOLE}, {"epsilon": HOLE}],
}  # fmt: skip


def filled(given, value):
    """The arguments with the odd value in their hole."""
    if isinstance(given, dict):
        return {name: filled(a, value) for name, a in given.items()}
    if type(given) in (tuple, list):
        return type(given)(filled(a, value) for a in given)
    return value if given is HOLE else given


@pytest.mark.parametrize("value", ODD, ids=lambda v: repr(v)[:20])
@pytest.mark.filterwarnings("ignore")
def test_an_odd_argument_works_or_is_refused_in_words(value):
    refused = 0
    for table in (CALLS, NAMED):
        for call, several in table.items():
            for given in several:
                own = filled(given, value)
                try:
                    with np.errstate(all="ignore"):
                        call(**own) if isinstance(own, dict) else call(*own)
                except fmrl.FMRLError as error:
                    refused += 1
                    assert len(str(error)) > 10
    assert refused > 10

"""The statistical reading of a learned metric: tasks are draws from a Gaussian, and what a task's
rows say is weighed against it.

FTRL in the metric H from phi is the maximum a posteriori estimate under N(phi, H) with the losses
as −log-likelihoods; with squared losses of noise s² it is the BLUP of the mixed-effects model
y = Xθ + e, θ ~ N(phi, s²·H). `prior` reads that Gaussian from a state. `estimate_prior` finds one
by marginal likelihood: the scatter of the tasks' optima is the spread of tasks plus the noise of
each task, and only the first is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fmrl.core.arrays import Array, device, full, namespace, zeros
from fmrl.core.checks import positive
from fmrl.core.meta_level import State
from fmrl.core.metric import Full, Metric, T
from fmrl.core.prior.padding import Rows
from fmrl.core.prior.posterior import BatchedPosterior, Members, joint_rows, root_of
from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, covariance) over what tasks' parameters are, or over one task's.

    Args:
        mean: [d].
        covariance: [d, d].
        noise: s² of squared losses; 1 where losses are log-likelihoods as they are.
        tasks: How many tasks it was learned from.
        information: How well the mean is known [d, d].
    """

    mean: Array
    covariance: Array
    noise: float = 1.0
    tasks: int = 0
    information: Array | None = None

    def __repr__(self) -> str:
        spread = math.sqrt(float(namespace(self.mean).linalg.trace(self.covariance)))
        size = f"{self.mean.shape[-1]} parameters"
        return f"Gaussian({size}, spread {spread:.4g}, {self.tasks} tasks)"

    @property
    def metric(self) -> Full:
        """H, in which FTRL from the mean is MAP: the covariance over the noise."""
        return Full(self.covariance / self.noise)

    @property
    def std(self) -> Array:
        """Standard deviations, [d]."""
        xp = namespace(self.mean)
        return xp.sqrt(xp.linalg.diagonal(self.covariance))

    def adapt(self, task: Any) -> Gaussian:
        """What is known of a task after its rows: the posterior, exact for squared losses and
        Laplace's approximation for others.

        Args:
            task: A Task.

        >>> import numpy as np, fmrl
        >>> prior = Gaussian(np.zeros(1), np.eye(1))
        >>> after = prior.adapt(fmrl.Task([[1.0]], [1.0], loss=fmrl.Squared()))
        >>> after.mean, after.covariance
        (array([0.5]), array([[0.5]]))
        """
        game = task.open()
        if game.dim != self.mean.shape[-1]:
            what = f"the task has {game.dim} parameters, and the prior {self.mean.shape[-1]}"
            raise FMRLError(what)
        if game.loss.bend == math.inf:
            fix = "use Logistic(), or OMD() with a rule such as PerCoordinate"
            what = f"a posterior needs a smooth loss, and {game.loss!r} has corners"
            raise FMRLError(what, fix=fix)
        rows = Rows(game.X[None], game.target[None], game.weight[None])
        loss, rows = joint_rows(game.loss, rows)
        found = BatchedPosterior(members_of([self]), rows, loss, refine=0, close=1e-6)
        spread = found.spread()[0, 0, 0, ...]
        return replace(self, mean=found.theta()[0, 0, 0, ...], covariance=(spread + T(spread)) / 2)


def members_of(gaussians: Sequence[Gaussian], outputs: int = 1) -> Members:
    """Gaussians [P·K] side by side for a `BatchedPosterior`.

    Args:
        gaussians: Those of the K outputs of a member share covariance and noise.
        outputs: K.
    """
    xp, first = namespace(gaussians[0].mean), gaussians[::outputs]
    mean = xp.stack([g.mean for g in gaussians])
    mean = xp.reshape(mean, (len(first), outputs, mean.shape[-1]))
    roots = [root_of(g) for g in first]
    most = max(1, *(R.shape[1] for R in roots))
    R = [xp.concat([R, zeros((R.shape[0], most - R.shape[1]), R)], axis=1) for R in roots]
    noise = [full((), g.noise, g.mean) for g in first]
    H = xp.stack([g.covariance / g.noise for g in first])
    return Members(mean, H, xp.stack(R), xp.stack(noise))


def prior(state: Any, sigma: float = 1.0) -> Gaussian:
    """The Gaussian that a state or a history stands for: FTRL from it is MAP under N(phi, H).

    Only `Covariance` learns an H that is the covariance of tasks over the noise; the H of other
    rules is a step, and its deviations say nothing about how sure a coefficient is. A history of
    `Covariance` knows the noise too, so its Gaussian is in the units of the parameters.

    Args:
        state: A State or a History of one run.
        sigma: G·√m of the task, where the guess is a D_t: eta = D_t/sigma.

    >>> import numpy as np, fmrl
    >>> state = fmrl.FMRL(similarity=fmrl.PerCoordinate(0.5)).init(np.zeros(2))
    >>> prior(state).covariance
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    rule: Any = getattr(getattr(state, "algo", None), "similarity", None)
    state = getattr(state, "state", state)
    if not isinstance(state, State):
        fix = "give history, history.state, or estimator.history_"
        raise FMRLError(f"a State or a History is needed, not a {type(state).__name__}", fix=fix)
    phi, guess = state.phi, state.guess
    if phi.ndim != 1:
        raise FMRLError("this state holds several runs", fix="run one order")
    xp = namespace(phi)
    noise = float(rule.noise_of(state.similarity)) if hasattr(rule, "noise_of") else 1.0
    if isinstance(guess, Metric):
        return Gaussian(phi, noise * guess.dense(), noise, state.tasks)
    positive(sigma=sigma)
    eye = xp.eye(phi.shape[-1], dtype=phi.dtype, device=device(phi))
    step = guess if getattr(rule, "absolute", False) else guess / sigma
    return Gaussian(phi, step * eye, tasks=state.tasks)

"""What privacy costs in regret: the noisy mean of `Tree`, and the noisy gradients of
`NoisyGradients`. docs/theory.md has the derivations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.theory.bounds.basic_theorems import per_task
from fmrl.theory.bounds.bound import (
    Assumption,
    Bound,
    at_least,
    nonnegative,
    numbers,
    positive_if_given,
)

OBLIVIOUS = Assumption("tasks do not depend on the noise")
UNCLIPPED = Assumption("no update vector was clipped")
PLACE = "private means, docs/theory.md"


def noise_price(
    tasks: int, dim: int, scale: float, *, most: float = math.inf, failure: float | None = None,
    moves: Any = None, adaptive: bool = False,
) -> float:  # fmt: skip
    """What the noise of `Tree` adds to Σ_t B(θ_t‖phi_t) at most; R = ½‖·‖².

        in expectation:   Σ_{t<T} min( d·s²·b(t)/(2t²), M )  ≤  1.0423·d·s²
        otherwise:        k·M + q·c_k/2 + s·‖a_k‖·√(2x),   q = s²·( d + 2√(d·x) + 2x ), the best k
        adaptive:         k·M + q·c_k/2 + min( √(q·c_k·g_k), √(q·c'_k·g'_k) )

    where b(t) counts the ones in the binary form of t, s is the standard deviation of a node, M the
    largest B there can be, c_k = Σ_{k<t<T} b(t)/t², x = log(2/failure), and a_k is made of the
    moves θ_{t+1} − mean of the first t, for t > k: a node's part is Σ move_t/t over the t that use
    it. The first line does not grow with T: Σ b(t)/t² = 2.0845 over all t. In the third line moves
    may depend on the noise (FLI): g_k = Σ_{k<t} ‖move_t‖², g'_k = Σ_{k<t} ‖move_t‖²/t, c'_k =
    Σ_{k<t} b(t)/t, and x = log(2K/failure) for the K values of k that are tried.

    Args:
        tasks: T.
        dim: d.
        scale: s.
        most: M, the square of the domain's diameter in √divergence.
        failure: The probability with which the second line may fail; None for the first line.
        moves: θ_{t+1} − mean of the first t vectors, [T − 1, d]; needed with ``failure``.
        adaptive: Whether the moves may depend on the noise; needs ``failure``.

    >>> [round(noise_price(T, 10, 0.1), 4) for T in (2, 10, 1000, 10**6)]
    [0.05, 0.0886, 0.1039, 0.1042]
    """
    at_least(1, tasks=tasks, dim=dim)
    at_least(0, scale=scale)
    t = np.arange(1, tasks, dtype=np.int64)
    ones = np.bitwise_count(t).astype(float)
    if failure is None:
        return float(np.minimum(dim * scale**2 * ones / (2 * t**2), most).sum())
    positive_if_given(failure=failure)
    tried = [0, *(2**i for i in range((tasks - 1).bit_length()))] if math.isfinite(most) else [0]
    x = math.log(2 * (len(tried) if adaptive else 1) / failure)
    moves, found = numbers(moves).reshape(t.size, dim), math.inf
    q, far = scale**2 * (dim + 2 * math.sqrt(dim * x) + 2 * x), np.sum(moves**2, axis=1)
    for k in tried:
        late = t > k
        c = float((ones / t**2)[late].sum())
        if adaptive:
            slow = float((ones / t)[late].sum()) * float((far / t)[late].sum())
            linear = math.sqrt(q * min(c * float(far[late].sum()), slow))
        else:
            each = np.where(late[:, None], moves / t[:, None], 0.0)
            linear = scale * _used(each) * math.sqrt(2 * x)
        found = min(found, (k * most if k else 0.0) + q * c / 2 + linear)
    return found


def _used(each: np.ndarray) -> float:
    """The norm of what every node is multiplied with: the sums of ``each`` over the t that use it.

    Level l has a node for every odd multiple e of 2^l, which is used by t = e, …, e + 2^l − 1.
    """
    sums = np.concatenate([np.zeros((2, each.shape[1])), np.cumsum(each, axis=0)])
    T, width, square = len(each) + 1, 1, 0.0
    while width < T:
        first = np.arange(width, T, 2 * width)
        part = sums[np.minimum(first + width, T)] - sums[first]
        square, width = square + float(np.sum(part**2)), 2 * width
    return math.sqrt(square)


def private(
    theta: Any, scale: float, *, first: float, sigma: Any = 1.0, most: float = math.inf,
    failure: float | None = None, optimum: Any = None,
) -> Bound:  # fmt: skip
    """Σ sigma_t·B(θ*_t‖phi_t) of FAL with `Tree`, against the mean of all optima; R = ½‖·‖².

        max sigma·( B(θ_1‖phi_1) + Σ B(θ_t‖mean) + Σ_{t≥2} B(θ_t‖mean of those before)/t + price )

    with the price of `noise_price`, in expectation over the noise or with probability 1 − failure.
    Tasks weigh alike in a private mean, so that max sigma stands where Σ sigma could.
    `with_guess` turns this into a bound on TAR, in which the price is max sigma·price/(D·T).

    With ``optimum`` the vectors need not be the optima, may be clipped and may depend on the noise
    (FLI). With A the bracket, of these vectors and with the adaptive price, and E = Σ B(θ*_t‖θ_t):

        max sigma·( √A + √E )²

    Args:
        theta: Update vectors, [T, d], as they went into the mean.
        scale: The standard deviation of a node.
        first: B(θ_1‖phi_1), of the first update vector.
        sigma: Weights G_t·√m_t, a number or [T].
        most: The largest B there can be.
        failure: See `noise_price`.
        optimum: The optima θ*, [T, d], where ``theta`` is something else; needs ``failure``.

    >>> private([[0.0], [1.0]], 0.1, first=0.0)
    Bound(private mean = 0.505: first task 0 + comparator 0.25 + moving 0.25 + privacy 0.005)
    """
    theta = numbers(theta)
    count = np.arange(1, len(theta) + 1)[:, None]
    means = np.cumsum(theta, axis=0) / count
    moves = theta[1:] - means[:-1]
    heaviest = float(nonnegative(sigma, "sigma").max())
    if optimum is not None and failure is None:
        raise FMRLError("vectors that depend on the noise have no expected price", fix="failure=")
    given = {"most": most, "failure": failure, "moves": moves, "adaptive": optimum is not None}
    price = noise_price(*theta.shape, scale, **given)
    terms = {
        "first task": heaviest * first,
        "comparator": heaviest * float(np.sum((theta - means[-1]) ** 2)) / 2,
        "moving": heaviest * float(np.sum(moves**2 / count[1:])) / 2,
        "privacy": heaviest * price,
    }
    sure = "In expectation over the noise."
    if failure is not None:
        sure = f"With probability {1 - failure:.4g} over the noise."
    if optimum is None:
        return Bound("private mean", terms, (OBLIVIOUS, UNCLIPPED), PLACE, sure)
    apart = heaviest * float(np.sum((numbers(optimum) - theta) ** 2)) / 2
    noisy, plain = sum(terms.values()), sum(terms.values()) - terms["privacy"]
    terms["privacy"] += 2 * (math.sqrt(noisy * apart) - math.sqrt(plain * apart))
    terms["optima not exact"] = apart + 2 * math.sqrt(plain * apart)
    sure += " It is about the update vectors of this run, which the noise has moved too."
    return Bound("private mean", terms, (), PLACE, sure)


def noisy(
    divergence: Any, eta: Any, lipschitz: Any, rounds: Any, *, dim: int, scale: float
) -> Bound:
    """Expected regret inside a task of `NoisyGradients`, or its mean over tasks:
    B_R(θ*‖phi)/eta + eta·(G² + d·s²)·m, where no gradient is clipped.

    Args:
        divergence: B_R(θ*‖phi), a number or one a task.
        eta: The step.
        lipschitz: G.
        rounds: m.
        dim: d.
        scale: s, the standard deviation of the noise.

    >>> noisy(0.5, 0.1, 1.0, 10, dim=3, scale=1.0).total
    9.0
    """
    steep = np.sqrt(numbers(lipschitz) ** 2 + dim * scale**2)
    found = per_task(divergence, eta, steep, rounds)
    given = (*found.assumptions, OBLIVIOUS, Assumption("no gradient was clipped"))
    note = "In expectation over the noise."
    return replace(found, name="noisy gradients", assumptions=given, place=PLACE, note=note)

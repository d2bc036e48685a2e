"""A primal–dual interior-point method: the robust solver, for any convex loss (corners included) on
any domain; and with it, of many minimisers, the one of least divergence (`shortest`).

The domain is h(θ) ≥ 0 (and ⟨1, θ⟩ = 1 on the simplex). With multipliers w, Newton's method follows
the central path

    ∇f(θ) = Σ wⱼ∇hⱼ(θ),    wⱼhⱼ(θ) = mu,    mu → 0,

where each step solves one symmetric system per class (one for all classes when the loss couples
them) plus a rank-one border. How the loss enters is in `interior_losses`. The answer is the action
of the path whose gap is least; the gap is proved by the slopes at theta or by those that the Newton
step predicts, which balance the constraints better than rounding lets theta do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fmrl.core.arrays import Array, device, dot, full, namespace, zeros
from fmrl.core.domains import Euclidean
from fmrl.core.matrices import definite_solve
from fmrl.core.samples import Samples
from fmrl.core.solve.gap import ABSOLUTE, RELATIVE, Found, Method, Objective
from fmrl.core.solve.interior_losses import Corner, Smooth, room

LIMIT = 400  # steps; most problems take 20, margins in the thousands up to 100
SHRINK = 0.15  # of mu in a step; less does not save steps, more loses the path
GENTLY = 0.3  # the same for a loss with corners: many may lie in one place, and are lost from sight
COOL = 0.5  # of the heat in a step
WEIGHT = 1e-8  # ρ, of F over B_R, for `shortest`: its square is below rounding
NEAR = 5.0  # times mu·count: the gap of a point near enough to the path to lower mu

Solve = Callable[..., list[Array]]


def interior(problem: Objective) -> Found:
    """Minimise until the gap keeps the promise, and on until rounding ends the descent."""
    path = _Path(problem)
    xp, best = path.xp, path.theta
    value = gap = least = full(best.shape[:1], math.inf, best)
    slopes = xp.zeros_like(problem.samples.margins(best))
    stalled, low, finished = xp.zeros_like(value), xp.zeros_like(value), value < 0
    spare = ABSOLUTE * problem.start(best)
    for _ in range(LIMIT):
        new_value, new_gap, new_slopes = path.certificate()
        # Below rounding gaps say nothing, and the later action is the better one.
        better = (new_gap < xp.maximum(gap, path.floor)) | (new_value < value) & (gap == math.inf)
        better = better & ~finished  # a finished problem of the stack keeps its answer
        waited = xp.where(path.hot, full((), 0.5, stalled), xp.ones_like(stalled))
        progress = (new_gap < 0.9 * least) | path.cooled
        stalled = xp.where(progress, xp.zeros_like(stalled), stalled + waited)
        least = xp.minimum(least, new_gap)
        best = xp.where(better[..., None], path.theta, best)
        slopes = xp.where(better[..., None, None], new_slopes, slopes)
        value, gap = xp.where(better, new_value, value), xp.where(better, new_gap, gap)
        # Past the promise there is more to gain (theta is only as exact as √gap), until rounding
        # stops the descent, and then by one step more.
        proved = problem.least(value, gap)
        low = xp.where(proved <= path.floor, low + 1, xp.zeros_like(low))
        enough = (proved <= RELATIVE * xp.abs(value)) & ((stalled >= 3) | (low >= 2))
        finished = finished | enough | (proved <= spare) & (stalled >= 6) | (stalled >= 15)
        if bool(xp.all(finished)):
            break
        path.advance()
    return Found(best, value, problem.least(value, gap), slopes, Method.INTERIOR.everywhere(gap))


class _Path:
    """theta [B, d] with its multipliers w [B, k], and mu [B]."""

    def __init__(self, problem: Objective):
        samples, smooth = problem.samples, problem.samples.loss.bend < math.inf
        xp = self.xp = namespace(samples.X)
        if problem.phi is not None:
            problem = problem._replace(domain=problem.domain.face(problem.phi))
        self.theta = problem.domain.middle(zeros((samples.X.shape[0], samples.dim), samples.X))
        slack = problem.domain.slack(self.theta)
        if problem.phi is not None and not slack.shape[-1]:
            self.theta = problem.phi
        z = samples.margins(self.theta)
        self.problem, self.smooth = problem, smooth
        self.share = xp.ones_like(z[..., 0, 0]) if problem.eta is None else problem.eta
        self.eta = xp.where(self.share > 0, self.share, xp.ones_like(self.share))
        self.gap = xp.abs(problem.value(self.theta, z)) + 1e-3
        if smooth:
            self.loss = Smooth.begin(problem)
            self.gap = xp.maximum(self.gap, self.eta * self.loss.merit(None, z))
        else:
            self.loss = Corner.begin(problem, z)
        self.floor, self.length = xp.zeros_like(self.gap), xp.ones_like(self.gap)
        self.mu = self.gap / max(slack.shape[-1], 1)
        self.w = self.mu[..., None] / slack
        self.predicted: Array | None = None  # the slopes that the last step leads to
        self.cooled = self.hot  # whether the last step lowered the heat

    @property
    def hot(self) -> Array:
        """Whether the losses are not yet the problem's own, [B]."""
        return self.loss.heat > 1 if isinstance(self.loss, Smooth) else self.mu < 0

    def certificate(self) -> tuple[Array, Array, Array]:
        """Value and gap (infinite while hot) [B] of theta, and the slopes that prove the gap."""
        xp, problem, theta = self.xp, self.problem, self.theta
        z = problem.samples.margins(theta)
        u = self.loss.slope(z)
        value, self.gap = problem.value(theta, z), problem.gap(theta, z, u, own=self.smooth)
        self.floor = problem.rounding(theta, z, u)
        if self.predicted is not None:
            other = problem.gap(theta, z, self.predicted)
            closer = ~self.hot & (other < self.gap)
            self.gap = xp.where(closer, other, self.gap)
            u = xp.where(closer[..., None, None], self.predicted, u)
        return value, xp.where(self.hot, full((), math.inf, value), self.gap), u

    def advance(self) -> None:
        """One Newton step towards the point of the path at mu."""
        xp, samples, domain = self.xp, self.problem.samples, self.problem.domain
        theta, w = self.theta, self.w
        slack, z = domain.slack(theta), samples.margins(theta)
        self._lower(z, slack)
        step, dw = self._newton(z, slack)
        dz = samples.margins(step, offset=False)
        own = self.loss.newton(dz, self.mu / self.eta, z)
        # The longest step that keeps slack and multipliers positive, then halve until it pays.
        length = xp.minimum(xp.ones_like(self.mu), 0.995 * room(w, dw))
        length = xp.minimum(length, 0.995 * self.loss.longest(own))
        for _ in range(40):
            moved = domain.retract(theta, length[..., None] * step)
            inside = xp.all(domain.slack(moved) > 0.002 * slack, axis=-1)
            if bool(xp.all(inside)):
                break
            length = xp.where(inside, length, length * 0.8)
        length = self._shorten(length, step, own, z, dz)
        new_theta = domain.retract(theta, length[..., None] * step)
        new_w = w + length[..., None] * dw
        sound = xp.all(xp.isfinite(new_theta), axis=-1) & xp.all(xp.isfinite(new_w), axis=-1)
        sound = sound & xp.all(domain.slack(new_theta) > 0, axis=-1)
        if self.smooth:
            self.predicted = self._predict(z, dz)
        self.theta = xp.where(sound[..., None], new_theta, theta)
        self.w = xp.where(sound[..., None], new_w, w)
        self.loss = self.loss.move(own, xp.where(sound, length, xp.zeros_like(length)))
        self.length = length

    def _lower(self, z: Array, slack: Array) -> None:
        """Lower mu and the heat if the last step was a long one and theta is near the path, where
        the gap is mu·count.
        """
        xp, (total, count) = self.xp, self.loss.products()
        total, count = dot(slack, self.w) + self.eta * total, count + slack.shape[-1]
        near = NEAR * total
        if self.smooth and not slack.shape[-1]:  # no barrier: the gap itself has to go
            near = 0.1 * self.share * self.loss.merit(None, z)
        count = xp.maximum(count, xp.ones_like(count))
        good = (self.length > 0.4) & (self.gap <= near)
        shrink = SHRINK if self.smooth else GENTLY
        mu = xp.where(good, shrink * total / count, self.mu)
        self.cooled = self.mu < 0
        if isinstance(self.loss, Smooth) and bool(xp.any(self.hot)):
            heat = self.loss.heat
            cooler = xp.where(good, xp.maximum(COOL * heat, xp.minimum(heat, mu / self.eta)), heat)
            self.loss = Smooth(self.loss.samples, xp.maximum(cooler, xp.ones_like(cooler)))
            self.cooled = self.loss.heat < heat
            mu = xp.where(self.hot, xp.maximum(mu, 0.1 * self.eta * cooler), mu)
        # A barrier worth more than the gap would only push theta back, and one below rounding is
        # none.
        self.mu = xp.maximum(xp.minimum(mu, self.gap / count), 1e-3 * self.floor / count)

    def _newton(self, z: Array, slack: Array) -> tuple[Array, Array]:
        """Steps of theta and of the multipliers. Written in residuals, which vanish, so that
        cancellation does no harm.
        """
        problem, samples, domain, theta, w = self.problem, *self.problem[:2], self.theta, self.w
        ratio, off = w / slack, self.mu[..., None] - w * slack
        share = self.share[..., None]
        pull = share * samples.gather(self.loss.slope(z)) - domain.pull(theta, w)
        diagonal = domain.stiffness(theta, w, ratio)
        if problem.phi is not None:
            pull = pull + domain.mirror(theta) - domain.mirror(problem.phi)
            diagonal = diagonal + domain.metric(theta)
        elif not self.smooth and isinstance(domain, Euclidean):
            # Between corners nothing is bent, and rounding would carry theta off.
            longest = self.xp.max(self.xp.sum(samples.X**2, axis=-1), axis=-1)
            diagonal = diagonal + 1e-13 * longest[..., None]
        rhs = -domain.tangent(theta, pull)
        rhs = rhs - share * samples.gather(self.loss.shift(self.mu / self.eta, z))
        blocks = share[..., None, None] * _hessian(samples, self.loss.curvature(z))
        solve, border = _system(blocks, diagonal), domain.border(theta)
        if border is not None and border[0] == "curved":
            # One curved constraint: its multiplier is an unknown of its own.
            normal = border[1]
            straight, across = solve(rhs, normal)
            dw = off[..., 0] + w[..., 0] * dot(normal, straight)
            dw = dw / (slack[..., 0] + w[..., 0] * dot(normal, across))
            return straight - dw[..., None] * across, dw[..., None]
        rhs = rhs + domain.pull(theta, off / slack)
        if border is None:
            (step,) = solve(rhs)
        else:
            step, across = solve(rhs, border[1])
            step = step - (dot(border[1], step) / dot(border[1], across))[..., None] * across
        return step, off / slack - ratio * domain.push(step)

    def _shorten(self, length: Array, step: Array, own, z: Array, dz: Array) -> Array:
        """Halve until the step lowers the merit, which is convex, or the change is rounding."""
        xp, domain, theta, phi = self.xp, self.problem.domain, self.theta, self.problem.phi
        before = self._merit(theta, self.loss)
        slope = self.share * self.loss.fall(self.mu / self.eta, z, dz, own)
        if phi is not None:
            slope = slope + dot(domain.mirror(theta) - domain.mirror(phi), step)
        if self.w.shape[-1]:
            slope = slope - dot(domain.pull(theta, self.mu[..., None] / domain.slack(theta)), step)
        noise = 1e-15 * (1 + xp.abs(before)) + self.floor
        for _ in range(40):
            moved = domain.retract(theta, length[..., None] * step)
            after = self._merit(moved, self.loss.move(own, length))
            worse = ~(after <= before + 1e-4 * length * slope + noise)
            if not bool(xp.any(worse)):
                break
            length = xp.where(worse, length * 0.5, length)
        return length

    def _merit(self, theta: Array, loss: Smooth | Corner) -> Array:
        """f − mu·Σ log h at the present heat; nan outside the domain; [B]."""
        xp, problem, slack = self.xp, self.problem, self.problem.domain.slack(theta)
        total = self.share * loss.merit(self.mu / self.eta, problem.samples.margins(theta))
        if problem.phi is not None:
            total = total + problem.domain.divergence(theta, problem.phi)
        inside = xp.log(xp.where(slack > 0, slack, full((), math.nan, slack)))
        return total - self.mu * xp.sum(inside, axis=-1)

    def _predict(self, z: Array, dz: Array) -> Array:
        """The slopes after a whole step, to first order: their gather balances the multipliers,
        whatever rounding does to theta.

        A logistic slope p changes by p(1 − p)·dz, and |dz| ≤ ½ keeps it in (0, 1); samples that
        hardly count may go further.
        """
        xp, loss = self.xp, self.problem.samples.loss
        if not loss.attained:
            dz = xp.minimum(xp.maximum(dz, full((), -0.5, dz)), full((), 0.5, dz))
        bent = self.loss.curvature(z)
        change = xp.matmul(bent, dz[..., None])[..., 0] if loss.coupled else bent * dz
        return self.loss.slope(z) + change


def _hessian(samples: Samples, curvature: Array) -> Array:
    """Σᵢ curvatureᵢ ⊗ xᵢxᵢᵀ as diagonal blocks [B, blocks, size, size]: a block per class, or one
    for all when coupled.
    """
    xp, outputs = namespace(samples.X), range(samples.loss.outputs)
    turned = xp.matrix_transpose(samples.X)  # [B, f, n]

    def block(weight: Array) -> Array:
        return xp.matmul(turned * (weight * samples.weight)[..., None, :], samples.X)

    if not samples.loss.coupled:
        return xp.stack([block(curvature[..., c]) for c in outputs], axis=-3)
    rows = [xp.concat([block(curvature[..., a, b]) for b in outputs], axis=-1) for a in outputs]
    return xp.concat(rows, axis=-2)[..., None, :, :]


def _system(blocks: Array, diagonal: Array) -> Solve:
    """Solver for (blocks + diagonal) x = b with blocks [B, k, s, s] and diagonal [B, k·s]; one
    solution per right-hand side.
    """
    xp, shape = namespace(blocks), blocks.shape[:-1]
    # A trace of the largest curvature keeps a flat direction of an unbounded problem solvable.
    top = xp.max(xp.reshape(xp.abs(blocks), (shape[0], -1)), axis=-1)[..., None]
    diagonal = xp.reshape(diagonal + 1e-15 * top + 1e-290, shape)
    eye = xp.eye(shape[-1], dtype=diagonal.dtype, device=device(diagonal))
    matrix = blocks + diagonal[..., None] * eye
    # Active constraints make entries of wildly different size; scaling the diagonal to 1 keeps the
    # solve exact.
    scale = 1 / xp.sqrt(xp.linalg.diagonal(matrix))
    matrix = matrix * scale[..., :, None] * scale[..., None, :]

    def solve(*columns: Array) -> list[Array]:
        right = xp.stack([xp.reshape(c, shape) * scale for c in columns], axis=-1)
        solved = definite_solve(matrix, right) * scale[..., None]
        return [xp.reshape(solved[..., j], columns[0].shape) for j in range(len(columns))]

    return solve


def shortest(problem: Objective, found: Found) -> Found:
    """Of many minimisers, those of least B_R(·‖origin), given any with their values and gaps:
    Tikhonov's limit, taken where it is still exact. The origin is 0 where R = ½‖·‖², so that they
    have the least norm; on the simplex it is the uniform distribution, and their norm may not be
    the least.

    With a small weight ρ, the minimiser of F + ρ·B_R(·‖origin) is within O(ρ) of the minimiser of
    F nearest to the origin, and its F is within O(ρ²) of the minimum (equal to it for losses with
    corners on boxes). So ρ = 1e-8 finds it to eight digits while F moves in the sixteenth. What F
    lost is measured against the lower bound that the plain solution proved.
    """
    theta, value, gap, slopes, method = found
    xp, domain = namespace(theta), problem.domain
    origin = domain.middle(theta) if domain.norm == "l1" else zeros(theta.shape, theta)
    spare = ABSOLUTE * problem.start(theta)
    size, known = domain.divergence(theta, origin), value > spare
    if problem.samples.loss.attained:  # the least value may be 0
        scale, known = spare / ABSOLUTE, spare > 0
    else:  # far below the start any action is as good, and a tiny F would drown in ρ·B_R
        scale, spare = value, xp.zeros_like(value)
    known = known & (size > 0)
    if not bool(xp.any(known)):
        return found
    eta = size / xp.where(known, WEIGHT * scale, xp.ones_like(size))
    eta = xp.where(known, eta, xp.ones_like(eta))
    near = interior(problem._replace(phi=origin, eta=eta)).theta
    reached = problem.value(near, problem.samples.margins(near))
    lost = xp.maximum(reached - (value - gap), xp.zeros_like(gap))
    # Where the minimiser is unique the two agree up to the bias of ρ, and the plain solution has
    # none.
    apart = domain.divergence(near, theta) > 1e-10 * size
    exact = known & apart & (lost <= xp.maximum(RELATIVE * xp.abs(value), spare))
    return Found(
        xp.where(exact[..., None], near, theta),
        xp.where(exact, reached, value),
        xp.where(exact, lost, gap),
        slopes,
        xp.where(exact, Method.LEAST_DIVERGENCE.everywhere(value), method),
    )

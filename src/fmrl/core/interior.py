"""A primal–dual interior-point method: the robust solver, for any convex loss (corners included) on any domain.

The domain is h(θ) ≥ 0 (and ⟨1, θ⟩ = 1 on the simplex). With multipliers w, Newton's method follows the central path

    ∇f(θ) = Σ wⱼ∇hⱼ(θ),    wⱼhⱼ(θ) = mu,    mu → 0,

where each step solves one symmetric system per class (one for all classes when the loss couples them) plus a rank-one border.
A smooth loss enters by its slope and curvature; the hinge, which has neither at its corner, by a path of its own (`curves`).
"""

from __future__ import annotations

import math

from fmrl.core.arrays import Array, device, dot, full, namespace, zeros
from fmrl.core.curves import Corner, Smooth, least, room
from fmrl.core.gap import Objective

LIMIT = 200


def interior(problem: Objective, tol: float) -> tuple[Array, Array, Array, Array]:
    """Minimise; returns theta [B, d], value [B], gap [B] and whether each converged [B]."""
    path = _Path(problem)
    xp = namespace(path.theta)
    best, value, gap = path.theta, full(path.batch, math.inf, path.theta), full(path.batch, math.inf, path.theta)
    stalled, finished = xp.zeros_like(value), value < 0
    for _ in range(LIMIT):
        new_value, new_gap = path.certificate()
        better = (new_gap < gap) & ~finished  # a finished problem keeps its answer, so that it is the one it has alone
        stalled = xp.where(new_gap < 0.9 * gap, xp.zeros_like(stalled), stalled + 1)
        best = xp.where(better[..., None], path.theta, best)
        value, gap = xp.where(better, new_value, value), xp.where(better, new_gap, gap)
        # Past the tolerance there is more to gain (theta is only as exact as √gap), until rounding stops the descent.
        done = gap <= xp.maximum(tol * xp.abs(value), path.floor)
        finished = finished | (stalled >= 3) & done | (stalled >= 15) | (gap <= path.floor)
        if bool(xp.all(finished)):
            break
        path.advance()
    return best, value, gap, gap <= xp.maximum(tol * xp.abs(value), path.floor)


class _Path:
    """The central path of one stack of problems: theta, the multipliers, and one Newton step at a time."""

    SHRINK = 0.15

    def __init__(self, problem: Objective):
        samples = problem.samples
        if problem.phi is not None:
            problem = problem._replace(domain=problem.domain.regularised())
        self.problem, self.batch = problem, (samples.X.shape[0],)
        self.kind = (problem.domain.border(samples.X) or ("",))[0]
        self.xp = xp = namespace(samples.X)
        self.theta = problem.domain.middle(zeros((*self.batch, samples.dim), samples.X))
        slack = problem.domain.slack(self.theta)
        if problem.phi is not None and not slack.shape[-1]:
            self.theta = problem.phi
        scale = xp.abs(problem.value(self.theta, samples.margins(self.theta))) + 1e-3
        self.floor = 4 * xp.finfo(scale.dtype).eps * scale  # the rounding of the value: no gap below it means anything
        self.mu = scale / max(slack.shape[-1], 1)
        self.length = full(self.batch, 1.0, self.theta)
        self.w = self.mu[..., None] / slack
        z = samples.margins(self.theta)
        self.eta = xp.ones_like(scale) if problem.eta is None else xp.where(problem.eta > 0, problem.eta, xp.ones_like(scale))
        self.curve = Smooth(samples) if samples.loss.bend < math.inf else Corner.start(samples, z)

    @property
    def _mu(self) -> Array:
        """mu in the units of one loss, which enters the objective eta times."""
        return self.mu / self.eta

    def certificate(self) -> tuple[Array, Array]:
        samples = self.problem.samples
        z = samples.margins(self.theta)
        u = self.curve.slope(z)
        return self.problem.value(self.theta, z), self.problem.gap(self.theta, z, u, samples.gather(u))

    def _gradient(self, theta: Array, slope: Array) -> Array:
        problem, samples = self.problem, self.problem.samples
        g = samples.gather(slope)
        if problem.phi is not None:
            g = problem.eta[..., None] * g + problem.domain.mirror(theta) - problem.domain.mirror(problem.phi)  # type: ignore[index]
        return g

    def _lost(self, theta: Array, w: Array, slope: Array) -> Array:
        """∇f − Σ wⱼ∇hⱼ, less what the equality constraint can absorb; shape [B, d]."""
        lost = self._gradient(theta, slope) - self.problem.domain.pull(theta, w)
        return self.problem.domain.tangent(theta, lost)

    def _residual(self, theta: Array, w: Array, curve) -> Array:
        """Norm of the perturbed optimality conditions, shape [B]."""
        z = self.problem.samples.margins(theta)
        lost = self._lost(theta, w, curve.slope(z))
        centred = w * self.problem.domain.slack(theta) - self.mu[..., None]
        return self.xp.sqrt(dot(lost, lost) + dot(centred, centred) + self.eta**2 * curve.residual(self._mu, z))

    def advance(self) -> None:
        """One Newton step towards the point of the path at mu, after lowering mu if the last step was a good one."""
        xp, domain, theta, w = self.xp, self.problem.domain, self.theta, self.w
        slack = domain.slack(theta)
        total, count = self.curve.complementarity()
        count = count + slack.shape[-1]
        reached = xp.where(count > 0, (dot(slack, w) + self.eta * total) / xp.maximum(count, xp.ones_like(count)), self.mu)
        self.mu = xp.where(self.length > 0.4, self.SHRINK * reached, xp.maximum(self.mu, self.SHRINK * reached))
        self.mu = xp.maximum(self.mu, 1e-3 * self.floor / xp.maximum(count, xp.ones_like(count)))
        step, dw = self._newton(slack)
        curve_step = self.curve.newton(
            self.problem.samples.margins(step, offset=False), self._mu, self.problem.samples.margins(theta)
        )
        # The largest step that keeps slack and multipliers positive, then halve until the residual goes down.
        length = xp.minimum(full(self.batch, 1.0, theta), 0.995 * least(room(w, dw), self.batch, theta))
        length = xp.minimum(length, 0.995 * self.curve.longest(curve_step))
        inside = length < 0
        for _ in range(40):
            inside = inside | xp.all(domain.slack(domain.retract(theta, length[..., None] * step)) > 0.002 * slack, axis=-1)
            if bool(xp.all(inside)):
                break
            length = xp.where(inside, length, length * 0.8)
        length = self._shorten(length, step, dw, curve_step)
        new_theta, new_w = domain.retract(theta, length[..., None] * step), w + length[..., None] * dw
        sound = xp.all(xp.isfinite(new_theta), axis=-1) & xp.all(xp.isfinite(new_w), axis=-1)
        sound = sound & xp.all(domain.slack(new_theta) > 0, axis=-1)
        self.theta = xp.where(sound[..., None], new_theta, theta)
        self.w = xp.where(sound[..., None], new_w, w)
        self.curve = self.curve.move(curve_step, xp.where(sound, length, xp.zeros_like(length)))
        self.length = length

    def _shorten(self, length: Array, step: Array, dw: Array, curve_step) -> Array:
        """Halve until the step pays: in the objective itself where nothing else is left, else in the residual."""
        xp, theta, w, samples = self.xp, self.theta, self.w, self.problem.samples
        plain = not w.shape[-1] and isinstance(self.curve, Smooth)
        if plain:
            z = samples.margins(theta)
            before = self.problem.value(theta, z)
            slope = dot(self._lost(theta, w, self.curve.slope(z)), step)
        else:
            before, slope = self._residual(theta, w, self.curve), None
        for _ in range(40 if plain else 12):
            moved = self.problem.domain.retract(theta, length[..., None] * step)
            if plain:
                enough = before + 1e-4 * length * slope + 1e-15 * xp.abs(before)
                worse = ~(self.problem.value(moved, samples.margins(moved)) <= enough)
            else:
                after = self._residual(moved, w + length[..., None] * dw, self.curve.move(curve_step, length))
                worse = ~(after <= (1 - 0.01 * length) * before)
            if not bool(xp.any(worse)):
                break
            length = xp.where(worse, length * 0.5, length)
        return length

    def _newton(self, slack: Array) -> tuple[Array, Array]:
        """Steps of theta and of the multipliers. Written in residuals, which vanish, so that cancellation does no harm."""
        domain, w = self.problem.domain, self.w
        ratio, off = w / slack, self.mu[..., None] - w * slack
        z = self.problem.samples.margins(self.theta)
        rhs = -self._lost(self.theta, w, self.curve.slope(z))
        shift = self.problem.samples.gather(self.curve.shift(self._mu, z))
        rhs = rhs - (shift if self.problem.eta is None else self.problem.eta[..., None] * shift)
        solve = self._system(domain.stiffness(self.theta, w, ratio))
        border = domain.border(self.theta)
        if border is None:
            (step,) = solve(rhs + domain.pull(self.theta, off / slack))
        elif self.kind == "equality":
            straight, across = solve(rhs + domain.pull(self.theta, off / slack), border[1])
            step = straight - (dot(border[1], straight) / dot(border[1], across))[..., None] * across
        else:  # one curved constraint: its multiplier is an unknown of its own
            normal = border[1]
            straight, across = solve(rhs, normal)
            dw = (off[..., 0] + w[..., 0] * dot(normal, straight)) / (slack[..., 0] + w[..., 0] * dot(normal, across))
            return straight - dw[..., None] * across, dw[..., None]
        return step, off / slack - ratio * domain.push(step)

    def _system(self, diagonal: Array):
        """Solver for (H + diagonal) x = b by blocks; returns one solution per right-hand side given."""
        xp, problem, samples = self.xp, self.problem, self.problem.samples
        blocks = _hessian(samples, self.curve.curvature(samples.margins(self.theta)))
        if problem.phi is not None:
            blocks = problem.eta[..., None, None, None] * blocks  # type: ignore[index]
            diagonal = diagonal + problem.domain.metric(self.theta)
        shape = blocks.shape[:-1]
        # A whisper of the largest curvature keeps a flat direction of an unbounded problem solvable.
        top = xp.max(xp.reshape(xp.abs(blocks), (*self.batch, -1)), axis=-1)[..., None]
        diagonal = xp.reshape(diagonal + 1e-15 * top + 1e-290, shape)
        matrix = blocks + diagonal[..., None] * xp.eye(shape[-1], dtype=diagonal.dtype, device=device(diagonal))
        # Active constraints make entries of wildly different size; scaling the diagonal to 1 keeps the solve exact.
        scale = 1 / xp.sqrt(xp.linalg.diagonal(matrix))
        matrix = matrix * scale[..., :, None] * scale[..., None, :]

        def solve(*columns: Array) -> list[Array]:
            right = xp.stack([xp.reshape(c, shape) * scale for c in columns], axis=-1)
            solved = xp.linalg.solve(matrix, right) * scale[..., None]
            return [xp.reshape(solved[..., j], columns[0].shape) for j in range(len(columns))]

        return solve


def _hessian(samples, curvature: Array) -> Array:
    """Σᵢ curvatureᵢ ⊗ xᵢxᵢᵀ as diagonal blocks [B, blocks, size, size]: a block per class, or one for all when coupled."""
    xp = namespace(samples.X)
    turned = xp.matrix_transpose(samples.X)  # [B, f, n]
    C = samples.loss.outputs

    def block(weight: Array) -> Array:
        return xp.matmul(turned * (weight * samples.weight)[..., None, :], samples.X)

    if not samples.loss.coupled:
        return xp.stack([block(curvature[..., c]) for c in range(C)], axis=-3)
    rows = [xp.concat([block(curvature[..., a, b]) for b in range(C)], axis=-1) for a in range(C)]
    return xp.concat(rows, axis=-2)[..., None, :, :]

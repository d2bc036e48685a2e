"""A primal–dual interior-point method: the robust solver, for any convex loss (corners included) on any domain.

The domain is h(θ) ≥ 0 (and ⟨1, θ⟩ = 1 on the simplex). With multipliers w, Newton's method follows the central path

    ∇f(θ) = Σ wⱼ∇hⱼ(θ),    wⱼhⱼ(θ) = mu,    mu → 0,

where each step solves one symmetric system per class (one for all classes when the loss couples them) plus a rank-one border.
A smooth loss enters by its slope and curvature; the hinge, which has neither at its corner, by a path of its own (`curves`).

Where all samples are on their right side, F = Σ losses falls like e^(−margin), and Newton's method on F, exact for parabolas,
gains a factor e a step. So once F is below FOLD, which only separable samples reach, the path is that of log F, with

    ∇log F = q/F,    ∇²log F = H/F − qqᵀ/F²,

whose steps are long again; mu and w change to its units. The certificate is F's own throughout.
"""

from __future__ import annotations

import math

from fmrl.core.arrays import Array, device, dot, full, namespace, zeros
from fmrl.core.curves import Corner, Smooth, least, room
from fmrl.core.gap import TINY, Objective

LIMIT = 200
AHEAD = 0.02
FOLD = 0.1  # separable samples alone have losses below log 2; the rest is room for the first steps


def interior(problem: Objective, tol: float) -> tuple[Array, Array, Array, Array]:
    """Minimise; returns theta [B, d], value [B], gap [B] and whether each converged [B]."""
    path = _Path(problem)
    xp = namespace(path.theta)
    best, value, gap = path.theta, full(path.batch, math.inf, path.theta), full(path.batch, math.inf, path.theta)
    floor, stalled, finished, done = xp.zeros_like(value), xp.zeros_like(value), value < 0, value < 0
    for _ in range(LIMIT):
        new_value, new_gap = path.certificate()
        better = (new_gap < gap) & ~finished  # a finished problem keeps its answer, so that it is the one it has alone
        stalled = xp.where(new_gap < 0.9 * gap, xp.zeros_like(stalled), stalled + 1)
        best = xp.where(better[..., None], path.theta, best)
        value, gap, floor = (xp.where(better, *pair) for pair in ((new_value, value), (new_gap, gap), (path.floor, floor)))
        # Past the tolerance there is more to gain (theta is only as exact as √gap), until rounding stops the descent.
        proved = problem.proved(value, gap)
        done = done & finished | (proved <= xp.maximum(tol * xp.abs(value), floor)) & ~finished
        finished = finished | (stalled >= 3) & done | (stalled >= 15) | (proved <= floor)
        if bool(xp.all(finished)):
            break
        path.advance()
    return best, value, problem.proved(value, gap), done


class _Path:
    """The central path of one stack of problems: theta, the multipliers, and one Newton step at a time."""

    SHRINK, LESS = 0.15, 0.4

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
        # The rounding of the value, below which no gap means anything; for a hinge, whose slopes do not vanish, that at the start.
        self.floor, self.gap = 4 * xp.finfo(scale.dtype).eps * scale, xp.zeros_like(scale)
        self.folded = scale < 0  # whether the path is that of log F
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
        q = samples.gather(u)
        value = self.problem.value(self.theta, z)
        if isinstance(self.curve, Smooth):
            self.floor = self.problem.rounding(self.theta, z, u)
        if self.problem.phi is None and not samples.loss.attained and self.w.shape[-1]:
            self._fold(value, q)
        self.gap = self.problem.gap(self.theta, z, u, q)
        return value, self.gap

    def _fold(self, value: Array, q: Array) -> None:
        """Go over to log F where F has become small: a new path, which starts at the mu whose point is nearest."""
        xp, domain = self.xp, self.problem.domain
        new = (value < FOLD) & ~self.folded
        if not bool(xp.any(new)):
            return
        slack = domain.slack(self.theta)
        g, away = q / xp.maximum(value, full((), TINY, value))[..., None], domain.pull(self.theta, 1 / slack)
        fall = dot(g, self.theta - domain.lowest(q)) / slack.shape[-1]
        mu = xp.maximum(fall, dot(domain.tangent(self.theta, g), away) / (dot(away, away) + TINY))
        self.mu = xp.where(new, mu, self.mu)
        self.w = xp.where(new[..., None], mu[..., None] / slack, self.w)
        self.folded = self.folded | new

    def _unit(self, theta: Array) -> Array:
        """What F is measured in: F itself on the path of log F, else 1; shape [B]."""
        xp = self.xp
        if not bool(xp.any(self.folded)):
            return xp.ones_like(self.mu)
        value = self.problem.value(theta, self.problem.samples.margins(theta))
        return xp.where(self.folded, xp.maximum(value, full((), TINY, value)), xp.ones_like(value))

    def _gradient(self, theta: Array, slope: Array) -> Array:
        problem, samples = self.problem, self.problem.samples
        g = samples.gather(slope)
        if problem.phi is None:
            g = g / self._unit(theta)[..., None]
        else:
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
        early = self.folded & (self.mu * slack.shape[-1] > 1)  # log F has corners as sharp as 1
        shrink = xp.where(early, full((), self.LESS, reached), full((), self.SHRINK, reached))
        self.mu = xp.where(self.length > 0.4, shrink * reached, xp.maximum(self.mu, shrink * reached))
        # On the path the gap is mu·count. Where it is far more, mu waits: multipliers near 0 would make steps short.
        # (The hinge's own multipliers keep in step by themselves.)
        ahead = AHEAD * self.gap if isinstance(self.curve, Smooth) and w.shape[-1] else xp.zeros_like(self.gap)
        least_mu = xp.maximum(ahead, 1e-3 * self.floor)
        self.mu = xp.maximum(self.mu, least_mu / (self._unit(theta) * xp.maximum(count, xp.ones_like(count))))
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
            # log F is not convex where F is large, and its slope is small there; what the barrier may win bounds what F may lose.
            spare = xp.exp(xp.minimum(0.4 + self.mu * w.shape[-1], full((), 300.0, self.mu)))
            most = xp.where(self.folded, xp.minimum(spare * self._unit(theta), full((), 0.5, spare)), xp.ones_like(spare))
        for _ in range(40 if plain else 12):
            moved = self.problem.domain.retract(theta, length[..., None] * step)
            if plain:
                enough = before + 1e-4 * length * slope + 1e-15 * xp.abs(before)
                worse = ~(self.problem.value(moved, samples.margins(moved)) <= enough)
            else:
                after = self._residual(moved, w + length[..., None] * dw, self.curve.move(curve_step, length))
                worse = ~(after <= (1 - 0.01 * length) * before) | (self._unit(moved) > most)
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
        z = samples.margins(self.theta)
        blocks = _hessian(samples, self.curve.curvature(z)) / self._unit(self.theta)[..., None, None, None]
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

        if not bool(xp.any(self.folded)):
            return solve
        g = self._gradient(self.theta, self.curve.slope(z))

        def folded(*columns: Array) -> list[Array]:
            """(matrix − share·ggᵀ)⁻¹ by Sherman and Morrison; the share is 1 or what keeps the matrix positive."""
            *plain, along = solve(*columns, g)
            bent = dot(g, along)
            share = xp.where(self.folded, xp.minimum(xp.ones_like(bent), 0.999 / (bent + TINY)), xp.zeros_like(bent))
            return [x + (share * dot(g, x) / (1 - share * bent))[..., None] * along for x in plain]

        return folded


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

"""The central path of a stack of problems, one Newton step at a time.

The domain is h(θ) ≥ 0 (and ⟨1, θ⟩ = 1 on the simplex). With multipliers w, Newton's method follows

    ∇f(θ) = Σ wⱼ∇hⱼ(θ),    wⱼhⱼ(θ) = mu,    mu → 0,

where each step solves one symmetric system per class (one for all classes when the loss couples
them) plus a rank-one border. A smooth loss enters by its slope and curvature; the hinge, which has
neither at its corner, by a path of its own (`curves`).

Two more things lead Newton's method, which is exact for parabolas, to logistic losses that are
none:

*Heat.* Where margins can be in the thousands, a logistic loss is a corner to any Newton step. So
the path starts from the losses T·ℓ(z/T) with T as large as the margins, which are tame, and T falls
to 1 along with mu.

*Logarithm.* Where all samples are on their right side, F = Σ losses falls like e^(−margin), and
Newton's method on F gains a factor e a step. So the path is that of f = T·log(e^F − 1) with F = Σ
ℓ(z/T), which is F where F is large and log F where it is small. It is convex: e^F − 1 is a sum of
products of e^z. With q = Xᵀ∂ℓ and the unit r = 1 − e^(−F),

    ∇f = q/r,    ∇²f = H/r − (1 − r)·qqᵀ/(T·r²).
"""

from __future__ import annotations

import math

from fmrl.core.arrays import Array, dot, full, namespace, zeros
from fmrl.core.domains import Euclidean
from fmrl.core.solve.curves import Corner, Smooth, least, room
from fmrl.core.solve.gap import TINY, Objective
from fmrl.core.solve.newton import Solve, hessian, less, system

SHRINK = 0.15  # of mu in a step
GENTLY = 0.3  # the same where a loss has corners: many may lie in one place, and a fast descent loses them from sight
COOL = 0.5  # of the heat in a step
NEAR = 5.0  # times mu·count: the gap of a point on the path


class Path:
    """theta [B, d], the multipliers w [B, k], mu [B] and the heat, and the slopes that the last
    step foretold.
    """

    def __init__(self, problem: Objective):
        samples, smooth = problem.samples, problem.samples.loss.bend < math.inf
        self.batch, self.xp = (samples.X.shape[0],), namespace(samples.X)
        xp, self.theta = (
            self.xp,
            problem.domain.middle(zeros((*self.batch, samples.dim), samples.X)),
        )
        if (
            problem.phi is not None
        ):  # corners and parabolas want straight steps: the constraints stay, unless phi lies on them
            away = problem.domain.divergence(self.theta, problem.phi)
            if (smooth and not samples.loss.attained) or not bool(xp.all(xp.isfinite(away))):
                problem = problem._replace(domain=problem.domain.regularised())
        self.problem, self.kind = problem, (problem.domain.border(samples.X) or ("",))[0]
        slack = problem.domain.slack(self.theta)
        if problem.phi is not None and not slack.shape[-1]:
            self.theta = problem.phi
        z = samples.margins(self.theta)
        self.share = xp.ones_like(z[..., 0, 0]) if problem.eta is None else problem.eta
        self.eta = xp.where(self.share > 0, self.share, xp.ones_like(self.share))
        scale = xp.abs(problem.value(self.theta, z)) + 1e-3
        if smooth:
            self.curve = Smooth.start(samples, problem.domain, problem.phi, problem.eta)
            scale = xp.maximum(scale, self.eta * self.curve.value(z))
        else:
            self.curve = Corner.start(samples, z)
        self.gap, self.floor, self.noise, self.foretold = (
            scale,
            xp.zeros_like(scale),
            xp.zeros_like(scale),
            None,
        )
        self.loose = problem.phi is None and not smooth and isinstance(problem.domain, Euclidean)
        self.log = problem.phi is None and not samples.loss.attained  # whether f is T·log(e^F − 1)
        self.mu = scale / max(slack.shape[-1], 1)
        self.length = full(self.batch, 1.0, self.theta)
        self.w = self.mu[..., None] / slack

    @property
    def _mu(self) -> Array:
        """mu in the units of one loss, which enters the objective eta times."""
        return self.mu / self.eta

    @property
    def hot(self) -> Array:
        """Whether the losses are not yet the problem's own, [B]."""
        return self.curve.heat > 1 if isinstance(self.curve, Smooth) else self.mu < 0

    def _products(self) -> tuple[Array, Array]:
        """Σ of the products that are mu on the path, and how many there are; [B]."""
        slack = self.problem.domain.slack(self.theta)
        total, count = self.curve.complementarity()
        return dot(slack, self.w) + self.eta * total, count + slack.shape[-1]

    def _lower(self) -> None:
        """Lower mu and the heat if the last step was a good one and theta is near the path, where
        the gap is mu·count.
        """
        xp, unit, (total, count) = self.xp, self.unit(self.theta), self._products()
        near = NEAR * total * unit
        if (
            isinstance(self.curve, Smooth) and not self.w.shape[-1]
        ):  # no barrier: the gap itself has to go
            near = 0.1 * self.share * self.curve.value(self.problem.samples.margins(self.theta))
        good, count = (
            (self.length > 0.4) & (self.gap <= near),
            xp.maximum(count, xp.ones_like(count)),
        )
        mu = xp.where(
            good, (SHRINK if isinstance(self.curve, Smooth) else GENTLY) * total / count, self.mu
        )
        if isinstance(self.curve, Smooth) and bool(xp.any(self.hot)):
            heat = self.curve.heat
            cooler = xp.where(good, xp.maximum(COOL * heat, xp.minimum(heat, mu / self.eta)), heat)
            self.curve = self.curve._replace(heat=xp.maximum(cooler, xp.ones_like(cooler)))
            mu = xp.where(self.hot, xp.maximum(mu, 0.1 * self.eta * cooler), mu)
        # A barrier worth more than the gap would only push theta back, and one below rounding is
        # none.
        self.mu = xp.maximum(
            xp.minimum(mu, self.gap / (unit * count)), 1e-3 * self.floor / (unit * count)
        )

    def unit(self, theta: Array) -> Array:
        """r = 1 − e^(−F), by which ∇f is more than q; 1 if f is F; shape [B]."""
        xp, curve = self.xp, self.curve
        if not self.log:
            return xp.ones_like(self.mu)
        total = curve.value(self.problem.samples.margins(theta)) / curve.heat  # type: ignore[union-attr]
        return xp.maximum(-xp.expm1(-total), xp.full_like(total, TINY))

    def _gradient(self, theta: Array, slope: Array) -> Array:
        problem, samples = self.problem, self.problem.samples
        g = samples.gather(slope)
        if problem.phi is None:
            g = g / self.unit(theta)[..., None]
        else:
            g = (
                problem.eta[..., None] * g
                + problem.domain.mirror(theta)
                - problem.domain.mirror(problem.phi)
            )  # type: ignore[index]
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
        return self.xp.sqrt(
            dot(lost, lost) + dot(centred, centred) + self.eta**2 * curve.residual(self._mu, z)
        )

    def advance(self) -> None:
        """One Newton step towards the point of the path at mu."""
        xp, domain, samples, theta, w = (
            self.xp,
            self.problem.domain,
            self.problem.samples,
            self.theta,
            self.w,
        )
        slack = domain.slack(theta)
        self._lower()
        step, dw = self._newton(slack)
        curve_step = self.curve.newton(
            samples.margins(step, offset=False), self._mu, samples.margins(theta)
        )
        # The largest step that keeps slack and multipliers positive, then halve until the residual
        # goes down.
        length = xp.minimum(
            full(self.batch, 1.0, theta), 0.995 * least(room(w, dw), self.batch, theta)
        )
        length = xp.minimum(length, 0.995 * self.curve.longest(curve_step))
        inside = length < 0
        for _ in range(40):
            inside = inside | xp.all(
                domain.slack(domain.retract(theta, length[..., None] * step)) > 0.002 * slack,
                axis=-1,
            )
            if bool(xp.all(inside)):
                break
            length = xp.where(inside, length, length * 0.8)
        length = self._shorten(length, step, dw, curve_step)
        new_theta, new_w = (
            domain.retract(theta, length[..., None] * step),
            w + length[..., None] * dw,
        )
        sound = xp.all(xp.isfinite(new_theta), axis=-1) & xp.all(xp.isfinite(new_w), axis=-1)
        sound = sound & xp.all(domain.slack(new_theta) > 0, axis=-1)
        self._foretell(step)
        self.theta = xp.where(sound[..., None], new_theta, theta)
        self.w = xp.where(sound[..., None], new_w, w)
        self.curve = self.curve.move(curve_step, xp.where(sound, length, xp.zeros_like(length)))
        self.curve = self.curve.settle(samples.margins(self.theta))
        self.length = length

    def _foretell(self, step: Array) -> None:
        """The slopes after a whole step, to first order: their gather balances the multipliers,
        whatever rounding does to theta.

        A logistic slope p changes by p(1 − p)·dz, and |dz| ≤ ½ keeps it in (0, 1): samples that
        hardly count may go further."""
        if not isinstance(self.curve, Smooth):
            return
        xp, samples, theta = self.xp, self.problem.samples, self.theta
        z, dz = samples.margins(theta), samples.margins(step, offset=False)
        if not samples.loss.attained:
            dz = xp.minimum(xp.maximum(dz, full((), -0.5, dz)), full((), 0.5, dz))
        u = self.curve.slope(z)
        self.foretold = u + self.curve.bend(z, dz)
        if self.log:
            fall = (1 - self.unit(theta)) * dot(self._gradient(theta, u), step) / self.curve.heat
            fall = xp.minimum(xp.maximum(fall, full((), -0.5, fall)), full((), 0.5, fall))
            self.foretold = self.foretold - fall[..., None, None] * u

    def _shorten(self, length: Array, step: Array, dw: Array, curve_step) -> Array:
        """Halve until the step pays: in the merit, which is convex, or for a loss with corners in
        the residual.
        """
        xp, theta, w, samples, domain = (
            self.xp,
            self.theta,
            self.w,
            self.problem.samples,
            self.problem.domain,
        )
        z, dz, corner = (
            samples.margins(theta),
            samples.margins(step, offset=False),
            not isinstance(self.curve, Smooth),
        )
        before = self._merit(theta, self.curve)
        slope = self.share * self.curve.fall(self._mu, z, dz, curve_step) / self.unit(theta)
        if self.problem.phi is not None:
            slope = slope + dot(domain.mirror(theta) - domain.mirror(self.problem.phi), step)
        if w.shape[-1]:
            slope = slope - dot(domain.pull(theta, self.mu[..., None] / domain.slack(theta)), step)
        noise = 1e-15 * (1 + xp.abs(before)) + self.noise
        residual = self._residual(theta, w, self.curve) if corner else None
        for _ in range(40):
            moved, curve = (
                domain.retract(theta, length[..., None] * step),
                self.curve.move(curve_step, length),
            )
            worse = ~(self._merit(moved, curve) <= before + 1e-4 * length * slope + noise)
            if corner:
                after = self._residual(moved, w + length[..., None] * dw, curve)
                worse = worse & ~(after <= (1 - 0.01 * length) * residual)
            if not bool(xp.any(worse)):
                break
            length = xp.where(worse, length * 0.5, length)
        return length

    def _merit(self, theta: Array, curve) -> Array:
        """f − mu·Σ log h with f = eta·F + B_R or T·log(e^F − 1), at the present heat; [B]."""
        xp, problem, slack = self.xp, self.problem, self.problem.domain.slack(theta)
        total = self.share * curve.merit(self._mu, problem.samples.margins(theta))
        if problem.phi is not None:
            total = total + problem.domain.divergence(theta, problem.phi)
        if self.log:  # log(e^F − 1) = F + log(1 − e^(−F))
            total = total + curve.heat * xp.log(self.unit(theta))
        if not slack.shape[-1]:
            return total
        inside = xp.log(xp.where(slack > 0, slack, full((), math.nan, slack)))
        return total - self.mu * xp.sum(inside, axis=-1)

    def _newton(self, slack: Array) -> tuple[Array, Array]:
        """Steps of theta and of the multipliers. Written in residuals, which vanish, so that
        cancellation does no harm.
        """
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
            step = (
                straight - (dot(border[1], straight) / dot(border[1], across))[..., None] * across
            )
        else:  # one curved constraint: its multiplier is an unknown of its own
            normal = border[1]
            straight, across = solve(rhs, normal)
            dw = (off[..., 0] + w[..., 0] * dot(normal, straight)) / (
                slack[..., 0] + w[..., 0] * dot(normal, across)
            )
            return straight - dw[..., None] * across, dw[..., None]
        return step, off / slack - ratio * domain.push(step)

    def _system(self, diagonal: Array) -> Solve:
        """Solver for (∇²f + diagonal) x = b."""
        problem, samples, curve = self.problem, self.problem.samples, self.curve
        z = samples.margins(self.theta)
        if self.loose:  # between corners nothing is bent, and rounding would carry theta off along what no sample sees
            diagonal = (
                diagonal
                + 1e-13 * self.xp.max(self.xp.sum(samples.X**2, axis=-1), axis=-1)[..., None]
            )
        blocks = hessian(samples, curve.curvature(z)) / self.unit(self.theta)[..., None, None, None]
        if problem.phi is not None:
            blocks = problem.eta[..., None, None, None] * blocks  # type: ignore[index]
            diagonal = diagonal + problem.domain.metric(self.theta)
        solve = system(blocks, diagonal)
        if not self.log:
            return solve
        share = (1 - self.unit(self.theta)) / curve.heat  # type: ignore[union-attr]
        return less(solve, self._gradient(self.theta, curve.slope(z)), share)

"""Projections in a metric: the point of a Ball or a Box nearest to u in ‖·‖_{H⁻¹}, exact to
rounding, for stacks of points.
"""

from __future__ import annotations

from typing import Any

from fmrl.core.arrays import Array, anywhere, constant, device, namespace, norm
from fmrl.core.domains import Ball, Box

NEWTON = 100  # steps at most of a search for a multiplier; a handful is usual
TRIED = 20  # sets of bounds at most; two or three are usual


def onto_ball(metric: Any, ball: Ball, u: Array) -> Array:
    """θ − c = (I + weight·H)⁻¹(u − c), with the weight that brings it onto the sphere.

    1/‖θ(weight)‖ is concave, so Newton's method on it rises to the solution from 0.

    Args:
        metric: H.
        ball: Where to.
        u: Points [..., d].
    """
    xp, radius, middle = namespace(u), ball.radius, constant(ball.centre, u)
    offset = u if ball.centre == 0.0 else u - middle
    size = norm(offset)
    out = size > radius
    if not anywhere(out):
        return u
    at, back = metric.path(offset)
    weight, none, fall = 0.0 * size, 0.0 * size, 2 * metric.energy(offset)
    most = radius * (1 + 64 * float(xp.finfo(u.dtype).eps))
    for _ in range(NEWTON):
        weight = weight + xp.maximum(size / radius - 1, none) * size**2 / fall
        near, falls = at(weight)
        size = norm(near)
        if not anywhere(size > most):
            break
        fall = falls()
    inside = anywhere(~out)
    size = xp.where(out, size, xp.ones_like(size)) if inside else size
    near = back(near * (radius / size)[..., None])
    near = near if ball.centre == 0.0 else middle + near
    return xp.where(out[..., None], near, u) if inside else near


def onto_box(H: Array, box: Box, u: Array, near: Array | None = None) -> Array:
    """The nearest point of a box: θ = u − H·λ, with λ at the bounds that hold and 0 elsewhere.

    Which bounds hold is found by trying: those of ``near`` first, then what the answer asks for.
    Where that goes in circles a barrier tells them apart.

    Args:
        H: The metric as a matrix, [..., d, d].
        box: Where to.
        u: Points [..., d].
        near: A point of the box that may touch the same bounds, [..., d].
    """
    xp, d = namespace(u), u.shape[-1]
    flat = xp.reshape(u, (-1, d))
    H = xp.reshape(xp.broadcast_to(H, (*u.shape[:-1], d, d)), (-1, d, d))
    low, high = (a + xp.zeros_like(flat) for a in box._bounds(u))
    first = flat if near is None else xp.reshape(xp.broadcast_to(near, u.shape), (-1, d))
    theta, settled = _settle(H, flat, low, high, first <= low, first >= high)
    if not settled:
        rough = _barrier(xp.linalg.inv(H), flat, low, high)
        touching = (xp.abs(rough - edge) < 1e-7 * (high - low) for edge in (low, high))
        theta, settled = _settle(H, flat, low, high, *touching)
        theta = theta if settled else rough
    return xp.reshape(xp.minimum(xp.maximum(theta, low), high), u.shape)


def _settle(
    H: Array, u: Array, low: Array, high: Array, at_low: Array, at_high: Array
) -> tuple[Array, bool]:
    """θ [B, d] for the bounds that hold, from a first idea of them, and whether they were found.

    A bound whose λ has the wrong sign is let go, one that θ crosses is taken in."""
    xp, theta = namespace(u), u
    for _ in range(TRIED):
        held: Any = at_low | at_high
        (some,) = xp.nonzero(xp.any(held, axis=0))
        force = xp.zeros_like(u)
        theta = u
        if some.shape[0]:
            mask = xp.astype(xp.take(held, some, axis=1), u.dtype)
            edge = xp.take(xp.where(at_low, low, high) - u, some, axis=1)
            columns = xp.take(H, some, axis=2)
            block = xp.take(columns, some, axis=1) * mask[:, :, None] * mask[:, None, :]
            eye = xp.eye(some.shape[0], dtype=u.dtype, device=device(u))
            found = xp.linalg.solve(block + eye * (1 - mask)[:, None, :], (mask * edge)[..., None])
            theta = u + xp.matmul(columns, found)[..., 0]
            theta = xp.where(held, xp.where(at_low, low, high), theta)
            place = xp.astype(some[:, None] == xp.arange(u.shape[-1], device=device(u)), u.dtype)
            force = xp.matmul(found[..., 0], place)
        new_low = (at_low & (force >= 0)) | (~held & (theta < low))
        new_high = (at_high & (force <= 0)) | (~held & (theta > high))
        if not anywhere((new_low != at_low) | (new_high != at_high)):
            return theta, True
        at_low, at_high = new_low, new_high
    return theta, False


def _barrier(M: Array, u: Array, low: Array, high: Array) -> Array:
    """About argmin over the box of ½(θ − u)ᵀM(θ − u), M [B, d, d]: inside, near the answer."""
    xp = namespace(u)
    width, theta = high - low, (low + high) / 2
    push = xp.matmul(M, (theta - u)[..., None])[..., 0]
    mu = (xp.max(xp.abs(push) * width, axis=-1)[:, None] + 1e-300) / 10
    eye = xp.eye(u.shape[-1], dtype=u.dtype, device=device(u))
    for _ in range(25):
        below, above = theta - low, high - theta
        slope = xp.matmul(M, (theta - u)[..., None])[..., 0] - mu / below + mu / above
        bend = M + eye * (mu / below**2 + mu / above**2)[..., None]
        step = -xp.linalg.solve(bend, slope[..., None])[..., 0]
        room = xp.where(step < 0, below, above) / (xp.abs(step) + 1e-300)
        length = xp.minimum(0.95 * xp.min(room, axis=-1, keepdims=True), xp.ones_like(mu))
        theta, mu = theta + length * step, mu / 3
    return theta

"""The optimiser's step on a stack of tasks, reading and writing everything once."""

from fmrl.deep.kernels import tl, triton

BLOCK = 2048


@triton.jit
def descend_all(
    theta, second, average, squares, frozen, gradient, eta, bias, P, beta2, eps,
    BLOCK: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr, OBSERVE: tl.constexpr,
    FROZEN: tl.constexpr, SHAPED: tl.constexpr,
):  # fmt: skip
    """SGD, or Adam with bias = sqrt(1 − beta2^count). Grid (tasks, P / BLOCK)."""
    t, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask, here = at < P, t * P + at
    g = tl.load(gradient + here, mask=mask)
    if FROZEN:
        g = tl.where(tl.load(frozen + at, mask=mask, other=0) != 0, 0.0, g)
    w = tl.load(theta + here, mask=mask)
    rate = tl.load(eta + here, mask=mask) if SHAPED else tl.load(eta + t)
    if AVERAGE:
        tl.store(average + here, tl.load(average + here, mask=mask) + w, mask=mask)
    if OBSERVE:
        tl.store(squares + here, tl.load(squares + here, mask=mask) + g * g, mask=mask)
    if ADAM:
        correction = tl.load(bias)
        v = beta2 * tl.load(second + here, mask=mask) + (1 - beta2) * g * g
        tl.store(second + here, v, mask=mask)
        w -= rate * correction * g / (tl.sqrt(v) + eps * correction)
    else:
        w -= rate * g
    tl.store(theta + here, w, mask=mask)

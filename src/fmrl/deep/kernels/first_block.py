"""Triton kernels of a fused inner step that read or move the first block, whose input are images by
number, and the optimiser's step on all that is small. Layouts as in `fmrl.deep.kernels.fused`.
"""

from fmrl.deep.kernels import stepped, tl, triton
from fmrl.deep.kernels.fused import descend_at, leave


@triton.jit
def _patches(
    images, index, t, rows, k, B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr,
    PAD: tl.constexpr, CIN: tl.constexpr,
):  # fmt: skip
    """The 3x3 patches [rows, taps·CIN] of images by number, zero outside."""
    live = rows < B * OH * OH
    image = tl.load(index + t * B + rows // (OH * OH), mask=live, other=0).to(tl.int64)
    image *= H * H * CIN
    oh, ow, tap, ci = (rows % (OH * OH)) // OH, rows % OH, k // CIN, k % CIN
    h, w = 2 * oh[:, None] + (tap // 3)[None, :] - PAD, 2 * ow[:, None] + (tap % 3)[None, :] - PAD
    inside = live[:, None] & (k < 9 * CIN)[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < H)
    at = image[:, None] + (h * H + w) * CIN + ci[None, :]
    return tl.load(images + at, mask=inside, other=0).to(tl.float32)


@stepped
def first_forward(
    images, index, theta, xhat, act, rstd, raw, sums, P, offset, norms, norm_eps, B: tl.constexpr,
    H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, CIN: tl.constexpr, F: tl.constexpr,
    RB: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
    SPLIT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """First block; its product is cheaper done twice than kept. Grid (tasks, F/NB, 1); with SPLIT
    (tasks, F/NB, M/RB), and `normalise` follows."""
    t = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, KP), tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    at = theta + t * P + offset + k[:, None] * F + n[None, :]
    weight = tl.load(at, mask=(k < 9 * CIN)[:, None] & (n >= 0)[None, :], other=0.0)
    if SPLIT:
        rows = tl.program_id(2) * RB + tl.arange(0, RB)
        x = _patches(images, index, t, rows, k, B, H, OH, PAD, CIN)
        y = tl.dot(x, weight, input_precision=PRECISION)  # rows beyond M are zero
        leave(y, raw + t * M * F, sums + t * SUMS, rows, rows < M, n, M, RB, F)
    else:
        total, square = tl.zeros((NB,), tl.float32), tl.zeros((NB,), tl.float32)
        for start in range(0, M, RB):
            x = _patches(images, index, t, start + tl.arange(0, RB), k, B, H, OH, PAD, CIN)
            y = tl.dot(x, weight, input_precision=PRECISION)
            total += tl.sum(y, 0)
            square += tl.sum(y * y, 0)
        mean = total / M
        scale = 1.0 / tl.sqrt(tl.maximum(square / M - mean * mean, 0.0) + norm_eps)
        tl.store(rstd + t * F + n, scale)
        gamma, beta = tl.load(theta + t * P + norms + n), tl.load(theta + t * P + norms + F + n)
        for start in range(0, M, RB):
            rows = start + tl.arange(0, RB)
            x = _patches(images, index, t, rows, k, B, H, OH, PAD, CIN)
            y = (tl.dot(x, weight, input_precision=PRECISION) - mean[None, :]) * scale[None, :]
            out = t * (M * F) + rows[:, None] * F + n[None, :]
            live = (rows < M)[:, None]
            tl.store(xhat + out, y.to(xhat.dtype.element_ty), mask=live)
            a = tl.maximum(y * gamma[None, :] + beta[None, :], 0.0)
            tl.store(act + out, a.to(act.dtype.element_ty), mask=live)


@stepped
def first_weight(
    images, index, dy, parts, theta, second, average, eta, bias, P, offset, beta2, eps,
    B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, CIN: tl.constexpr,
    F: tl.constexpr, RB: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
    TYPE: tl.constexpr, SPLIT: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Gradient and optimiser step of the first block's 9·CIN taps. Grid (tasks, F/NB, 1); with
    SPLIT (tasks, F/NB, M/RB), and `small_step` adds up and takes the step."""
    t = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, KP), tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    dy += t * (M * F)
    begin = tl.program_id(2) * RB
    acc = tl.zeros((KP, NB), tl.float32)
    for start in range(begin, begin + (RB if SPLIT else M), RB):
        rows = start + tl.arange(0, RB)
        x = _patches(images, index, t, rows, k, B, H, OH, PAD, CIN).to(TYPE)
        d = tl.load(dy + rows[:, None] * F + n[None, :], mask=(rows < M)[:, None], other=0.0)
        acc = tl.dot(tl.trans(x), d, acc, input_precision=PRECISION)
    where = k[:, None] * F + n[None, :]
    mask = (k < 9 * CIN)[:, None] & (n >= 0)[None, :]
    if SPLIT:
        part = t * tl.num_programs(2) + tl.program_id(2)
        tl.store(parts + part * (9 * CIN * F) + where, acc, mask=mask)
    else:
        descend_at(
            theta, second, average, eta, bias, t, P, offset + where, mask, acc, beta2, eps, ADAM,
            AVERAGE,
        )  # fmt: skip


@stepped
def small_step(
    theta, second, average, small, parts, eta, bias, P, offset, beta2, eps, SMALL: tl.constexpr,
    SP: tl.constexpr, TAPS: tl.constexpr, TP: tl.constexpr, PARTS: tl.constexpr,
    ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Optimiser step on every gamma and beta, last of all because the backward pass reads them, and
    on the first block's TAPS weights where `first_weight` left their gradient in PARTS parts (0: it
    took the step itself). Grid (tasks,)."""
    t = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SP)
    grad = tl.load(small + t * SMALL + at, mask=at < SMALL)
    descend_at(
        theta, second, average, eta, bias, t, P, at, at < SMALL, grad, beta2, eps, ADAM, AVERAGE
    )
    if PARTS > 0:
        tap = tl.arange(0, TP)
        total = tl.zeros((TP,), tl.float32)
        for part in range(PARTS):
            total += tl.load(parts + (t * PARTS + part) * TAPS + tap, mask=tap < TAPS, other=0.0)
        descend_at(
            theta, second, average, eta, bias, t, P, offset + tap, tap < TAPS, total, beta2, eps,
            ADAM, AVERAGE,
        )  # fmt: skip

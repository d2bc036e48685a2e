"""Triton kernels of the backward pass and the optimiser's step; layouts are those of
`fmrl.deep.kernels.forward`.
"""

try:
    import triton
    import triton.language as tl
except ImportError:  # so that the module can be imported where its kernels cannot run
    from types import SimpleNamespace

    triton, tl = SimpleNamespace(jit=lambda function: function), SimpleNamespace(constexpr=None)

from fmrl.deep.kernels.forward import _descend, patches


@triton.jit
def _parity(
    dy, before, weights, out, gamma, beta, rows, n, i0: tl.constexpr, j0: tl.constexpr,
    B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr,
    MC: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Gradient after the ReLU at input pixels (2i + i0, 2j + j0), written to ``out``; its sum, and
    its sum weighted by xhat.
    """
    HC: tl.constexpr = (H - i0 + 1) // 2
    WC: tl.constexpr = (H - j0 + 1) // 2
    # Taps (kh, kw) that reach these pixels: both of {0, 2}, or 1 alone, along each axis.
    KH: tl.constexpr = 2 - (i0 + PAD) % 2
    KW: tl.constexpr = 2 - (j0 + PAD) % 2
    b, h, w = rows // (HC * WC), 2 * ((rows % (HC * WC)) // WC) + i0, 2 * (rows % WC) + j0
    live = rows < B * HC * WC
    acc = tl.zeros((MC, NB), tl.float32)
    for j in range(KH * KW * (F // KB)):
        k = (j % (F // KB)) * KB + tl.arange(0, KB)
        which = j // (F // KB)
        kh, kw = 2 * (which // KW) + (2 - KH), 2 * (which % KW) + (2 - KW)
        # Even by the choice of taps; shifted by 2 so that no negative number is divided.
        oh, ow = (h + PAD - kh + 2) // 2 - 1, (w + PAD - kw + 2) // 2 - 1
        inside = (live & (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OH))[:, None]
        pixel = (b * (OH * OH) + oh * OH + ow) * F
        d = tl.load(dy + pixel[:, None] + k[None, :], mask=inside, other=0.0)
        weight = tl.load(weights + ((kh * 3 + kw) * F + n[None, :]) * F + k[:, None]).to(TYPE)
        acc = tl.dot(d, weight, acc, input_precision=PRECISION)
    at = (b * (H * H) + h * H + w)[:, None] * F + n[None, :]
    x = tl.load(before + at, mask=live[:, None], other=0.0).to(tl.float32)
    dz = tl.where(live[:, None] & (x * gamma[None, :] + beta[None, :] > 0), acc, 0.0)
    tl.store(out + at, dz.to(out.dtype.element_ty), mask=live[:, None])
    return tl.sum(dz, 0), tl.sum(dz * x, 0)


@triton.jit
def backward_data(
    dy, before, rstd, theta, out, small, P, offset, norms,
    B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr,
    MC: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, SB: tl.constexpr, LAYER: tl.constexpr, SMALL: tl.constexpr,
    PRECISION: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """From dy of a block to dy of the block before: transposed convolution, ReLU and batch norm
    backward. Grid (tasks, F/NB).

    With stride 2, input pixels of one parity all see the same taps, so the four parities are four
    dense products."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    dy += t * (B * OH * OH * F)
    before += t * (B * H * H * F)
    out += t * (B * H * H * F)
    theta += t * P
    gamma, beta = tl.load(theta + norms + n), tl.load(theta + norms + F + n)
    shifts, scales = tl.zeros((NB,), tl.float32), tl.zeros((NB,), tl.float32)
    rows = tl.arange(0, MC)
    for parity in tl.static_range(4):
        more, slope = _parity(
            dy,
            before,
            theta + offset,
            out,
            gamma,
            beta,
            rows,
            n,
            parity // 2,
            parity % 2,
            B,
            H,
            OH,
            PAD,
            F,
            MC,
            NB,
            KB,
            PRECISION,
            TYPE,
        )
        shifts += more
        scales += slope
    tl.store(small + t * SMALL + 2 * LAYER * F + n, scales)
    tl.store(small + t * SMALL + (2 * LAYER + 1) * F + n, shifts)
    tl.debug_barrier()  # what follows reads what this program wrote
    M: tl.constexpr = B * H * H
    slope = gamma * tl.load(rstd + t * F + n)
    for start in range(0, M, SB):
        r = start + tl.arange(0, SB)
        at = r[:, None] * F + n[None, :]
        live = (r < M)[:, None]
        x = tl.load(before + at, mask=live, other=0.0).to(tl.float32)
        dz = tl.load(out + at, mask=live, other=0.0).to(tl.float32)
        dx = slope[None, :] * (dz - (shifts / M)[None, :] - x * (scales / M)[None, :])
        tl.store(out + at, dx.to(out.dtype.element_ty), mask=live)


@triton.jit
def backward_weight(
    dy, before, theta, second, average, eta, bias, P, offset, beta2, eps,
    B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr,
    RB: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Gradient of one tap's [F, NB] weights, and the optimiser's step on them. Grid (tasks, 9,
    F/NB).
    """
    t, tap = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k, n = tl.arange(0, F), tl.program_id(2) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    dy += t * (M * F)
    before += t * (B * H * H * F)
    acc = tl.zeros((F, NB), tl.float32)
    for start in range(0, M, RB):
        rows = start + tl.arange(0, RB)
        live = rows < M
        b, oh, ow = rows // (OH * OH), (rows % (OH * OH)) // OH, rows % OH
        h, w = 2 * oh + tap // 3 - PAD, 2 * ow + tap % 3 - PAD
        inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < H)
        at = (b * (H * H) + h * H + w)[:, None] * F + k[None, :]
        a = tl.load(before + at, mask=inside[:, None], other=0.0)
        d = tl.load(dy + rows[:, None] * F + n[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(tl.trans(a), d, acc, input_precision=PRECISION)
    where = offset + (tap * F + k[:, None]) * F + n[None, :]
    rate, correction = tl.load(eta + t), tl.load(bias)
    _descend(
        theta + t * P,
        second + t * P,
        average + t * P,
        where,
        where >= 0,
        acc,
        rate,
        correction,
        beta2,
        eps,
        ADAM,
        AVERAGE,
    )


@triton.jit
def first_weight(
    images, index, dy, theta, second, average, eta, bias, P, offset, beta2, eps,
    B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, CIN: tl.constexpr, F: tl.constexpr,
    RB: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr,
    PRECISION: tl.constexpr, TYPE: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Gradient and optimiser step of the first block's 9·CIN taps. Grid (tasks, F/NB)."""
    t = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, KP), tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    dy += t * (M * F)
    acc = tl.zeros((KP, NB), tl.float32)
    for start in range(0, M, RB):
        rows = start + tl.arange(0, RB)
        x = patches(images, index, t, rows, k, B, H, OH, PAD, CIN).to(TYPE)
        d = tl.load(dy + rows[:, None] * F + n[None, :], mask=(rows < M)[:, None], other=0.0)
        acc = tl.dot(tl.trans(x), d, acc, input_precision=PRECISION)
    where = offset + k[:, None] * F + n[None, :]
    mask = (k < 9 * CIN)[:, None] & (n >= 0)[None, :]
    rate, correction = tl.load(eta + t), tl.load(bias)
    _descend(
        theta + t * P,
        second + t * P,
        average + t * P,
        where,
        mask,
        acc,
        rate,
        correction,
        beta2,
        eps,
        ADAM,
        AVERAGE,
    )


@triton.jit
def small_step(
    theta, second, average, small, eta, bias, P, beta2, eps,
    SMALL: tl.constexpr, SP: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Optimiser step on every gamma and beta, last of all because the backward pass reads them.
    Grid (tasks,).
    """
    t = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SP)
    grad = tl.load(small + t * SMALL + at, mask=at < SMALL)
    rate, correction = tl.load(eta + t), tl.load(bias)
    _descend(
        theta + t * P,
        second + t * P,
        average + t * P,
        at,
        at < SMALL,
        grad,
        rate,
        correction,
        beta2,
        eps,
        ADAM,
        AVERAGE,
    )

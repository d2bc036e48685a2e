"""Triton kernels of one fused inner step on a stack of tasks, each with its own weights.

Forward pass, dense layer, backward pass and optimiser. No patches are ever written to memory.

A block is [3x3 convolution with stride 2, batch norm on batch statistics, ReLU]. Stored between
blocks are the normalised value ``xhat`` and the activation a = relu(gamma·xhat + beta), which the
next block's products copy straight into shared memory. Every program sees all rows of its channels,
so batch statistics and their backward pass need no second launch, and the optimiser's step is taken
where a gradient is born.

Layouts, per task t: images by index, rows (sample, row, column), channels last: xhat, a and dy [t,
M, F]. Theta [t, P] is (gamma, beta) of every block, then convolutions as [tap, channel in, channel
out], then the dense layer as [in, out] and its bias."""

from fmrl.deep.kernels import tl, triton


@triton.jit
def _descend(
    theta, second, average, eta, bias, t, P, at, mask, grad, beta2, eps,
    ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """One optimiser step of task t at ``at``: SGD, or Adam with bias = sqrt(1 − beta2^count)."""
    theta += t * P
    second += t * P
    average += t * P
    rate, correction = tl.load(eta + t), tl.load(bias)
    w = tl.load(theta + at, mask=mask)
    if AVERAGE:
        tl.store(average + at, tl.load(average + at, mask=mask) + w, mask=mask)
    if ADAM:
        v = beta2 * tl.load(second + at, mask=mask) + (1 - beta2) * grad * grad
        tl.store(second + at, v, mask=mask)
        w -= rate * grad / (tl.sqrt(v) / correction + eps)
    else:
        w -= rate * grad
    tl.store(theta + at, w, mask=mask)


@triton.jit
def first_forward(
    images, index, theta, xhat, act, rstd, P, offset, norms, norm_eps, B: tl.constexpr,
    H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, CIN: tl.constexpr, F: tl.constexpr,
    RB: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """First block, from images by number; its product is cheaper done twice than kept.

    Grid (tasks, F/NB)."""
    t = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, KP), tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    at = theta + t * P + offset + k[:, None] * F + n[None, :]
    weight = tl.load(at, mask=(k < 9 * CIN)[:, None] & (n >= 0)[None, :], other=0.0)
    total, square = tl.zeros((NB,), tl.float32), tl.zeros((NB,), tl.float32)
    for start in range(0, M, RB):  # rows beyond M are zero
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


@triton.jit
def _normalise(
    acc, live, norms, xhat, act, rstd, rows, c, M: tl.constexpr, F: tl.constexpr, norm_eps,
    ACT: tl.constexpr,
):  # fmt: skip
    """Batch norm of all M rows of channels ``c``; norms: where this block's (gamma, beta) start."""
    mean = tl.sum(acc, 0) / M  # rows that are not live are zero
    centred = tl.where(live[:, None], acc - mean[None, :], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / M + norm_eps)
    x = centred * scale[None, :]
    at = rows[:, None] * F + c[None, :]
    tl.store(xhat + at, x.to(xhat.dtype.element_ty), mask=live[:, None])
    if ACT:
        z = x * tl.load(norms + c)[None, :] + tl.load(norms + F + c)[None, :]
        tl.store(act + at, tl.maximum(z, 0.0).to(act.dtype.element_ty), mask=live[:, None])
    tl.store(rstd + c, scale)


@triton.jit
def forward(
    before, theta, xhat, act, rstd, P, offset, norms, norm_eps, B: tl.constexpr, H: tl.constexpr,
    OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr, MB: tl.constexpr, NB: tl.constexpr,
    KB: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """A later block as an implicit matrix product over the nine taps. ``before``: activation of the
    block before. Grid (tasks, F/NB).
    """
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    rows = tl.arange(0, MB)
    live = rows < M
    b, oh, ow = rows // (OH * OH), (rows % (OH * OH)) // OH, rows % OH
    before += t * (B * H * H * F)
    theta += t * P
    acc = tl.zeros((MB, NB), tl.float32)
    for j in range(9 * (F // KB)):
        tap, k = j // (F // KB), (j % (F // KB)) * KB + tl.arange(0, KB)
        h, w = 2 * oh + tap // 3 - PAD, 2 * ow + tap % 3 - PAD
        inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < H)
        pixel = (b * (H * H) + h * H + w) * F
        a = tl.load(before + pixel[:, None] + k[None, :], mask=inside[:, None], other=0.0)
        weight = tl.load(theta + offset + (tap * F + k[:, None]) * F + n[None, :]).to(TYPE)
        acc = tl.dot(a, weight, acc, input_precision=PRECISION)
    _normalise(
        acc, live, theta + norms, xhat + t * M * F, act + t * M * F, rstd + t * F, rows, n, M, F,
        norm_eps, ACT,
    )  # fmt: skip


@triton.jit
def head(
    xhat, rstd, label, theta, second, average, loss, dy, small, eta, bias, P, offset, norms, beta2,
    eps, scale, B: tl.constexpr, HW: tl.constexpr, F: tl.constexpr, WAYS: tl.constexpr,
    BP: tl.constexpr, WP: tl.constexpr, LAYER: tl.constexpr, SMALL: tl.constexpr,
    PRECISION: tl.constexpr, TYPE: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Dense layer and softmax cross-entropy, forward, back and step; the last batch norm, back."""
    t = tl.program_id(0).to(tl.int64)
    K: tl.constexpr = HW * F
    b, k, o = tl.arange(0, BP), tl.arange(0, K), tl.arange(0, WP)
    own = theta + t * P
    gamma, beta = tl.load(own + norms + k % F), tl.load(own + norms + F + k % F)
    at = t * (B * K) + b[:, None] * K + k[None, :]
    live = b[:, None] < B
    x = tl.load(xhat + at, mask=live, other=0.0).to(tl.float32)
    z = x * gamma[None, :] + beta[None, :]
    a = tl.where(live, tl.maximum(z, 0.0), 0.0)
    where = offset + k[:, None] * WAYS + o[None, :]
    known = (o < WAYS)[None, :]
    weight = tl.load(own + where, mask=known, other=0.0)
    shift = tl.load(own + offset + K * WAYS + o, mask=o < WAYS, other=0.0)
    logits = tl.dot(a.to(TYPE), weight.to(TYPE), input_precision=PRECISION) + shift[None, :]
    logits = tl.where(known, logits, -float("inf"))
    logits = logits - tl.max(logits, 1)[:, None]
    total = tl.sum(tl.exp(logits), 1)
    y = tl.load(label + t * B + b, mask=b < B, other=0)
    hit = (o[None, :] == y[:, None]) & live
    tl.store(loss + t, tl.sum(tl.where(live & hit, tl.log(total)[:, None] - logits, 0.0)) * scale)
    d = tl.where(live, tl.exp(logits) / total[:, None], 0.0)
    d = (d - tl.where(hit, 1.0, 0.0)) * scale
    da = tl.dot(d.to(TYPE), tl.trans(weight).to(TYPE), input_precision=PRECISION)
    dw = tl.dot(tl.trans(a).to(TYPE), d.to(TYPE), input_precision=PRECISION)
    every = known & (k[:, None] < K)
    _descend(theta, second, average, eta, bias, t, P, where, every, dw, beta2, eps, ADAM, AVERAGE)
    _descend(
        theta, second, average, eta, bias, t, P, offset + K * WAYS + o, o < WAYS, tl.sum(d, 0),
        beta2, eps, ADAM, AVERAGE,
    )  # fmt: skip
    # Rows (sample, position) of the last block: its batch norm sees HW·B of them.
    dz = tl.reshape(tl.where((z > 0) & live, da, 0.0), (BP * HW, F))
    x = tl.reshape(x, (BP * HW, F))
    c = tl.arange(0, F)
    shifts, scales = tl.sum(dz, 0), tl.sum(dz * x, 0)
    tl.store(small + t * SMALL + 2 * LAYER * F + c, scales)
    tl.store(small + t * SMALL + (2 * LAYER + 1) * F + c, shifts)
    slope = tl.load(own + norms + c) * tl.load(rstd + t * F + c)
    M: tl.constexpr = B * HW
    dx = slope[None, :] * (dz - (shifts / M)[None, :] - x * (scales / M)[None, :])
    row = tl.arange(0, BP * HW)
    out = dy + t * (B * K) + row[:, None] * F + c[None, :]
    tl.store(out, dx.to(dy.dtype.element_ty), mask=row[:, None] < M)


@triton.jit
def _parity(
    dy, before, weights, out, gamma, beta, rows, n, i0: tl.constexpr, j0: tl.constexpr,
    B: tl.constexpr, H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr,
    MC: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, PRECISION: tl.constexpr,
    TYPE: tl.constexpr,
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
    dy, before, rstd, theta, out, small, P, offset, norms, B: tl.constexpr, H: tl.constexpr,
    OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr, MC: tl.constexpr, NB: tl.constexpr,
    KB: tl.constexpr, SB: tl.constexpr, LAYER: tl.constexpr, SMALL: tl.constexpr,
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
            dy, before, theta + offset, out, gamma, beta, rows, n, parity // 2, parity % 2, B, H,
            OH, PAD, F, MC, NB, KB, PRECISION, TYPE,
        )  # fmt: skip
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
    dy, before, theta, second, average, eta, bias, P, offset, beta2, eps, B: tl.constexpr,
    H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr, RB: tl.constexpr,
    NB: tl.constexpr, PRECISION: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
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
    _descend(
        theta, second, average, eta, bias, t, P, where, where >= 0, acc, beta2, eps, ADAM, AVERAGE
    )


@triton.jit
def first_weight(
    images, index, dy, theta, second, average, eta, bias, P, offset, beta2, eps, B: tl.constexpr,
    H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, CIN: tl.constexpr, F: tl.constexpr,
    RB: tl.constexpr, KP: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr,
    TYPE: tl.constexpr, ADAM: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Gradient and optimiser step of the first block's 9·CIN taps. Grid (tasks, F/NB)."""
    t = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, KP), tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    dy += t * (M * F)
    acc = tl.zeros((KP, NB), tl.float32)
    for start in range(0, M, RB):
        rows = start + tl.arange(0, RB)
        x = _patches(images, index, t, rows, k, B, H, OH, PAD, CIN).to(TYPE)
        d = tl.load(dy + rows[:, None] * F + n[None, :], mask=(rows < M)[:, None], other=0.0)
        acc = tl.dot(tl.trans(x), d, acc, input_precision=PRECISION)
    where = offset + k[:, None] * F + n[None, :]
    mask = (k < 9 * CIN)[:, None] & (n >= 0)[None, :]
    _descend(theta, second, average, eta, bias, t, P, where, mask, acc, beta2, eps, ADAM, AVERAGE)


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
    _descend(
        theta, second, average, eta, bias, t, P, at, at < SMALL, grad, beta2, eps, ADAM, AVERAGE
    )

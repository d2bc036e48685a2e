"""Triton kernels of one fused inner step on a stack of tasks, each with its own weights.

Forward pass, dense layer, backward pass and optimiser. No patches are ever written to memory.

A block is [3x3 convolution with stride 2, batch norm on batch statistics, ReLU]. Stored between
blocks are the normalised value ``xhat`` and the activation a = relu(gamma·xhat + beta), which the
next block's products copy straight into shared memory. Every program sees all rows of its channels,
so batch statistics and their backward pass need no second launch, unless few tasks are SPLIT among
programs. The optimiser's step is taken where a gradient is born.

Layouts, per task t: images by index, rows (sample, row, column), channels last: xhat, a and dy [t,
M, F]. Theta [t, P] is (gamma, beta) of every block, then convolutions as [tap, channel in, channel
out], then the dense layer as [in, out] and its bias."""

from fmrl.deep.kernels import stepped, tl, triton


@triton.jit
def descend_at(
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
def leave(
    acc, raw, sums, rows, live, c, M: tl.constexpr, MB: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Leave MB of a block's M rows for `normalise`, with their mean and squared deviations."""
    part = tl.program_id(2)
    mean = tl.sum(acc, 0) / tl.minimum(MB, M - part * MB)  # rows that are not live are zero
    off = tl.where(live[:, None], acc - mean[None, :], 0.0)
    tl.store(raw + rows[:, None] * F + c[None, :], acc, mask=live[:, None])
    tl.store(sums + 2 * part * F + c, mean)
    tl.store(sums + (2 * part + 1) * F + c, tl.sum(off * off, 0))


@triton.jit
def normalise(
    raw, sums, theta, xhat, act, rstd, P, norms, norm_eps, M: tl.constexpr, F: tl.constexpr,
    MB: tl.constexpr, SB: tl.constexpr, NB: tl.constexpr, ACT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Batch norm and ReLU of SB of the M rows that `leave` left. Grid (tasks, F/NB, M/SB)."""
    t = tl.program_id(0).to(tl.int64)
    c, rows = tl.program_id(1) * NB + tl.arange(0, NB), tl.program_id(2) * SB + tl.arange(0, SB)
    sums += t * SUMS
    mean, square = tl.zeros((NB,), tl.float32), tl.zeros((NB,), tl.float32)
    for part in range((M + MB - 1) // MB):
        mean += tl.load(sums + 2 * part * F + c) * tl.minimum(MB, M - part * MB) / M
    for part in range((M + MB - 1) // MB):
        off = tl.load(sums + 2 * part * F + c) - mean
        square += tl.load(sums + (2 * part + 1) * F + c)
        square += off * off * tl.minimum(MB, M - part * MB)
    scale = 1.0 / tl.sqrt(square / M + norm_eps)
    at, live = t * (M * F) + rows[:, None] * F + c[None, :], (rows < M)[:, None]
    x = (tl.load(raw + at, mask=live, other=0.0) - mean[None, :]) * scale[None, :]
    tl.store(xhat + at, x.to(xhat.dtype.element_ty), mask=live)
    if ACT:
        own = theta + t * P + norms
        z = x * tl.load(own + c)[None, :] + tl.load(own + F + c)[None, :]
        tl.store(act + at, tl.maximum(z, 0.0).to(act.dtype.element_ty), mask=live)
    tl.store(rstd + t * F + c, scale)


@triton.jit
def forward(
    before, theta, xhat, act, rstd, raw, sums, P, offset, norms, norm_eps, B: tl.constexpr,
    H: tl.constexpr, OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr, MB: tl.constexpr,
    NB: tl.constexpr, KB: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr,
    ACT: tl.constexpr, SPLIT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """A later block as an implicit matrix product over the nine taps. ``before``: activation of the
    block before. Grid (tasks, F/NB, 1); with SPLIT (tasks, F/NB, M/MB), and `normalise` follows.
    """
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    M: tl.constexpr = B * OH * OH
    rows = tl.program_id(2) * MB + tl.arange(0, MB)
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
    if SPLIT:
        leave(acc, raw + t * M * F, sums + t * SUMS, rows, live, n, M, MB, F)
    else:
        _normalise(
            acc, live, theta + norms, xhat + t * M * F, act + t * M * F, rstd + t * F, rows, n, M,
            F, norm_eps, ACT,
        )  # fmt: skip


@stepped
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
    descend_at(theta, second, average, eta, bias, t, P, where, every, dw, beta2, eps, ADAM, AVERAGE)
    descend_at(
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
def _through_norm(
    dy, before, slope, shifts, scales, start, n, M: tl.constexpr, F: tl.constexpr, SB: tl.constexpr
):
    """Rows from ``start`` of a gradient after the ReLU, taken back through batch norm in place."""
    r = start + tl.arange(0, SB)
    at, live = r[:, None] * F + n[None, :], (r < M)[:, None]
    x = tl.load(before + at, mask=live, other=0.0).to(tl.float32)
    dz = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
    dx = slope[None, :] * (dz - (shifts / M)[None, :] - x * (scales / M)[None, :])
    tl.store(dy + at, dx.to(dy.dtype.element_ty), mask=live)


@triton.jit
def backward_data(
    dy, before, rstd, theta, out, small, sums, P, offset, norms, B: tl.constexpr, H: tl.constexpr,
    OH: tl.constexpr, PAD: tl.constexpr, F: tl.constexpr, MC: tl.constexpr, NB: tl.constexpr,
    KB: tl.constexpr, SB: tl.constexpr, LAYER: tl.constexpr, SMALL: tl.constexpr,
    PRECISION: tl.constexpr, TYPE: tl.constexpr, SPLIT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """From dy of a block to dy of the block before: transposed convolution, ReLU and batch norm
    backward.

    With stride 2, input pixels of one parity all see the same taps, so the four parities are four
    dense products. Grid (tasks, F/NB, 1); with SPLIT a program does MC rows of one parity up to the
    ReLU, grid (tasks, F/NB, 4·parts), and `normalise_back` follows."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    dy += t * (B * OH * OH * F)
    before += t * (B * H * H * F)
    out += t * (B * H * H * F)
    theta += t * P
    gamma, beta = tl.load(theta + norms + n), tl.load(theta + norms + F + n)
    shifts, scales = tl.zeros((NB,), tl.float32), tl.zeros((NB,), tl.float32)
    rows = tl.program_id(2) // 4 * MC + tl.arange(0, MC)
    for parity in tl.static_range(4):
        mine = tl.program_id(2) % 4 if SPLIT else parity
        if mine == parity:
            more, slope = _parity(
                dy, before, theta + offset, out, gamma, beta, rows, n, parity // 2, parity % 2, B,
                H, OH, PAD, F, MC, NB, KB, PRECISION, TYPE,
            )  # fmt: skip
            shifts += more
            scales += slope
    if SPLIT:
        sums += t * SUMS + 2 * tl.program_id(2) * F
        tl.store(sums + n, shifts)
        tl.store(sums + F + n, scales)
    else:
        tl.store(small + t * SMALL + 2 * LAYER * F + n, scales)
        tl.store(small + t * SMALL + (2 * LAYER + 1) * F + n, shifts)
        tl.debug_barrier()  # what follows reads what this program wrote
        M: tl.constexpr = B * H * H
        slope = gamma * tl.load(rstd + t * F + n)
        for start in range(0, M, SB):
            _through_norm(out, before, slope, shifts, scales, start, n, M, F, SB)


@triton.jit
def normalise_back(
    before, rstd, theta, out, small, sums, P, norms, PARTS: tl.constexpr, M: tl.constexpr,
    F: tl.constexpr, NB: tl.constexpr, SB: tl.constexpr, LAYER: tl.constexpr,
    SMALL: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """The end of a split `backward_data`: SB rows of its batch norm. Grid (tasks, F/NB, M/SB)."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NB + tl.arange(0, NB)
    shifts, scales = tl.zeros((NB,), tl.float32), tl.zeros((NB,), tl.float32)
    for part in range(PARTS):
        shifts += tl.load(sums + t * SUMS + 2 * part * F + n)
        scales += tl.load(sums + t * SUMS + (2 * part + 1) * F + n)
    tl.store(small + t * SMALL + 2 * LAYER * F + n, scales)
    tl.store(small + t * SMALL + (2 * LAYER + 1) * F + n, shifts)
    slope = tl.load(theta + t * P + norms + n) * tl.load(rstd + t * F + n)
    out, before = out + t * (M * F), before + t * (M * F)
    _through_norm(out, before, slope, shifts, scales, tl.program_id(2) * SB, n, M, F, SB)


@stepped
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
    descend_at(
        theta, second, average, eta, bias, t, P, where, where >= 0, acc, beta2, eps, ADAM, AVERAGE
    )

"""Triton kernels of a stack of networks of pooled blocks.

A block is [3x3 convolution, batch norm on batch statistics, 2x2 max-pool, ReLU]. Images are too
large for one program to see all rows of a channel, so every launch is cut into tiles of rows, and
what batch norm must know of all rows is left as sums of tiles, added up between launches in a fixed
order: results do not depend on timing.

Layouts, per task t: channels last; y [t, B·H·H, F] is a convolution's output, whose memory dy takes
on the way back; the pooled activation a and its gradient da are [t, B·Q·Q, F] with Q = ceil(H/2).
Which of four pixels won is found again from y."""

from fmrl.deep.kernels import tl, triton


@triton.jit
def _shifted(image, rows, live, dh, dw, c, H: tl.constexpr, C: tl.constexpr):
    """Pixels (dh, dw) away from those of ``rows``, zero outside: [rows, C]."""
    h, w = (rows % (H * H)) // H + dh, rows % H + dw
    inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < H)
    at = (rows + dh * H + dw)[:, None] * C + c[None, :]
    return tl.load(image + at, mask=inside[:, None], other=0.0)


@triton.jit
def _patches(image, rows, live, k, H: tl.constexpr, C: tl.constexpr):
    """All nine taps of few channels at once: [rows, k], zero beyond 9·C."""
    tap, c = k // C, k % C
    dh, dw = tap // 3 - 1, tap % 3 - 1
    h, w = ((rows % (H * H)) // H)[:, None] + dh[None, :], (rows % H)[:, None] + dw[None, :]
    inside = live[:, None] & (k < 9 * C)[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < H)
    at = (rows[:, None] + (dh * H + dw)[None, :]) * C + c[None, :]
    return tl.load(image + at, mask=inside, other=0)


@triton.jit
def convolve(
    before, theta, y, part, P, offset, M, tiles,
    H: tl.constexpr, C: tl.constexpr, F: tl.constexpr, KP: tl.constexpr, RB: tl.constexpr,
    FIRST: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y, and the sums of y and y² of this tile. Grid (tasks, tiles)."""
    t, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, n = tile * RB + tl.arange(0, RB), tl.arange(0, F)
    live = rows < M
    before += t * M * C
    weights = theta + t * P + offset
    if FIRST:
        k = tl.arange(0, KP)
        known = (k < 9 * C)[:, None] & (n >= 0)[None, :]
        weight = tl.load(weights + k[:, None] * F + n[None, :], mask=known, other=0.0).to(TYPE)
        a = _patches(before, rows, live, k, H, C).to(TYPE)
        acc = tl.dot(a, weight, input_precision=PRECISION)
    else:
        acc = tl.zeros((RB, F), tl.float32)
        c = tl.arange(0, C)
        for tap in range(9):
            a = _shifted(before, rows, live, tap // 3 - 1, tap % 3 - 1, c, H, C)
            weight = tl.load(weights + (tap * C + c[:, None]) * F + n[None, :]).to(TYPE)
            acc = tl.dot(a, weight, acc, input_precision=PRECISION)
    at = y + t * M * F + rows[:, None] * F + n[None, :]
    tl.store(at, acc.to(y.dtype.element_ty), mask=live[:, None])
    out = part + (t * tiles + tile) * (2 * F) + n
    tl.store(out, tl.sum(acc, 0))
    tl.store(out + F, tl.sum(acc * acc, 0))


@triton.jit
def _norm(theta, sums, M, norms, eps, n, F: tl.constexpr):
    """(mean, r, gamma, beta) of batch norm; sums [2, F] of y and y² over all M rows."""
    mean = tl.load(sums + n) / M
    spread = tl.maximum(tl.load(sums + F + n) / M - mean * mean, 0.0)
    gamma, beta = tl.load(theta + norms + n), tl.load(theta + norms + F + n)
    return mean, 1.0 / tl.sqrt(spread + eps), gamma, beta


@triton.jit
def _corner(
    y, rows, live, i: tl.constexpr, j: tl.constexpr, n, H: tl.constexpr, Q: tl.constexpr,
    F: tl.constexpr,
):  # fmt: skip
    """Pixel (i, j) of the four that pooled ``rows`` look at: where it lies, whether it exists, and
    y there.
    """
    b, h, w = rows // (Q * Q), 2 * ((rows % (Q * Q)) // Q) + i, 2 * (rows % Q) + j
    there = (live & (h < H) & (w < H))[:, None] & (n >= 0)[None, :]
    at = (b * (H * H) + h * H + w)[:, None] * F + n[None, :]
    return at, there, tl.load(y + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _better(best, which, x, there, gamma, beta, number: tl.constexpr):
    """The larger of ``best`` and this pixel's gamma·x + beta; the first of equals stays."""
    z = tl.where(there, x * gamma[None, :] + beta[None, :], -float("inf"))
    return tl.maximum(best, z), tl.where(z > best, number, which)


@triton.jit
def _four(
    y, theta, sums, M, norms, eps, rows, live, n,
    H: tl.constexpr, Q: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """xhat of the four pixels, where they lie and exist, the largest gamma·xhat + beta and whose it
    is; gamma·r.
    """
    mean, r, gamma, beta = _norm(theta, sums, M, norms, eps, n, F)
    at0, on0, x0 = _corner(y, rows, live, 0, 0, n, H, Q, F)
    at1, on1, x1 = _corner(y, rows, live, 0, 1, n, H, Q, F)
    at2, on2, x2 = _corner(y, rows, live, 1, 0, n, H, Q, F)
    at3, on3, x3 = _corner(y, rows, live, 1, 1, n, H, Q, F)
    mean, scale = mean[None, :], r[None, :]
    x0, x1 = (x0 - mean) * scale, (x1 - mean) * scale
    x2, x3 = (x2 - mean) * scale, (x3 - mean) * scale
    best, which = x0 * gamma[None, :] + beta[None, :], tl.zeros_like(x0).to(tl.int32)
    best, which = _better(best, which, x1, on1, gamma, beta, 1)
    best, which = _better(best, which, x2, on2, gamma, beta, 2)
    best, which = _better(best, which, x3, on3, gamma, beta, 3)
    return x0, x1, x2, x3, at0, at1, at2, at3, on0, on1, on2, on3, best, which, gamma * r


@triton.jit
def _upstream(da, best, rows, live, n, F: tl.constexpr):
    """dz, the gradient at gamma·xhat + beta: that of the activation where it is above zero."""
    d = tl.load(da + rows[:, None] * F + n[None, :], mask=live[:, None], other=0.0)
    return tl.where(best > 0, d.to(tl.float32), 0.0)


@triton.jit
def pool(
    y, theta, sums, act, P, M, N, norms, eps,
    H: tl.constexpr, Q: tl.constexpr, F: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """The activation relu(max of four gamma·xhat + beta), N = B·Q·Q rows of it. Grid (tasks,
    tiles).
    """
    t = tl.program_id(0).to(tl.int64)
    rows, n = tl.program_id(1) * RB + tl.arange(0, RB), tl.arange(0, F)
    live = rows < N
    found = _four(
        y + t * M * F, theta + t * P, sums + t * (2 * F), M, norms, eps, rows, live, n, H, Q, F
    )
    out = act + t * N * F + rows[:, None] * F + n[None, :]
    tl.store(out, tl.maximum(found[12], 0.0).to(act.dtype.element_ty), mask=live[:, None])


@triton.jit
def unpool_sums(
    y, theta, sums, da, part, P, M, N, norms, eps, tiles,
    H: tl.constexpr, Q: tl.constexpr, F: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """With dz the gradient at gamma·xhat + beta, which only winners above zero have: the tile's
    sums of dz and dz·xhat.
    """
    t, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, n = tile * RB + tl.arange(0, RB), tl.arange(0, F)
    live = rows < N
    x0, x1, x2, x3, _, _, _, _, _, _, _, _, best, which, _ = _four(
        y + t * M * F, theta + t * P, sums + t * (2 * F), M, norms, eps, rows, live, n, H, Q, F
    )
    dz = _upstream(da + t * N * F, best, rows, live, n, F)
    x = tl.where(which == 0, x0, tl.where(which == 1, x1, tl.where(which == 2, x2, x3)))
    out = part + (t * tiles + tile) * (2 * F) + n
    tl.store(out, tl.sum(dz, 0))
    tl.store(out + F, tl.sum(dz * x, 0))


@triton.jit
def unpool(
    y, dy, theta, sums, back, da, P, M, N, norms, eps,
    H: tl.constexpr, Q: tl.constexpr, F: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """dy = gamma·r·(dz − mean(dz) − xhat·mean(dz·xhat)) in the memory of y; back [2, F] are the
    sums of dz and dz·xhat.
    """
    t = tl.program_id(0).to(tl.int64)
    rows, n = tl.program_id(1) * RB + tl.arange(0, RB), tl.arange(0, F)
    live = rows < N
    y, dy = y + t * M * F, dy + t * M * F
    x0, x1, x2, x3, at0, at1, at2, at3, on0, on1, on2, on3, best, which, slope = _four(
        y, theta + t * P, sums + t * (2 * F), M, norms, eps, rows, live, n, H, Q, F
    )
    dz = _upstream(da + t * N * F, best, rows, live, n, F)
    back += t * (2 * F)
    shift, bend = (tl.load(back + n) / M)[None, :], (tl.load(back + F + n) / M)[None, :]
    slope = slope[None, :]
    d0 = slope * (tl.where(which == 0, dz, 0.0) - shift - x0 * bend)
    d1 = slope * (tl.where(which == 1, dz, 0.0) - shift - x1 * bend)
    d2 = slope * (tl.where(which == 2, dz, 0.0) - shift - x2 * bend)
    d3 = slope * (tl.where(which == 3, dz, 0.0) - shift - x3 * bend)
    kind = dy.dtype.element_ty
    tl.debug_barrier()  # everyone has read y
    tl.store(dy + at0, d0.to(kind), mask=on0)
    tl.store(dy + at1, d1.to(kind), mask=on1)
    tl.store(dy + at2, d2.to(kind), mask=on2)
    tl.store(dy + at3, d3.to(kind), mask=on3)


@triton.jit
def weigh(
    dy, before, grad, P, offset, M, splits, LENGTH: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    F: tl.constexpr, KP: tl.constexpr, RB: tl.constexpr, FIRST: tl.constexpr, TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one tap's weights (FIRST: of all taps) over one stretch of LENGTH rows. Grid
    (tasks, splits, taps).
    """
    t, split, tap = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    n, k = tl.arange(0, F), tl.arange(0, KP)
    dy += t * M * F
    before += t * M * C
    acc = tl.zeros((KP, F), tl.float32)
    for start in range(0, LENGTH, RB):
        rows = split * LENGTH + start + tl.arange(0, RB)
        live = rows < M
        if FIRST:
            a = _patches(before, rows, live, k, H, C).to(TYPE)
        else:
            a = _shifted(before, rows, live, tap // 3 - 1, tap % 3 - 1, k, H, C).to(TYPE)
        d = tl.load(dy + rows[:, None] * F + n[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(tl.trans(a), d, acc, input_precision=PRECISION)
    out = grad + (t * splits + split) * P + offset + (tap * C + k[:, None]) * F + n[None, :]
    tl.store(out, acc, mask=(k[:, None] < (9 * C if FIRST else C)) & (n >= 0)[None, :])


@triton.jit
def back(
    dy, theta, da, P, offset, M, H: tl.constexpr, C: tl.constexpr, F: tl.constexpr,
    RB: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient at a block's input: the taps turned round, the weights transposed. Grid (tasks,
    tiles).
    """
    t = tl.program_id(0).to(tl.int64)
    rows, c, k = tl.program_id(1) * RB + tl.arange(0, RB), tl.arange(0, C), tl.arange(0, F)
    live = rows < M
    weights = theta + t * P + offset
    acc = tl.zeros((RB, C), tl.float32)
    for tap in range(9):
        d = _shifted(dy + t * M * F, rows, live, 1 - tap // 3, 1 - tap % 3, k, H, F)
        weight = tl.load(weights + (tap * C + c[None, :]) * F + k[:, None]).to(TYPE)
        acc = tl.dot(d, weight, acc, input_precision=PRECISION)
    out = da + t * M * C + rows[:, None] * C + c[None, :]
    tl.store(out, acc.to(da.dtype.element_ty), mask=live[:, None])


@triton.jit
def classify(
    act, label, theta, grad, loss, da, P, splits, offset, scale, B: tl.constexpr, K: tl.constexpr,
    WAYS: tl.constexpr, BP: tl.constexpr, WP: tl.constexpr, KB: tl.constexpr, TYPE: tl.constexpr,
    BACK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Dense layer and softmax cross-entropy, forward and back. Grid (tasks,)."""
    t = tl.program_id(0).to(tl.int64)
    b, o = tl.arange(0, BP), tl.arange(0, WP)
    act += t * (B * K)
    weights = theta + t * P + offset
    known, live = (o < WAYS)[None, :], (b < B)[:, None]
    logits = tl.zeros((BP, WP), tl.float32)
    for start in range(0, K, KB):
        k = start + tl.arange(0, KB)
        a = tl.load(act + b[:, None] * K + k[None, :], mask=live & (k < K)[None, :], other=0.0)
        mask = known & (k < K)[:, None]
        weight = tl.load(weights + k[:, None] * WAYS + o[None, :], mask=mask, other=0.0)
        logits = tl.dot(a, weight.to(TYPE), logits, input_precision=PRECISION)
    logits += tl.load(weights + K * WAYS + o, mask=o < WAYS, other=0.0)[None, :]
    logits = tl.where(known, logits, -float("inf"))
    logits = logits - tl.max(logits, 1)[:, None]
    total = tl.sum(tl.exp(logits), 1)
    y = tl.load(label + t * B + b, mask=b < B, other=0)
    hit = (o[None, :] == y[:, None]) & live
    tl.store(loss + t, tl.sum(tl.where(hit, tl.log(total)[:, None] - logits, 0.0)) * scale)
    d = (tl.where(live, tl.exp(logits) / total[:, None], 0.0) - tl.where(hit, 1.0, 0.0)) * scale
    grad += t * splits * P + offset
    tl.store(grad + K * WAYS + o, tl.sum(d, 0), mask=o < WAYS)
    for start in range(0, K, KB):
        k = start + tl.arange(0, KB)
        a = tl.load(act + b[:, None] * K + k[None, :], mask=live & (k < K)[None, :], other=0.0)
        mask = known & (k < K)[:, None]
        weight = tl.load(weights + k[:, None] * WAYS + o[None, :], mask=mask, other=0.0)
        dw = tl.dot(tl.trans(a).to(BACK), d.to(BACK), input_precision=PRECISION)
        tl.store(grad + k[:, None] * WAYS + o[None, :], dw, mask=mask)
        out = tl.dot(d.to(BACK), tl.trans(weight).to(BACK), input_precision=PRECISION)
        at = da + t * (B * K) + b[:, None] * K + k[None, :]
        tl.store(at, out.to(da.dtype.element_ty), mask=live & (k < K)[None, :])

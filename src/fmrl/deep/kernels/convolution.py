"""Convolutions of a stack of tasks as implicit matrix products: no patches are written to memory.

Per task t: activations [C, B, H, W], weights [O, C, KH, KW] that may lie apart in memory.
"""

from fmrl.deep.kernels import tl, triton


@triton.jit
def gather(
    source, weight, out, tasks_apart, outs_apart, ins_apart, CI, CO, B, H, W, OH, OW, TOP, LEFT,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr,
    DW: tl.constexpr, BACK: tl.constexpr, MB: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out [CO, B, OH, OW] from source [CI, B, H, W].

    Forward, pixel (i, j) of the output sees (i·SH + kh·DH − TOP, …) of the source. BACK is the
    gradient of that: then the output is the convolution's input, and it sees the pixels that it
    reached. Grid (tasks, pixels / MB, CO / NB)."""
    t = tl.program_id(0).to(tl.int64)
    m, n = tl.program_id(1) * MB + tl.arange(0, MB), tl.program_id(2) * NB + tl.arange(0, NB)
    M = B * OH * OW
    live = m < M
    b, i, j = m // (OH * OW), (m // OW) % OH, m % OW
    source += t * CI * B * H * W
    weight += t * tasks_apart
    acc = tl.zeros((NB, MB), tl.float32)
    for step in range(tl.cdiv(CI, KB) * (KH * KW)):
        k, tap = (step // (KH * KW)) * KB + tl.arange(0, KB), step % (KH * KW)
        kh, kw = tap // KW, tap % KW
        if BACK:
            down, across = i + TOP - kh * DH, j + LEFT - kw * DW
            h, w = down // SH, across // SW
            inside = live & (down >= 0) & (across >= 0) & (down % SH == 0) & (across % SW == 0)
            inside = inside & (h < H) & (w < W)
        else:
            h, w = i * SH + kh * DH - TOP, j * SW + kw * DW - LEFT
            inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        at = k[:, None] * (B * H * W) + (b * (H * W) + h * W + w)[None, :]
        x = tl.load(source + at, mask=(k < CI)[:, None] & inside[None, :], other=0.0)
        at = n[:, None] * outs_apart + k[None, :] * ins_apart + tap
        own = tl.load(weight + at, mask=(n < CO)[:, None] & (k < CI)[None, :], other=0.0)
        acc = tl.dot(own, x, acc, input_precision=PRECISION)
    at = t * CO * M + n[:, None] * M + m[None, :]
    tl.store(out + at, acc, mask=(n < CO)[:, None] & live[None, :])


@triton.jit
def correlate(
    source, slope, out, CI, CO, B, H, W, OH, OW, TOP, LEFT, COLUMNS, KH: tl.constexpr,
    KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    MB: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient [CO, CI, KH, KW] of the weights, from inputs [CI, B, H, W] and the gradient of the
    outputs [CO, B, OH, OW]. Grid (tasks, taps, CO / NB · COLUMNS), COLUMNS = CI / KB."""
    t, tap = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = (tl.program_id(2) // COLUMNS) * NB + tl.arange(0, NB)
    k = (tl.program_id(2) % COLUMNS) * KB + tl.arange(0, KB)
    kh, kw = tap // KW, tap % KW
    M = B * OH * OW
    source += t * CI * B * H * W
    slope += t * CO * M
    acc = tl.zeros((NB, KB), tl.float32)
    for start in range(0, M, MB):
        m = start + tl.arange(0, MB)
        live = m < M
        b, i, j = m // (OH * OW), (m // OW) % OH, m % OW
        h, w = i * SH + kh * DH - TOP, j * SW + kw * DW - LEFT
        inside = live & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        at = (b * (H * W) + h * W + w)[:, None] + k[None, :] * (B * H * W)
        x = tl.load(source + at, mask=inside[:, None] & (k < CI)[None, :], other=0.0)
        at = n[:, None] * M + m[None, :]
        d = tl.load(slope + at, mask=(n < CO)[:, None] & live[None, :], other=0.0)
        acc = tl.dot(d, x, acc, input_precision=PRECISION)
    at = ((t * CO + n[:, None]) * CI + k[None, :]) * (KH * KW) + tap
    tl.store(out + at, acc, mask=(n < CO)[:, None] & (k < CI)[None, :])

"""One step of an LSTM for a stack of tasks: what is done number by number, forward and back.

Per task: gates, work and dgates [S, B, 4H] in torch's order (in, forget, cell, out), y and dy [S,
B, H], cells [S + 1, B, H], back [B, 4H], dh and dc [B, H]."""

from fmrl.deep.kernels import tl, triton

BLOCK = 256


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def lstm_cell(gates, back, cells, work, y, s, S, B, H, BLOCK: tl.constexpr):
    """Step s: cells[s + 1], y[s] and the gates after activation. Grid (tasks, B·H / BLOCK)."""
    t, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live, b, k = i < B * H, i // H, i % H
    at = (t * S + s) * B * 4 * H + b * 4 * H + k
    own = t * B * 4 * H + b * 4 * H + k
    into = tl.sigmoid(tl.load(gates + at, mask=live) + tl.load(back + own, mask=live))
    at1, at2, at3 = at + H, at + 2 * H, at + 3 * H
    forget = tl.load(gates + at1, mask=live) + tl.load(back + own + H, mask=live)
    cell = tl.load(gates + at2, mask=live) + tl.load(back + own + 2 * H, mask=live)
    out = tl.load(gates + at3, mask=live) + tl.load(back + own + 3 * H, mask=live)
    forget, cell, out = tl.sigmoid(forget), _tanh(cell), tl.sigmoid(out)
    before = t * (S + 1) * B * H + s * B * H + i
    c = forget * tl.load(cells + before, mask=live) + into * cell
    tl.store(cells + before + B * H, c, mask=live)
    tl.store(y + (t * S + s) * B * H + i, out * _tanh(c), mask=live)
    tl.store(work + at, into, mask=live)
    tl.store(work + at1, forget, mask=live)
    tl.store(work + at2, cell, mask=live)
    tl.store(work + at3, out, mask=live)


@triton.jit
def lstm_cell_back(dh, dy, dc, cells, work, dgates, s, S, B, H, BLOCK: tl.constexpr):
    """Gradients of step s: dgates[s], and dc moved from after the step to before it."""
    t, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live, b, k = i < B * H, i // H, i % H
    at = (t * S + s) * B * 4 * H + b * 4 * H + k
    at1, at2, at3 = at + H, at + 2 * H, at + 3 * H
    into, forget = tl.load(work + at, mask=live), tl.load(work + at1, mask=live)
    cell, out = tl.load(work + at2, mask=live), tl.load(work + at3, mask=live)
    here, before = t * B * H + i, t * (S + 1) * B * H + s * B * H + i
    d = tl.load(dh + here, mask=live) + tl.load(dy + (t * S + s) * B * H + i, mask=live)
    c = _tanh(tl.load(cells + before + B * H, mask=live))
    slope = tl.load(dc + here, mask=live) + d * out * (1 - c * c)
    tl.store(dgates + at, slope * cell * into * (1 - into), mask=live)
    old = tl.load(cells + before, mask=live)
    tl.store(dgates + at1, slope * old * forget * (1 - forget), mask=live)
    tl.store(dgates + at2, slope * into * (1 - cell * cell), mask=live)
    tl.store(dgates + at3, d * c * out * (1 - out), mask=live)
    tl.store(dc + here, slope * forget, mask=live)

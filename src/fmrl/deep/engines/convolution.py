"""Convolutions of a stack of tasks, each with its own weights.

On CUDA in float32 by kernels that write no patches, elsewhere as batched products of patches.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fmrl.deep.engines import fused


def single(value) -> tuple[int, ...]:
    """A number, or the numbers given, as a tuple."""
    return (value,) if isinstance(value, int) else tuple(value)


def both(value) -> tuple[int, int]:
    """The same for rows and columns."""
    value = single(value)
    return (*value, *value) if len(value) == 1 else value


def pads_of(padding, kernel, dilation) -> tuple[int, int, int, int]:
    """(left, right, top, bottom); "same" puts an odd pixel behind, as torch does."""
    if padding == "valid":
        padding = 0
    if padding != "same":
        down, across = both(padding)
        return across, across, down, down
    rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


def convolve(x, weight, pads, stride, dilation) -> torch.Tensor:
    """x [T, B, C, H, W] with weights [T, O, C, k, k] -> [T, B, O, H', W'].

    Between layers memory is laid out as [T, C, B, H, W], so that no product's result is moved.
    """
    kernels = x.is_cuda and x.dtype == weight.dtype == torch.float32 and fused.available()
    product = _Kernels if kernels else _Product
    return product.apply(x.transpose(1, 2), weight, pads, stride, dilation).transpose(1, 2)


class _Product(torch.autograd.Function):
    """The product with its own backward pass: autograd's would fill a zero tensor for each tap."""

    @staticmethod
    def forward(ctx, x, weight, pads, stride, dilation):
        (tasks, channels, batch), filters = x.shape[:3], weight.shape[1]
        x = F.pad(x, pads)
        views = _taps(x, weight.shape[-2:], stride, dilation)
        oh, ow = views[0].shape[-2:]
        patches = torch.stack(views, dim=2).view(tasks, channels * len(views), batch * oh * ow)
        ctx.save_for_backward(patches, weight)
        ctx.rest = x.shape, pads, stride, dilation
        out = patches.new_empty(tasks, filters, batch, oh, ow)  # no view: ReLU may write to it
        torch.bmm(weight.reshape(tasks, filters, -1), patches, out=out.view(tasks, filters, -1))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        patches, weight = ctx.saved_tensors
        shape, (left, right, top, bottom), stride, dilation = ctx.rest
        (tasks, channels, batch), filters = shape[:3], weight.shape[1]
        flat = gradient.reshape(tasks, filters, -1)
        for_weight = torch.bmm(flat, patches.mT).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None, None
        spread = torch.bmm(weight.reshape(tasks, filters, -1).mT, flat)
        spread = spread.view(tasks, channels, -1, batch, *gradient.shape[-2:])
        out = flat.new_zeros(shape)
        for i, view in enumerate(_taps(out, weight.shape[-2:], stride, dilation)):
            view += spread[:, :, i]
        out = out[..., top : shape[3] - bottom, left : shape[4] - right]
        return out, for_weight, None, None, None


def _taps(x, kernel, stride, dilation):
    """Views of padded x, one for each tap of the kernel, at the positions the kernel visits."""
    axes = zip(x.shape[-2:], kernel, stride, dilation, strict=True)
    rows, columns = (
        [slice(i * d, i * d + (n - d * (k - 1) - 1) // s * s + 1, s) for i in range(k)]
        for n, k, s, d in axes
    )
    return [x[..., row, column] for row in rows for column in columns]


class _Kernels(torch.autograd.Function):
    """The same by `fmrl.deep.kernels.convolution`, without patches."""

    @staticmethod
    def forward(ctx, x, weight, pads, stride, dilation):
        ctx.save_for_backward(x, weight)
        ctx.rest = pads, stride, dilation
        (left, right, top, bottom), kernel = pads, weight.shape[-2:]
        spans = (top + bottom, left + right)
        axes = zip(x.shape[-2:], spans, kernel, stride, dilation, strict=True)
        sides = [(n + pad - d * (k - 1) - 1) // s + 1 for n, pad, k, s, d in axes]
        shape = (len(x), weight.shape[1], x.shape[2], *sides)
        return _gather(x, weight, shape, pads, stride, dilation, back=False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        from fmrl.deep.kernels.convolution import correlate

        (x, weight), (pads, stride, dilation) = ctx.saved_tensors, ctx.rest
        x, gradient = x.contiguous(), gradient.contiguous()
        for_weight = torch.empty(weight.shape, device=x.device)
        tasks, outs, ins, *kernel = weight.shape
        wide, deep, columns = _block(outs), _block(ins), -(-ins // _block(ins))
        sizes = ins, outs, x.shape[2], *x.shape[3:], *gradient.shape[3:], pads[2], pads[0], columns
        grid = tasks, kernel[0] * kernel[1], -(-outs // wide) * columns
        blocks = {"MB": 64, "NB": wide, "KB": deep, "num_warps": 4, "num_stages": 2}
        facts = _constants(kernel, stride, dilation) | blocks
        correlate[grid](x, gradient, for_weight, *sizes, **facts)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None, None
        found = _gather(gradient, weight, x.shape, pads, stride, dilation, back=True)
        return found, for_weight, None, None, None


def _gather(source, weight, shape, pads, stride, dilation, back: bool) -> torch.Tensor:
    """A convolution, or its gradient back to its input of ``shape``."""
    from fmrl.deep.kernels.convolution import gather

    source, out = source.contiguous(), torch.empty(shape, device=source.device)
    if weight.stride()[-2:] != (weight.shape[-1], 1):
        weight = weight.contiguous()
    (ins, batch, *before), (outs, _, *after) = source.shape[1:], shape[1:]
    apart = weight.stride()[:3] if not back else [weight.stride(i) for i in (0, 2, 1)]
    wide, deep, pixels = _block(outs), min(32, _block(ins)), batch * after[0] * after[1]
    facts = _constants(weight.shape[-2:], stride, dilation)
    grid = len(source), -(-pixels // 128), -(-outs // wide)
    gather[grid](
        source, weight, out, *apart, ins, outs, batch, *before, *after, pads[2], pads[0],
        BACK=back, MB=128, NB=wide, KB=deep, num_warps=4, num_stages=2, **facts,
    )  # fmt: skip
    return out


def _constants(kernel, stride, dilation) -> dict:
    names = zip(("KH", "KW", "SH", "SW", "DH", "DW"), (*kernel, *stride, *dilation), strict=True)
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return dict(names) | {"PRECISION": precision}


def _block(channels: int) -> int:
    """Channels that a program covers."""
    return min(64, fused.power(channels))

"""The convolutions of many models at once on a GPU: which way is fastest for ResNet-18's shapes at 64 px?

    python benchmarks/batched_convolutions.py --models 28

All runs of one seed train on the same batches, so their models could take each step together. `graphed` runs one model
a kernel, which fills a large GPU badly; this measures what kernels that carry all models would take. Compared are
Triton kernels of our own (implicit matrix products), copies of patches with torch's batched product, cuDNN model by
model, and cuDNN's grouped convolution; and, for scale, BatchNorm with ReLU over the channels of all models. Times are
microseconds of a forward and a backward pass for all models, in bfloat16. The gradient by the input is a convolution of
the same size where the stride is 1, so ours is counted as a second forward pass.
"""
# ruff: noqa: N803

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, pad, relu

ROWS = 128
#: name, input channels, output channels, side, stride, how many ResNet-18 has
LAYERS = [
    ("layer1", 64, 64, 16, 1, 4), ("layer2, first", 64, 128, 16, 2, 1), ("layer2", 128, 128, 8, 1, 3),
    ("layer3, first", 128, 256, 8, 2, 1), ("layer3", 256, 256, 4, 1, 3), ("layer4, first", 256, 512, 4, 2, 1),
    ("layer4", 512, 512, 2, 1, 3),
]  # fmt: skip


def _configs(shapes: list[tuple[int, int, int, int, int]]) -> list[Any]:
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in shapes
    ]


_FORWARD = [(128, 64, 64, 4, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (64, 128, 64, 4, 4), (256, 64, 64, 8, 3),
            (256, 128, 64, 8, 3)]  # fmt: skip
_BY_WEIGHTS = [(64, 64, 64, 4, 3), (64, 128, 64, 4, 3), (128, 128, 64, 8, 3), (64, 64, 128, 4, 3),
               (64, 128, 128, 8, 3)]  # fmt: skip


@triton.autotune(_configs(_FORWARD), key=["C", "K", "H", "S"])
@triton.jit
def _forward(x, w, y, P, H, Ho, C: tl.constexpr, K: tl.constexpr, S: tl.constexpr, XM,
             BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """y[m, p, k] = sum over taps and c of x[m, p shifted, c] w[m, tap, c, k]; the second grid axis is the model."""
    m = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(K, BN)
    pid = tl.program_id(0)
    p = (pid // across) * BM + tl.arange(0, BM)
    n = (pid % across) * BN + tl.arange(0, BN)
    b = p // (Ho * Ho)
    r = p % (Ho * Ho)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    xm = x + m * XM
    wm = w + m * 9 * C * K
    for tap in range(9):
        ih = (r // Ho) * S + tap // 3 - 1
        iw = (r % Ho) * S + tap % 3 - 1
        inside = (p < P) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < H)
        base = ((b * H + ih) * H + iw) * C
        for c in range(0, C, BK):
            a = tl.load(xm + base[:, None] + c + k[None, :], mask=inside[:, None], other=0.0)
            g = tl.load(wm + (tap * C + c + k)[:, None] * K + n[None, :], mask=(n < K)[None, :], other=0.0)
            total = tl.dot(a, g, total)
    tl.store(
        y + m * P * K + p[:, None] * K + n[None, :], total.to(tl.bfloat16), mask=(p < P)[:, None] & (n < K)[None, :]
    )


@triton.autotune(_configs(_BY_WEIGHTS), key=["C", "K", "H", "S"])
@triton.jit
def _by_weights(x, dy, dw, P, H, Ho, C: tl.constexpr, K: tl.constexpr, S: tl.constexpr, XM,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """dw[m, tap, c, k] = sum over p of x[m, p shifted, c] dy[m, p, k], in one order, so always the same."""
    m = tl.program_id(1).to(tl.int64)
    pid = tl.program_id(0)
    across = tl.cdiv(K, BN)
    down = tl.cdiv(C, BM)
    tap = pid // (across * down)
    rest = pid % (across * down)
    c = (rest // across) * BM + tl.arange(0, BM)
    n = (rest % across) * BN + tl.arange(0, BN)
    xm = x + m * XM
    ym = dy + m * P * K
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, P, BK):
        p = first + tl.arange(0, BK)
        b = p // (Ho * Ho)
        r = p % (Ho * Ho)
        ih = (r // Ho) * S + tap // 3 - 1
        iw = (r % Ho) * S + tap % 3 - 1
        inside = (p < P) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < H)
        at = (((b * H + ih) * H + iw) * C)[:, None] + c[None, :]
        a = tl.load(xm + at, mask=inside[:, None] & (c < C)[None, :], other=0.0)
        g = tl.load(ym + p[:, None] * K + n[None, :], mask=(p < P)[:, None] & (n < K)[None, :], other=0.0)
        total = tl.dot(tl.trans(a), g, total)
    tl.store(
        dw + m * 9 * C * K + (tap * C + c)[:, None] * K + n[None, :], total, mask=(c < C)[:, None] & (n < K)[None, :]
    )


def forward(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """3x3 convolutions of x (model, row, height, width, channel) by w (model, tap x channel, channel)."""
    models, rows, side, _, channels = x.shape
    out, ahead = side // stride, w.shape[-1]
    y = torch.empty(models, rows, out, out, ahead, device=x.device, dtype=x.dtype)
    pixels = rows * out * out

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(pixels, meta["BM"]) * triton.cdiv(ahead, meta["BN"]), models

    _forward[grid](x, w, y, pixels, side, out, channels, ahead, stride, x[0].numel())
    return y


def by_weights(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """The gradient by the weights, in float32."""
    models, rows, side, _, channels = x.shape
    out, ahead = side // stride, dy.shape[-1]
    dw = torch.empty(models, 9 * channels, ahead, device=x.device)

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return 9 * triton.cdiv(channels, meta["BM"]) * triton.cdiv(ahead, meta["BN"]), models

    _by_weights[grid](x, dy, dw, rows * out * out, side, out, channels, ahead, stride, x[0].numel())
    return dw


def patches(x: Tensor, stride: int) -> Tensor:
    """What each output pixel sees, laid out as a row."""
    models, rows, side, _, channels = x.shape
    padded = pad(x, (0, 0, 1, 1, 1, 1))
    m, r, h, w, c = padded.stride()
    shape = (models, rows, side // stride, side // stride, 3, 3, channels)
    return padded.as_strided(shape, (m, r, h * stride, w * stride, h, w, c)).reshape(models, -1, 9 * channels)


def timed(work: Callable[[], Any], repeats: int = 10) -> float:
    """Microseconds of a call."""
    for _ in range(3):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / repeats * 1e3


def measured(models: int, channels: int, ahead: int, side: int, stride: int) -> dict[str, float]:
    """Times of one layer, and the largest errors of our kernels against cuDNN, as shares of the largest number."""
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    out, last = side // stride, torch.channels_last
    x = torch.randn(models, ROWS, side, side, channels, **like)
    w = torch.randn(models, 9 * channels, ahead, **like) * 0.05
    dy = torch.randn(models, ROWS, out, out, ahead, **like)
    x1 = x[0].permute(0, 3, 1, 2).detach().requires_grad_()
    w1 = w[0].view(3, 3, channels, ahead).permute(3, 2, 0, 1).contiguous(memory_format=last).detach().requires_grad_()
    dy1 = dy[0].permute(0, 3, 1, 2)

    def one_model() -> tuple[Tensor, Tensor]:
        y1 = conv2d(x1, w1, stride=stride, padding=1)
        return y1, torch.autograd.grad(y1, (x1, w1), dy1)[1]

    y1, dw1 = one_model()
    rows = patches(x, stride)
    flat = dy.view(models, -1, ahead)
    grouped = x.permute(1, 0, 4, 2, 3).reshape(ROWS, models * channels, side, side).contiguous(memory_format=last)
    weights = w.view(models, 3, 3, channels, ahead).permute(0, 4, 3, 1, 2).reshape(-1, channels, 3, 3)
    free = [grouped.requires_grad_(), weights.contiguous(memory_format=last).requires_grad_()]
    seen = torch.randn(ROWS, models * ahead, out, out, **like).contiguous(memory_format=last)
    inside = torch.randn_like(seen).requires_grad_()
    scale, shift = (torch.full((models * ahead,), value, device="cuda", requires_grad=True) for value in (1.0, 0.0))
    mean, spread = torch.zeros_like(shift.detach()), torch.ones_like(scale.detach())

    def all_groups() -> None:
        torch.autograd.grad(conv2d(*free, stride=stride, padding=1, groups=models), free, seen)

    def norm() -> None:
        normed = relu(batch_norm(inside, mean, spread, scale, shift, True))
        torch.autograd.grad(normed, (inside, scale, shift), seen)

    return {
        "forward error": _error(forward(x, w, stride)[0], y1.permute(0, 2, 3, 1)),
        "weight error": _error(by_weights(x, dy, stride)[0], dw1.permute(2, 3, 1, 0).reshape(-1, ahead)),
        "triton": 2 * timed(lambda: forward(x, w, stride)) + timed(lambda: by_weights(x, dy, stride)),
        "patches and bmm": 3 * timed(lambda: patches(x, stride))
        + timed(lambda: torch.bmm(rows, w))
        + timed(lambda: torch.bmm(rows.transpose(1, 2), flat))
        + timed(lambda: torch.bmm(flat, w.transpose(1, 2))),
        "cudnn, model by model": timed(one_model) * models,
        "cudnn, grouped": timed(all_groups, 3),
        "norm and relu": timed(norm),
    }


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


def main() -> None:
    """A line for each layer, then microseconds per image for all layers together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=28)
    models = parser.parse_args().models
    total: dict[str, float] = {}
    for name, channels, ahead, side, stride, times in LAYERS:
        row = measured(models, channels, ahead, side, stride)
        print(json.dumps({"layer": name, "times": times, **row}), flush=True)
        for way, microseconds in row.items():
            if not way.endswith("error"):
                total[way] = total.get(way, 0.0) + times * microseconds / (models * ROWS)
    print(json.dumps({"microseconds per image": total}))


if __name__ == "__main__":
    main()

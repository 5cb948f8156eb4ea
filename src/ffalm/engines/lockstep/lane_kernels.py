"""Triton kernels for the layers of many models at once: the last axis of every grid is the lane.

Images lie as (lane, row, height, width, channel), the weights of a convolution as (lane, output channel, tap, input
channel). Every sum is taken in one order, so results do not change from run to run.
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv_forward(
    x, w, y, pixels, x_lane, w_lane,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[p, k] = sum over taps and c of x[p at the tap, c] w[k, tap, c]."""
    lane = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (K + BN - 1) // BN
    p = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    b, oh, ow = p // (HO * WO), (p // WO) % HO, p % WO
    k = tl.arange(0, BK)
    parts: tl.constexpr = C // BK
    total = tl.zeros((BM, BN), tl.float32)
    x += lane * x_lane
    w += lane * w_lane
    for i in range(R * R * parts):
        tap, c = i // parts, (i % parts) * BK + k
        ih, iw = oh * S + tap // R - PAD, ow * S + tap % R - PAD
        inside = (p < pixels) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        a = tl.load(x + (((b * H + ih) * W + iw) * C)[:, None] + c[None, :], mask=inside[:, None], other=0.0)
        g = tl.load(w + (n * (R * R * C))[None, :] + (tap * C + c)[:, None], mask=(n < K)[None, :], other=0.0)
        total = tl.dot(a, g, total)
    at = lane * pixels * K + p[:, None] * K + n[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=(p < pixels)[:, None] & (n < K)[None, :])


@triton.jit
def conv_by_input(
    dy, w, dx, rows, w_lane,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx[q, c] = sum over taps and k of dy[p, k] w[k, tap, c], p being the pixel that sees q at the tap.

    With a stride a pixel is seen at some taps only, the same ones for all pixels of equal remainders of height and
    width: a program works on pixels of one remainder, the second axis of the grid.
    """
    lane = tl.program_id(2).to(tl.int64)
    across: tl.constexpr = (C + BN - 1) // BN
    q = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    down, right = tl.program_id(1) // S, tl.program_id(1) % S
    rows_seen: tl.constexpr = (H + S - 1) // S
    columns_seen: tl.constexpr = (W + S - 1) // S
    b = q // (rows_seen * columns_seen)
    ih, iw = ((q // columns_seen) % rows_seen) * S + down, (q % columns_seen) * S + right
    first_r, first_s = (down + PAD) % S, (right + PAD) % S
    taps_r, taps_s = (R - first_r + S - 1) // S, (R - first_s + S - 1) // S
    k = tl.arange(0, BK)
    parts: tl.constexpr = K // BK
    total = tl.zeros((BM, BN), tl.float32)
    here = (b < rows) & (ih < H) & (iw < W)
    dy += lane * rows * (HO * WO * K)
    w += lane * w_lane
    for i in range(taps_r * taps_s * parts):
        tap, m = i // parts, (i % parts) * BK + k
        r, s = first_r + (tap // taps_s) * S, first_s + (tap % taps_s) * S
        oh, ow = (ih + PAD - r) // S, (iw + PAD - s) // S
        inside = here & (ih + PAD >= r) & (oh < HO) & (iw + PAD >= s) & (ow < WO)
        a = tl.load(dy + (((b * HO + oh) * WO + ow) * K)[:, None] + m[None, :], mask=inside[:, None], other=0.0)
        at = (m * (R * R * C) + (r * R + s) * C)[:, None] + n[None, :]
        g = tl.load(w + at, mask=(n < C)[None, :], other=0.0)
        total = tl.dot(a, g, total)
    at = lane * rows * (H * W * C) + (((b * H + ih) * W + iw) * C)[:, None] + n[None, :]
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=here[:, None] & (n < C)[None, :])


@triton.jit
def conv_by_weight(
    x, dy, dw, pixels, x_lane, dw_lane, dw_part, share,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dw[k, tap, c] = sum over p of dy[p, k] x[p at the tap, c]; the second axis of the grid is a share of the p."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    across: tl.constexpr = (C + BN - 1) // BN
    downward: tl.constexpr = (K + BM - 1) // BM
    tap = tl.program_id(0) // (across * downward)
    rest = tl.program_id(0) % (across * downward)
    m = (rest // across) * BM + tl.arange(0, BM)
    n = (rest % across) * BN + tl.arange(0, BN)
    x += lane * x_lane
    dy += lane * pixels * K
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(part * share, tl.minimum((part + 1) * share, pixels), BK):
        p = first + tl.arange(0, BK)
        b, oh, ow = p // (HO * WO), (p // WO) % HO, p % WO
        ih, iw = oh * S + tap // R - PAD, ow * S + tap % R - PAD
        inside = (p < pixels) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        at = (((b * H + ih) * W + iw) * C)[:, None] + n[None, :]
        a = tl.load(x + at, mask=inside[:, None] & (n < C)[None, :], other=0.0)
        g = tl.load(dy + p[:, None] * K + m[None, :], mask=(p < pixels)[:, None] & (m < K)[None, :], other=0.0)
        total = tl.dot(tl.trans(g), a, total)
    at = part * dw_part + lane * dw_lane + (m * (R * R * C) + tap * C)[:, None] + n[None, :]
    tl.store(dw + at, total.to(dw.dtype.element_ty), mask=(m < K)[:, None] & (n < C)[None, :])


@triton.jit
def norm_sums(x, sums, values, share, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """The sum and the sum of squares of each channel, over a share of a lane's values: sums[part, lane, which, c]."""
    part, lane, lanes = tl.program_id(0), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    x += lane * values * C
    one, two = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for first in range(part * share, tl.minimum((part + 1) * share, values), BR):
        r = first + tl.arange(0, BR)
        seen = (r < values)[:, None] & (c < C)[None, :]
        v = tl.load(x + r[:, None].to(tl.int64) * C + c[None, :], mask=seen, other=0.0).to(tl.float32)
        one += v
        two += v * v
    to = sums + (part * lanes + lane) * 2 * C + c
    tl.store(to, tl.sum(one, 0), mask=c < C)
    tl.store(to + C, tl.sum(two, 0), mask=c < C)


@triton.jit
def _over_shares(sums, parts, c, C: tl.constexpr, BC: tl.constexpr):
    """Both sums of a program's channels over all shares of its lane, the second axis of the grid."""
    lane, lanes = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    one, two = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for part in range(parts):
        at = sums + (part * lanes + lane) * 2 * C + c
        one += tl.load(at, mask=c < C, other=0.0)
        two += tl.load(at + C, mask=c < C, other=0.0)
    return one, two


@triton.jit
def norm_statistics(
    sums, parts, values, statistics, weight, bias, running_mean, running_var, buffer_lane, value_lane, momentum, eps,
    C: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """statistics[lane, (mean, 1/deviation, scale, shift), c] from the sums, and the next running statistics."""
    lane = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    seen = c < C
    one, two = _over_shares(sums, parts, c, C, BC)
    mean = one / values
    var = tl.maximum(two / values - mean * mean, 0.0)
    deviation = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(weight + lane * value_lane + c, mask=seen, other=0.0) * deviation
    shift = tl.load(bias + lane * value_lane + c, mask=seen, other=0.0) - mean * scale
    to = statistics + lane * 4 * C + c
    tl.store(to, mean, mask=seen)
    tl.store(to + C, deviation, mask=seen)
    tl.store(to + 2 * C, scale, mask=seen)
    tl.store(to + 3 * C, shift, mask=seen)
    old = running_mean + lane * buffer_lane + c
    tl.store(old, (1 - momentum) * tl.load(old, mask=seen, other=0.0) + momentum * mean, mask=seen)
    old = running_var + lane * buffer_lane + c
    unbiased = var * (values / (values - 1.0))
    tl.store(old, (1 - momentum) * tl.load(old, mask=seen, other=0.0) + momentum * unbiased, mask=seen)


@triton.jit
def norm_apply(
    x, other, y, statistics, values, C: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """y = x scale + shift, plus what is added, through a ReLU."""
    lane = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = i < values * C
    c = i % C
    scale = tl.load(statistics + lane * 4 * C + 2 * C + c)
    shift = tl.load(statistics + lane * 4 * C + 3 * C + c)
    at = lane * values * C + i
    v = tl.load(x + at, mask=seen, other=0.0).to(tl.float32) * scale + shift
    if ADDS:
        v += tl.load(other + at, mask=seen, other=0.0).to(tl.float32)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=seen)


@triton.jit
def norm_gradient_sums(
    x, y, dy, statistics, sums, values, share,
    C: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The sums of g and of g times the normalised x, g being dy where the ReLU let it through.

    RELU is 0 without one, 1 if x shows what it let through, 2 if only y shows it.
    """
    part, lane, lanes = tl.program_id(0), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    mean = tl.load(statistics + lane * 4 * C + c, mask=c < C, other=0.0)
    deviation = tl.load(statistics + lane * 4 * C + C + c, mask=c < C, other=0.0)
    scale = tl.load(statistics + lane * 4 * C + 2 * C + c, mask=c < C, other=0.0)
    shift = tl.load(statistics + lane * 4 * C + 3 * C + c, mask=c < C, other=0.0)
    one, two = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for first in range(part * share, tl.minimum((part + 1) * share, values), BR):
        r = first + tl.arange(0, BR)
        seen = (r < values)[:, None] & (c < C)[None, :]
        at = lane * values * C + r[:, None].to(tl.int64) * C + c[None, :]
        g = tl.load(dy + at, mask=seen, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=seen, other=0.0).to(tl.float32)
        if RELU == 1:
            g = tl.where(v * scale[None, :] + shift[None, :] > 0, g, 0.0)
        if RELU == 2:
            g = tl.where(tl.load(y + at, mask=seen, other=0.0).to(tl.float32) > 0, g, 0.0)
        one += g
        two += g * (v - mean[None, :]) * deviation[None, :]
    to = sums + (part * lanes + lane) * 2 * C + c
    tl.store(to, tl.sum(one, 0), mask=c < C)
    tl.store(to + C, tl.sum(two, 0), mask=c < C)


@triton.jit
def norm_gradients(
    sums, parts, values, statistics, by_weight, by_bias, gradient_lane, factors, C: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """The gradients by weight and bias, and factors[lane, (a, b, d), c] with dx = a g + b x + d."""
    lane = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    seen = c < C
    one, two = _over_shares(sums, parts, c, C, BC)
    tl.store(by_bias + lane * gradient_lane + c, one, mask=seen)
    tl.store(by_weight + lane * gradient_lane + c, two, mask=seen)
    mean = tl.load(statistics + lane * 4 * C + c, mask=seen, other=0.0)
    deviation = tl.load(statistics + lane * 4 * C + C + c, mask=seen, other=0.0)
    scale = tl.load(statistics + lane * 4 * C + 2 * C + c, mask=seen, other=0.0)
    b = -scale * deviation * two / values
    to = factors + lane * 3 * C + c
    tl.store(to, scale, mask=seen)
    tl.store(to + C, b, mask=seen)
    tl.store(to + 2 * C, -scale * one / values - b * mean, mask=seen)


@triton.jit
def norm_by_input(
    x, y, dy, statistics, factors, dx, by_other, values,
    C: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = a g + b x + d, and g itself for what was added."""
    lane = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = i < values * C
    c = i % C
    a = tl.load(factors + lane * 3 * C + c)
    b = tl.load(factors + lane * 3 * C + C + c)
    d = tl.load(factors + lane * 3 * C + 2 * C + c)
    at = lane * values * C + i
    g = tl.load(dy + at, mask=seen, other=0.0).to(tl.float32)
    v = tl.load(x + at, mask=seen, other=0.0).to(tl.float32)
    if RELU == 1:
        scale = tl.load(statistics + lane * 4 * C + 2 * C + c)
        shift = tl.load(statistics + lane * 4 * C + 3 * C + c)
        g = tl.where(v * scale + shift > 0, g, 0.0)
    if RELU == 2:
        g = tl.where(tl.load(y + at, mask=seen, other=0.0).to(tl.float32) > 0, g, 0.0)
    tl.store(dx + at, (a * g + b * v + d).to(dx.dtype.element_ty), mask=seen)
    if ADDS:
        tl.store(by_other + at, g.to(by_other.dtype.element_ty), mask=seen)


@triton.jit
def pool_forward(
    x, y, where, numbers,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest value of each window, and the tap at which it stands first."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, ow, oh, b = i % C, (i // C) % WO, (i // (C * WO)) % HO, i // (C * WO * HO)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    at = tl.zeros((BLOCK,), tl.int32)
    for tap in tl.static_range(R * R):
        ih, iw = oh * S + tap // R - PAD, ow * S + tap % R - PAD
        inside = (i < numbers) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        v = tl.load(x + ((b * H + ih) * W + iw) * C + c, mask=inside, other=float("-inf")).to(tl.float32)
        larger = (v > most) | (v != v)
        most = tl.where(larger, v, most)
        at = tl.where(larger, tap, at)
    tl.store(y + i, most.to(y.dtype.element_ty), mask=i < numbers)
    tl.store(where + i, at.to(tl.int8), mask=i < numbers)


@triton.jit
def pool_by_input(
    dy, where, dx, numbers,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = the sum of dy over the windows in which a value is the largest."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, iw, ih, b = i % C, (i // C) % W, (i // (C * W)) % H, i // (C * W * H)
    total = tl.zeros((BLOCK,), tl.float32)
    # A pixel is seen at the taps r = first, first + S, ...: by the windows up = (ih + PAD) // S, up - 1, ...
    up, left = (ih + PAD) // S, (iw + PAD) // S
    first_r, first_s = (ih + PAD) % S, (iw + PAD) % S
    for step in tl.static_range(((R + S - 1) // S) * ((R + S - 1) // S)):
        down, right = step // ((R + S - 1) // S), step % ((R + S - 1) // S)
        oh, ow, r, s = up - down, left - right, first_r + down * S, first_s + right * S
        inside = (i < numbers) & (r < R) & (s < R) & (oh >= 0) & (oh < HO) & (ow >= 0) & (ow < WO)
        at = ((b * HO + oh) * WO + ow) * C + c
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        tap = tl.load(where + at, mask=inside, other=-1).to(tl.int32)
        total += tl.where(tap == r * R + s, g, 0.0)
    tl.store(dx + i, total.to(dx.dtype.element_ty), mask=i < numbers)


@triton.jit
def sgd(values, gradient, read, rates, numbers, values_lane, gradient_lane, read_lane, BLOCK: tl.constexpr):
    """values -= rate gradient, and the same in the precision in which passes read it."""
    lane = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = i < numbers
    rate = tl.load(rates + lane)
    v = tl.load(values + lane * values_lane + i, mask=seen, other=0.0)
    v -= rate * tl.load(gradient + lane * gradient_lane + i, mask=seen, other=0.0)
    tl.store(values + lane * values_lane + i, v, mask=seen)
    tl.store(read + lane * read_lane + i, v.to(read.dtype.element_ty), mask=seen)

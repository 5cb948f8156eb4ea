"""The layers of many models at once by Triton kernels, on a GPU in bfloat16. `TorchLayers` says what each does."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ffalm.engines.lockstep import lane_kernels as kernels
from ffalm.engines.lockstep.lane_weights import LaneParameter
from ffalm.engines.lockstep.layers import Convolution, Normalisation, Pooling
from ffalm.system.hardware import on_device

_FILLED = 1056  # programs that keep a large GPU busy: eight for each of its processors
_PATCHES = 64  # numbers to a multiple of which the patches of a first layer are filled up
_BLOCK = 1024  # numbers of a program of elementwise kernels


class Tiles(NamedTuple):
    """How a product is cut: rows and columns of a tile, how many terms at a time, warps, and steps loaded ahead."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int


def tiles(kind: Literal["forward", "by_input", "by_weight"], columns: int, terms: int) -> Tiles:
    """The fastest tiles on an H200 for ResNet-18 at 64 px and 28 lanes (benchmarks/lockstep.py --tune).

    Of a gradient by weights `columns` are the output channels and `terms` the input channels; otherwise `terms` are the
    channels that are summed over, which a step must divide.
    """
    if kind == "by_weight":
        large = columns >= 256 or terms > 128
        each = 32 if large and columns >= 128 else 64
        return Tiles(_power(columns, 128), _power(terms, 128 if large else 64), each, 4, 4)
    wide = _power(columns, 256)
    return Tiles(128, wide, min(64, terms & -terms), 8 if wide >= 128 else 4, 3)


class TritonLayers:
    """Convolutions as products over patches that are never laid out."""

    def convolve(self, x: Tensor, weight: LaneParameter, how: Convolution) -> Tensor:
        """The convolution of each lane's rows by its weights."""
        w = weight.read
        if x.shape[-1] % 16:
            x, w, how = _patches(x, w, how), _filled_up(w), Convolution(1, 0)
        shape = _Shape(x, w, how)
        y = x.new_empty(len(w), x.shape[1], shape.ho, shape.wo, shape.k)
        cut = tiles("forward", shape.k, shape.c)
        grid = (-(-shape.pixels // cut.rows) * -(-shape.k // cut.columns), len(w))
        kernels.conv_forward[grid](
            x, w, y, shape.pixels, shape.x_lane, w.stride(0), *shape.sizes, *cut[:3], num_warps=cut.warps,
            num_stages=cut.stages,
        )  # fmt: skip
        return y

    def convolve_backward(
        self, x: Tensor, dy: Tensor, weight: LaneParameter, how: Convolution, by_input: bool
    ) -> Tensor | None:
        """The gradient by the rows if it is wanted; that by the weights is written into `weight.gradient`."""
        dy = dy.contiguous()
        if x.shape[-1] % 16:
            patches, w = _patches(x, weight.read, how), _filled_up(weight.read)
            found = torch.empty_like(w, dtype=weight.gradient.dtype)
            _by_weight(_Shape(patches, w, Convolution(1, 0)), patches, dy, found)
            side, channels = weight.read.shape[-1], x.shape[-1]
            numbers = found[:, :, : side * side * channels, 0, 0]
            by_tap = numbers.reshape(*numbers.shape[:2], side, side, channels)
            weight.gradient.copy_(by_tap.permute(0, 1, 4, 2, 3))
            assert not by_input
            return None
        shape = _Shape(x, weight.read, how)
        _by_weight(shape, x, dy, weight.gradient)
        return _by_input(shape, dy, weight.read) if by_input else None

    def normalise(
        self, x: Tensor, other: Tensor | None, scale: LaneParameter, shift: LaneParameter,
        running: tuple[Tensor, Tensor], how: Normalisation, training: bool,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """Normalised rows, plus `other`, through a ReLU; and what the way back needs. Moves the running statistics."""
        lanes, channels, values = len(x), x.shape[-1], x[0, ..., 0].numel()
        statistics = torch.empty(lanes, 4, channels, device=x.device)
        if training:
            sums, share, grid, block = _shares(x)
            kernels.norm_sums[grid](x, sums, values, share, channels, 64, block)
            kernels.norm_statistics[(-(-channels // block), lanes)](
                sums, len(sums), values, statistics, scale.value, shift.value, *running, running[0].stride(0),
                scale.value.stride(0), how.momentum, how.eps, channels, block,
            )  # fmt: skip
        else:
            statistics[:, 2] = scale.value * (running[1] + how.eps).rsqrt()
            statistics[:, 3] = shift.value - running[0] * statistics[:, 2]
        y = torch.empty_like(x)
        added = x if other is None else other.contiguous()
        kernels.norm_apply[(-(-x[0].numel() // _BLOCK), lanes)](
            x, added, y, statistics, values, channels, other is not None, how.rectified, _BLOCK
        )
        return y, statistics

    def normalise_backward(
        self, x: Tensor, y: Tensor, dy: Tensor, kept: Any, scale: LaneParameter, shift: LaneParameter,
        how: Normalisation, added: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The gradients by x and by what was added to it."""
        dy = dy.contiguous()
        lanes, channels, values = len(x), x.shape[-1], x[0, ..., 0].numel()
        relu = 0 if not how.rectified else 2 if added else 1
        sums, share, grid, block = _shares(x)
        kernels.norm_gradient_sums[grid](x, y, dy, kept, sums, values, share, channels, relu, 64, block)
        factors = torch.empty(lanes, 3, channels, device=x.device)
        kernels.norm_gradients[(-(-channels // block), lanes)](
            sums, len(sums), values, kept, scale.gradient, shift.gradient, scale.gradient.stride(0), factors, channels,
            block,
        )  # fmt: skip
        dx = torch.empty_like(x)
        by_other = torch.empty_like(x) if added and how.rectified else dx
        kernels.norm_by_input[(-(-x[0].numel() // _BLOCK), lanes)](
            x, y, dy, kept, factors, dx, by_other, values, channels, added and how.rectified, relu, _BLOCK
        )
        return dx, (by_other if how.rectified else dy) if added else None

    def pool(self, x: Tensor, how: Pooling) -> tuple[Tensor, Tensor]:
        """The largest value of each window, and at which of its places that stands."""
        lanes, rows, height, width, channels = x.shape
        ho, wo = ((side + 2 * how.padding - how.size) // how.stride + 1 for side in (height, width))
        y = x.new_empty(lanes, rows, ho, wo, channels)
        where = torch.empty_like(y, dtype=torch.int8)
        kernels.pool_forward[(-(-y.numel() // _BLOCK),)](
            x, y, where, y.numel(), height, width, ho, wo, channels, how.size, how.stride, how.padding, _BLOCK
        )
        return y, where

    def pool_backward(self, dy: Tensor, where: Tensor, how: Pooling, shape: torch.Size) -> Tensor:
        """The gradient by rows of this shape."""
        dx, (_, _, height, width, channels) = dy.new_empty(shape), shape
        kernels.pool_by_input[(-(-dx.numel() // _BLOCK),)](
            dy.contiguous(), where, dx, dx.numel(), height, width, *where.shape[2:4], channels, how.size, how.stride,
            how.padding, _BLOCK,
        )  # fmt: skip
        return dx

    def sgd_step(self, values: Tensor, gradient: Tensor, read: Tensor, rates: Tensor) -> None:
        """values -= rate gradient in each lane, and the same in the precision in which passes read it."""
        lanes, numbers = gradient.shape
        kernels.sgd[(-(-numbers // _BLOCK), lanes)](
            values, gradient, read, rates, numbers, values.stride(0), gradient.stride(0), read.stride(0), _BLOCK
        )


@cache
def why_not_compiled(device: torch.device) -> str | None:
    """Why kernels do not run on this machine, in Triton's words; None if they do.

    Triton needs a C compiler and Python's headers, which not every machine has.
    """
    values, rates = torch.zeros(1, 16, device=device), torch.zeros(1, device=device)
    try:
        with on_device(device):
            TritonLayers().sgd_step(values, values, values.bfloat16(), rates)
        return None
    except Exception as error:
        # Compilers and drivers fail in ways of their own, and a study can go on with another engine.
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class _Shape:
    """The sizes of a convolution of rows `x` by weights `w`."""

    def __init__(self, x: Tensor, w: Tensor, how: Convolution) -> None:
        self.lanes, (_, self.rows, self.h, self.w, self.c) = len(w), x.shape
        self.k, self.side = w.shape[1], w.shape[-1]
        self.ho, self.wo = ((one + 2 * how.padding - self.side) // how.stride + 1 for one in (self.h, self.w))
        self.pixels, self.stride = self.rows * self.ho * self.wo, how.stride
        self.x_lane = 0 if len(x) == 1 else x.stride(0)
        self.sizes = (self.h, self.w, self.ho, self.wo, self.c, self.k, self.side, how.stride, how.padding)


def _by_input(shape: _Shape, dy: Tensor, w: Tensor) -> Tensor:
    dx = dy.new_empty(shape.lanes, shape.rows, shape.h, shape.w, shape.c)
    cut = tiles("by_input", shape.c, shape.k)
    seen = shape.rows * -(-shape.h // shape.stride) * -(-shape.w // shape.stride)
    grid = (-(-seen // cut.rows) * -(-shape.c // cut.columns), shape.stride**2, shape.lanes)
    kernels.conv_by_input[grid](
        dy, w, dx, shape.rows, w.stride(0), *shape.sizes, *cut[:3], num_warps=cut.warps, num_stages=cut.stages
    )
    return dx


def _by_weight(shape: _Shape, x: Tensor, dy: Tensor, into: Tensor) -> None:
    cut = tiles("by_weight", shape.k, shape.c)
    programs = shape.side**2 * -(-shape.k // cut.rows) * -(-shape.c // cut.columns)
    parts = max(1, min(_FILLED // 2 // (programs * shape.lanes), shape.pixels // (8 * cut.terms)))
    share = -(-shape.pixels // (parts * cut.terms)) * cut.terms
    found = into if parts == 1 else x.new_empty(parts, *into.shape, dtype=into.dtype)
    lane, step = (into.stride(0), 0) if parts == 1 else (into[0].numel(), into.numel())
    kernels.conv_by_weight[(programs, parts, shape.lanes)](
        x, dy, found, shape.pixels, shape.x_lane, lane, step, share, *shape.sizes, *cut[:3], num_warps=cut.warps,
        num_stages=cut.stages,
    )  # fmt: skip
    if parts > 1:
        total = found.flatten(2).sum(0)  # as the kernel lays them out: output channel, tap, input channel
        side, channels = shape.side, shape.c
        into.copy_(total.view(shape.lanes, shape.k, side, side, channels).permute(0, 1, 4, 2, 3))


def _shares(x: Tensor) -> tuple[Tensor, int, tuple[int, int, int], int]:
    """Room for the sums of each share of a lane's values, how many values that is, and the grid that sums them."""
    lanes, channels, values = len(x), x.shape[-1], x[0, ..., 0].numel()
    block = _power(channels, 64)
    across = -(-channels // block)
    parts = max(1, min(_FILLED // (lanes * across), values // 256))
    share = -(-values // (parts * 64)) * 64
    return torch.empty(parts, lanes, 2, channels, device=x.device), share, (parts, across, lanes), block


def _patches(x: Tensor, w: Tensor, how: Convolution) -> Tensor:
    """What each pixel of the result sees, as its channels: (lane, row, height, width, tap and channel)."""
    side, around = w.shape[-1], how.padding
    around_x = pad(x, (0, 0, around, around, around, around))
    lanes, rows, height, width, channels = around_x.shape
    ho, wo = ((one - side) // how.stride + 1 for one in (height, width))
    lane, row, down, right, one = around_x.stride()
    step = (lane, row, down * how.stride, right * how.stride, down, right, one)
    seen = around_x.as_strided((lanes, rows, ho, wo, side, side, channels), step)
    numbers = side * side * channels
    patches = x.new_empty(lanes, rows, ho, wo, -(-numbers // _PATCHES) * _PATCHES)
    torch.unflatten(patches[..., :numbers], -1, (side, side, channels)).copy_(seen)
    patches[..., numbers:] = 0
    return patches


def _filled_up(w: Tensor) -> Tensor:
    """The weights as those of a 1x1 convolution of patches."""
    flat = w.permute(0, 1, 3, 4, 2).flatten(2)
    filled = flat.new_zeros(*flat.shape[:2], -(-flat.shape[2] // _PATCHES) * _PATCHES)
    filled[..., : flat.shape[2]] = flat
    return filled[..., None, None]


def _power(number: int, most: int) -> int:
    """The least power of two that is at least `number`, from 16 to `most`."""
    return min(most, max(16, 1 << (number - 1).bit_length()))

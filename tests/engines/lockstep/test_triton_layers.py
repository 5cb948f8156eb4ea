"""The kernels give what plain torch operations give, on a GPU, or here by Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from ffalm.engines.lockstep.lane_weights import LaneParameter
from ffalm.engines.lockstep.layers import Convolution, Normalisation, Pooling
from ffalm.engines.lockstep.torch_layers import TorchLayers

pytest.importorskip("triton", reason="triton is not installed here: the kernels need it")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("no GPU here: the kernels need one, or TRITON_INTERPRET=1", allow_module_level=True)

from ffalm.engines.lockstep import triton_layers  # noqa: E402
from ffalm.engines.lockstep.triton_layers import TritonLayers, why_not_compiled  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cpu" if INTERPRETED else "cuda"
LOW = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter knows no bfloat16 products
CLOSE = 1e-5 if INTERPRETED else 2e-2
LANES, ROWS = 2, 3

#: side, input channels, output channels, kernel, stride, padding, whether all lanes share the images
CONVOLUTIONS = [
    (8, 32, 64, 3, 1, 1, False), (8, 64, 32, 3, 2, 1, False), (7, 16, 48, 3, 2, 1, False), (8, 64, 80, 1, 2, 0, False),
    (5, 16, 16, 3, 1, 1, False), (16, 3, 64, 7, 2, 3, True), (9, 3, 16, 3, 1, 0, False), (2, 128, 144, 3, 1, 1, False),
]  # fmt: skip


def random(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that are the same in both precisions."""
    draws = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=draws).to(LOW).to(DEVICE)


def parameter(value: Tensor) -> tuple[LaneParameter, LaneParameter]:
    """A parameter as kernels take it, laid out with its input channels last, and one for the reference."""
    if value.ndim == 5:
        value = value.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    full = value.float()
    poisoned = [torch.full_like(full, torch.nan) for _ in range(2)]
    return LaneParameter(full, value, poisoned[0]), LaneParameter(full.double(), full.double(), poisoned[1].double())


def assert_near(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    assert float(error) < CLOSE, f"relative error {float(error):.2e}"


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolutions_and_their_gradients(shape: tuple[int, int, int, int, int, int, bool]) -> None:
    side, inputs, outputs, kernel, stride, padding, shared = shape
    x = random(1 if shared else LANES, ROWS, side, side, inputs)
    weight, reference = parameter(random(LANES, outputs, inputs, kernel, kernel))
    how, by_input = Convolution(stride, padding), inputs % 16 == 0
    y, expected = TritonLayers().convolve(x, weight, how), TorchLayers().convolve(x.double(), reference, how)
    assert_near(y, expected)
    dy = random(*y.shape, seed=1)
    dx = TritonLayers().convolve_backward(x, dy, weight, how, by_input)
    by_x = TorchLayers().convolve_backward(x.double(), dy.double(), reference, how, by_input)
    assert_near(weight.gradient, reference.gradient)
    if by_input:
        assert dx is not None
        assert by_x is not None
        assert_near(dx, by_x)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_gradient_by_weights_is_summed_in_shares_where_pixels_are_many(kernel: int) -> None:
    x, (weight, reference) = random(LANES, 10, 16, 16, 16), parameter(random(LANES, 32, 16, kernel, kernel))
    dy, how = random(LANES, 10, 16, 16, 32, seed=1), Convolution(1, kernel // 2)
    TritonLayers().convolve_backward(x, dy, weight, how, True)
    TorchLayers().convolve_backward(x.double(), dy.double(), reference, how, True)
    assert_near(weight.gradient, reference.gradient)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("rectified", [True, False], ids=["relu", "no relu"])
@pytest.mark.parametrize("added", [True, False], ids=["sum", "no sum"])
@pytest.mark.parametrize(("side", "channels"), [(4, 64), (3, 16), (9, 144)])
def test_normalisations_and_their_gradients(
    side: int, channels: int, added: bool, rectified: bool, training: bool
) -> None:
    x = random(LANES, ROWS, side, side, channels) * 2 + 0.5
    other = random(LANES, ROWS, side, side, channels, seed=1) if added else None
    scale, scale_reference = parameter(random(LANES, channels) + 1)
    shift, shift_reference = parameter(random(LANES, channels, seed=2))
    running = random(LANES, channels).float(), random(LANES, channels, seed=3).float() ** 2
    expected_running = tuple[Any, ...](one.double() for one in running)
    how = Normalisation(1e-5, 0.1, rectified)
    y, kept = TritonLayers().normalise(x, other, scale, shift, running, how, training)
    expected, theirs = TorchLayers().normalise(
        x.double(), None if other is None else other.double(), scale_reference, shift_reference, expected_running, how,
        training,
    )  # fmt: skip
    assert_near(y, expected)
    for one, two in zip(running, expected_running, strict=True):
        assert_near(one, two)
    if not training:
        return
    dy = random(*x.shape, seed=4)
    found = TritonLayers().normalise_backward(x, y, dy, kept, scale, shift, how, added)
    wanted = TorchLayers().normalise_backward(
        x.double(), expected, dy.double(), theirs, scale_reference, shift_reference, how, added
    )
    assert_near(found[0], wanted[0])
    assert (found[1] is None) == (wanted[1] is None)
    if found[1] is not None and wanted[1] is not None:
        assert_near(found[1], wanted[1])
    assert_near(scale.gradient, scale_reference.gradient)
    assert_near(shift.gradient, shift_reference.gradient)


@pytest.mark.parametrize("how", [Pooling(3, 2, 1), Pooling(2, 2, 0), Pooling(3, 1, 1), Pooling(3, 3, 0)], ids=str)
@pytest.mark.parametrize("side", [8, 9])
def test_maxima_and_their_gradients(side: int, how: Pooling) -> None:
    x = random(LANES, ROWS, side, side, 16).clamp(min=0)  # many values are equal, as behind a ReLU
    (y, where), (expected, theirs) = TritonLayers().pool(x, how), TorchLayers().pool(x.double(), how)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=0)
    dy = random(*y.shape, seed=1)
    dx = TritonLayers().pool_backward(dy, where, how, x.shape)
    assert_near(dx, TorchLayers().pool_backward(dy.double(), theirs, how, x.shape))


def test_a_step_of_sgd_moves_every_lane_at_its_own_rate() -> None:
    values, gradient = random(LANES, 2000).float(), random(LANES, 1500, seed=1).float()
    read, rates = torch.zeros(LANES, 1500, dtype=LOW, device=DEVICE), torch.tensor([0.5, 0.25], device=DEVICE)
    expected = values.clone()
    expected[:, :1500] -= rates.unsqueeze(1) * gradient
    TritonLayers().sgd_step(values[:, :1500], gradient, read, rates)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(read, expected[:, :1500].to(LOW))


def test_a_machine_without_a_compiler_is_told_of_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_compiled(torch.device(DEVICE)) is None

    def fails(*given: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    why_not_compiled.cache_clear()
    monkeypatch.setattr(triton_layers.TritonLayers, "sgd_step", fails)
    assert why_not_compiled(torch.device(DEVICE)) == "Failed to find C compiler"
    why_not_compiled.cache_clear()

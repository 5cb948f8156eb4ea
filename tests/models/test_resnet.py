"""ResNet-18: its size, torchvision's names, its initialisation and the released code's head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from ffalm.errors import UserError
from ffalm.models import ResNet18, architecture


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def torchvision_names() -> set[str]:
    """Every entry of the state of torchvision's resnet18, written out by its rule."""

    def batchnorm(name: str) -> list[str]:
        return [f"{name}.{end}" for end in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *batchnorm("bn1"), "fc.weight", "fc.bias"]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            home = f"layer{stage}.{block}"
            names += [f"{home}.conv1.weight", *batchnorm(f"{home}.bn1")]
            names += [f"{home}.conv2.weight", *batchnorm(f"{home}.bn2")]
            if stage > 1 and block == 0:
                names += [f"{home}.downsample.0.weight", *batchnorm(f"{home}.downsample.1")]
    return set(names)


@pytest.fixture(scope="module")
def pooled() -> nn.Module:
    torch.manual_seed(0)
    return ResNet18().build((3, 128, 128), 2)


@pytest.fixture(scope="module")
def fairalm() -> nn.Module:
    torch.manual_seed(0)
    return ResNet18(head="fairalm").build((3, 128, 128), 2)


def test_it_has_11_177_538_parameters(pooled: nn.Module) -> None:
    assert parameters(pooled) == 11_177_538


def test_with_the_fairalm_head_it_has_11_180_610(fairalm: nn.Module) -> None:
    assert parameters(fairalm) == 11_180_610
    assert fairalm.get_parameter("fc.weight").shape == (2, 2048)


def test_its_batchnorm_statistics_are_9_600_floats_and_20_counters(pooled: nn.Module) -> None:
    buffers = dict(pooled.named_buffers())
    assert sum(b.numel() for b in buffers.values() if b.dtype.is_floating_point) == 9_600
    assert sum(b.numel() for b in buffers.values() if not b.dtype.is_floating_point) == 20
    floats = sum(v.numel() for v in pooled.state_dict().values() if v.dtype.is_floating_point)
    assert floats == 11_187_138


def test_its_entries_have_torchvisions_names(pooled: nn.Module, fairalm: nn.Module) -> None:
    names = torchvision_names()
    assert len(names) == 122
    assert set(pooled.state_dict()) == set(fairalm.state_dict()) == names


def test_its_layers_have_torchvisions_shapes(pooled: nn.Module) -> None:
    shapes = {name: tuple(value.shape) for name, value in pooled.state_dict().items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    for stage, width in ((1, 64), (2, 128), (3, 256), (4, 512)):
        before = 64 if stage == 1 else width // 2
        assert shapes[f"layer{stage}.0.conv1.weight"] == (width, before, 3, 3)
        assert shapes[f"layer{stage}.0.conv2.weight"] == (width, width, 3, 3)
        assert shapes[f"layer{stage}.1.conv1.weight"] == (width, width, 3, 3)
        if stage > 1:
            assert shapes[f"layer{stage}.0.downsample.0.weight"] == (width, before, 1, 1)
    assert shapes["fc.weight"] == (2, 512)


def test_convolutions_start_from_the_stated_normal_and_batchnorm_from_one_and_zero(pooled: nn.Module) -> None:
    for module in pooled.modules():
        if isinstance(module, nn.Conv2d):
            expected = math.sqrt(2 / (module.kernel_size[0] * module.kernel_size[1] * module.out_channels))
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.05)
            assert abs(float(module.weight.detach().mean())) < expected / 10
            assert module.bias is None
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.detach().eq(1).all()
            assert module.bias.detach().eq(0).all()


@torch.no_grad()
def test_the_fairalm_head_is_16_over_49_of_the_global_mean_four_times(pooled: nn.Module, fairalm: nn.Module) -> None:
    """One network with both heads: what the wide layer sees is what the narrow one sees, scaled and replicated."""
    body = {name: value for name, value in pooled.state_dict().items() if not name.startswith("fc.")}
    fairalm.load_state_dict(body, strict=False)
    x = torch.rand(2, 3, 128, 128)
    pooled.eval()
    fairalm.eval()
    seen: dict[str, torch.Tensor] = {}
    for name, module in (("pooled", pooled), ("fairalm", fairalm)):
        handle = module.get_submodule("fc").register_forward_pre_hook(
            lambda _, inputs, name=name: seen.__setitem__(name, inputs[0])
        )
        module(x)
        handle.remove()
    replicated = seen["fairalm"].view(2, 512, 4)
    for window in range(4):
        torch.testing.assert_close(replicated[..., window], seen["pooled"] * 16 / 49)
    expected = linear(seen["fairalm"], fairalm.get_parameter("fc.weight"), fairalm.get_parameter("fc.bias"))
    torch.testing.assert_close(fairalm(x), expected)


@torch.no_grad()
def test_the_forward_pass_is_the_textbook_one(pooled: nn.Module) -> None:
    """Stem, eight basic blocks and the mean, written out from the layers' weights alone."""
    from torch.nn.functional import batch_norm, conv2d, max_pool2d, relu

    pooled.eval()
    w = pooled.state_dict()

    def bn(x: torch.Tensor, name: str) -> torch.Tensor:
        return batch_norm(
            x, w[f"{name}.running_mean"], w[f"{name}.running_var"], w[f"{name}.weight"], w[f"{name}.bias"]
        )

    x = torch.rand(2, 3, 64, 64)
    h = max_pool2d(relu(bn(conv2d(x, w["conv1.weight"], stride=2, padding=3), "bn1")), 3, stride=2, padding=1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            home, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = relu(bn(conv2d(h, w[f"{home}.conv1.weight"], stride=stride, padding=1), f"{home}.bn1"))
            inner = bn(conv2d(inner, w[f"{home}.conv2.weight"], padding=1), f"{home}.bn2")
            if stride == 2:
                h = bn(conv2d(h, w[f"{home}.downsample.0.weight"], stride=2), f"{home}.downsample.1")
            h = relu(inner + h)
    torch.testing.assert_close(pooled(x), linear(h.mean((2, 3)), w["fc.weight"], w["fc.bias"]))


@pytest.mark.parametrize(("shape", "labels"), [((1, 32, 32), 2), ((3, 64, 48), 5)])
def test_it_takes_any_channels_sizes_and_labels(shape: tuple[int, int, int], labels: int) -> None:
    module = architecture("resnet18").build(shape, labels).eval()
    assert module(torch.rand(2, *shape)).shape == (2, labels)


@pytest.mark.parametrize("side", [65, 96, 130, 200])
def test_the_fairalm_head_fits_every_size_it_accepts(side: int) -> None:
    module = ResNet18(head="fairalm").build((3, side, side), 2).eval()
    assert module(torch.rand(1, 3, side, side)).shape == (1, 2)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [({}, (12,)), ({}, (3, 16, 16)), ({"head": "fairalm"}, (3, 64, 64)), ({"head": "fairlam"}, (3, 128, 128))],
)
def test_what_it_cannot_take_is_refused(settings: dict[str, str], shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError):
        architecture("resnet18", settings).build(shape, 2)


def test_the_smallest_size_that_the_fairalm_head_names_is_the_smallest_it_takes() -> None:
    with pytest.raises(UserError, match="at least 65 px"):
        ResNet18(head="fairalm").build((3, 64, 64), 2)

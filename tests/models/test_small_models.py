"""Logistic regression, multi-layer perceptrons and the small convolutional network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ffalm.errors import UserError
from ffalm.models import CNN, MLP, Linear, architecture


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in module.parameters()]


def test_a_linear_model_has_one_layer() -> None:
    assert shapes(Linear().build((7,), 3)) == [(3, 7), (3,)]


def test_an_mlp_has_its_widths_in_order() -> None:
    module = MLP(hidden=(32, 16)).build((7,), 2)
    assert shapes(module) == [(32, 7), (32,), (16, 32), (16,), (2, 16), (2,)]
    assert module(torch.rand(5, 7)).shape == (5, 2)


def test_an_mlp_is_relu_layers_and_gives_raw_logits() -> None:
    module = MLP(hidden=(8,)).build((3,), 2)
    w = list(module.parameters())
    x = torch.randn(6, 3)
    expected = torch.relu(x @ w[0].T + w[1]) @ w[2].T + w[3]
    torch.testing.assert_close(module(x), expected)


def test_images_are_flattened_for_an_mlp() -> None:
    assert MLP().build((3, 8, 8), 2)(torch.rand(4, 3, 8, 8)).shape == (4, 2)


def test_a_cnn_halves_the_image_at_each_block() -> None:
    module = CNN(channels=(4, 6)).build((3, 16, 12), 5)
    assert shapes(module) == [(4, 3, 3, 3), (4,), (6, 4, 3, 3), (6,), (5, 6), (5,)]
    assert module(torch.rand(2, 3, 16, 12)).shape == (2, 5)


def test_models_are_found_by_name_with_their_settings() -> None:
    assert architecture("mlp", {"hidden": [10, 5]}) == MLP(hidden=(10, 5))
    assert architecture("cnn") == CNN()
    assert architecture("linear") == Linear()


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("mpl", {}, (3,)),
        ("mlp", {"hiden": [3]}, (3,)),
        ("mlp", {"hidden": [0]}, (3,)),
        ("mlp", {"hidden": "64"}, (3,)),
        ("cnn", {}, (10,)),
        ("cnn", {}, (3, 4, 4)),
        ("cnn", {"channels": []}, (3, 32, 32)),
        ("cnn", {"channels": [4, -1]}, (3, 32, 32)),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError):
        architecture(name, settings).build(shape, 2)

"""A flat model is the same model: its numbers only lie in one place."""

from __future__ import annotations

import pytest
import torch

from ffalm.engines.flat import Flat
from ffalm.engines.server import average
from ffalm.models import ResNet18


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_module_computes_as_before_and_follows_what_is_loaded(layout: torch.memory_format) -> None:
    model = ResNet18().build((3, 32, 32), 2).to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.rand(4, 3, 32, 32)
    before = model(images)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    flat = Flat(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, plain[name])
    flat.load({name: torch.zeros_like(value) for name, value in plain.items()})
    assert not model.eval()(images).any()
    flat.load(plain)
    model.train()
    torch.testing.assert_close(model(images), before)


def test_a_copy_is_apart_from_the_module() -> None:
    model = torch.nn.Linear(3, 2)
    flat = Flat(model)
    kept = flat.copied()
    weight = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert torch.equal(kept["weight"], weight)
    flat.load(kept)
    assert torch.equal(model.weight, weight)


def test_the_average_is_the_reference_average_bit_for_bit() -> None:
    model = ResNet18().build((3, 32, 32), 2)
    flat = Flat(model)
    copies = []
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.rand(2, 3, 32, 32))
        copies.append(flat.copied())
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    expected = average(copies, weights)
    found = flat.average(copies, weights)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())

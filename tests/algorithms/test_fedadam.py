"""FedAdam: the server's Adam by hand."""

from __future__ import annotations

import math

import pytest
from tests.contract import everyone, vector

from ffalm.algorithms import FedAdam
from ffalm.errors import UserError


def test_two_rounds() -> None:
    """server_lr 0.1, both betas 0.5, tau 1, x = 0. The clients' mean lies 2 above the model in both rounds:

    m = 0.5 * 2 = 1,          v = 0.5 * 1 + 0.5 * 4 = 2.5,      x = 0.1 * 1 / (sqrt(2.5) + 1)
    m = 0.5 * 1 + 1 = 1.5,    v = 0.5 * 2.5 + 2 = 3.25,         x += 0.1 * 1.5 / (sqrt(3.25) + 1)
    """
    algorithm, model = FedAdam(server_lr=0.1, beta1=0.5, beta2=0.5, tau=1.0), vector(0.0)
    vectors = algorithm.start_vectors(model)
    assert (vectors["mean"].tensors[0].tolist(), vectors["variance"].tensors[0].tolist()) == ([0.0], [1.0])
    expected = 0.0
    for mean, variance in ((1.0, 2.5), (1.5, 3.25)):
        model, vectors = algorithm.server_step(model, model + vector(2.0), vectors, {}, everyone(10, 30))
        expected += 0.1 * mean / (math.sqrt(variance) + 1)
        assert vectors["mean"].tensors[0].tolist() == pytest.approx([mean])
        assert vectors["variance"].tensors[0].tolist() == pytest.approx([variance])
        assert model.tensors[0].tolist() == pytest.approx([expected])


def test_every_parameter_has_a_step_of_its_own() -> None:
    """Without memory and with a small tau each moves by about server_lr in the direction of its change."""
    algorithm = FedAdam(server_lr=0.1, beta1=0.0, beta2=0.0, tau=1e-9)
    start = vector(0, 0, 0)
    model, _ = algorithm.server_step(start, vector(5, -0.01, 0), algorithm.start_vectors(start), {}, everyone(1))
    assert model.tensors[0].tolist() == pytest.approx([0.1, -0.1, 0.0])


@pytest.mark.parametrize(("settings", "why"), [
    ({"tau": 0}, "'tau' of FedAdam must be above 0; got 0"),
    ({"server_lr": -1}, "'server_lr' of FedAdam must be above 0; got -1"),
    ({"beta2": 1}, "'beta2' of FedAdam must be below 1; got 1"),
])  # fmt: skip
def test_settings_are_checked(settings: dict[str, float], why: str) -> None:
    with pytest.raises(UserError, match=why):
        FedAdam(**settings)

"""FedAvgM: server momentum by hand."""

from __future__ import annotations

import pytest
from tests.contract import everyone, vector

from ffalm.algorithms import FedAvgM
from ffalm.errors import UserError


def test_two_rounds() -> None:
    """Momentum 0.5, server_lr 2, x = 1. The clients' mean lies 0.1 below the model in both rounds:

    v = 0.1, x = 1 - 2 * 0.1 = 0.8;    v = 0.5 * 0.1 + 0.1 = 0.15, x = 0.8 - 2 * 0.15 = 0.5
    """
    algorithm, model = FedAvgM(momentum=0.5, server_lr=2.0), vector(1.0)
    vectors = algorithm.start_vectors(model)
    assert vectors["velocity"].tensors[0].tolist() == [0.0]
    for velocity, expected in ((0.1, 0.8), (0.15, 0.5)):
        model, vectors = algorithm.server_step(model, model - vector(0.1), vectors, {}, everyone(10, 30))
        assert vectors["velocity"].tensors[0].tolist() == pytest.approx([velocity])
        assert model.tensors[0].tolist() == pytest.approx([expected])


def test_without_momentum_and_with_server_lr_1_the_next_model_is_the_mean() -> None:
    algorithm = FedAvgM(momentum=0.0)
    model, _ = algorithm.server_step(
        vector(1, 2), vector(0.25, 4), algorithm.start_vectors(vector(1, 2)), {}, everyone(1)
    )
    assert model.tensors[0].tolist() == [0.25, 4.0]


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="'momentum' of FedAvgM must be 0 or more; got -1"):
        FedAvgM(momentum=-1)
    with pytest.raises(UserError, match="'server_lr' of FedAvgM must be above 0; got 0"):
        FedAvgM(server_lr=0)

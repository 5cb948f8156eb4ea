"""FedProx: the proximal term by hand."""

from __future__ import annotations

import pytest
from tests.contract import vector

from ffalm.algorithms import FedProx, Sent
from ffalm.errors import UserError


def test_the_drift_is_mu_times_the_distance_from_the_global_model() -> None:
    """0.5 * ((3, 1) - (1, 2)) = (1, -0.5)."""
    drift = FedProx(mu=0.5).drift(vector(3, 1), Sent({}, vector(1, 2)), {})
    assert drift.tensors[0].tolist() == [1.0, -0.5]


def test_two_local_steps() -> None:
    """From w = 1 with lr 0.1, mu 2 and the constant gradient 1: 1 - 0.1 * 1 = 0.9, 0.9 - 0.1 * (1 - 0.2) = 0.82."""
    algorithm, sent, weights = FedProx(mu=2.0), Sent({}, vector(1)), vector(1)
    for expected in (0.9, 0.82):
        weights = weights - 0.1 * (vector(1) + algorithm.drift(weights, sent, {}))
        assert weights.tensors[0].tolist() == pytest.approx([expected])


def test_at_the_global_model_and_without_mu_there_is_no_drift() -> None:
    assert FedProx().drift(vector(1, 2), Sent({}, vector(1, 2)), {}).tensors[0].tolist() == [0.0, 0.0]
    assert FedProx(mu=0.0).drift(vector(3), Sent({}, vector(1)), {}).tensors[0].tolist() == [0.0]


def test_mu_is_not_negative() -> None:
    with pytest.raises(UserError, match="'mu' of FedProx must be 0 or more; got -1"):
        FedProx(mu=-1)

"""SCAFFOLD: control variates by hand."""

from __future__ import annotations

import pytest
import torch
from tests.contract import everyone, report_of, vector

from ffalm.algorithms import SCAFFOLD, Sent

SENT = Sent({}, vector(1.0), {"control": vector(0.5)})  # x = 1, c = 0.5
OWN = {"control": vector(0.2)}  # c_i


def test_the_drift_is_the_servers_control_less_the_clients() -> None:
    """0.5 - 0.2 = 0.3, wherever the weights are."""
    assert SCAFFOLD().drift(vector(7.0), SENT, OWN).tensors[0].tolist() == pytest.approx([0.3])


def test_the_new_control_is_the_mean_gradient_along_the_way() -> None:
    """Two steps of lr 0.1 from x = 1 to y = 0.8: (1 - 0.8) / (2 * 0.1) = 1, so c_i+ = 0.2 - 0.5 + 1 = 0.7."""
    kept, uploads = SCAFFOLD().finish(vector(0.8), SENT, OWN, torch.tensor(2.0), 0.1)
    assert kept["control"].tensors[0].tolist() == pytest.approx([0.7])
    assert uploads["control_change"].tensors[0].tolist() == pytest.approx([0.5])


def test_of_a_constant_gradient_the_control_is_that_gradient() -> None:
    """g = 2: y = 1 - 3 * 0.1 * (2 + 0.3) = 0.31, and (1 - 0.31) / 0.3 - 0.3 = 2."""
    weights = vector(1.0)
    for _ in range(3):
        weights = weights - 0.1 * (vector(2.0) + SCAFFOLD().drift(weights, SENT, OWN))
    kept, _ = SCAFFOLD().finish(weights, SENT, OWN, torch.tensor(3.0), 0.1)
    assert weights.tensors[0].tolist() == pytest.approx([0.31])
    assert kept["control"].tensors[0].tolist() == pytest.approx([2.0])


def test_where_the_learning_rate_is_0_the_controls_stay_as_they_are() -> None:
    kept, uploads = SCAFFOLD().finish(vector(1.0), SENT, OWN, torch.tensor(2.0), 0.0)
    assert kept["control"].tensors[0].tolist() == [0.2]
    assert uploads["control_change"].tensors[0].tolist() == [0.0]


def test_the_server_keeps_the_mean_model_and_adds_the_mean_change() -> None:
    """0.5 + 0.4 = 0.9; where clients with 30 of the 40 rows took part, 0.5 + 30/40 * 0.4 = 0.8."""
    vectors, uploads = {"control": vector(0.5)}, {"control_change": vector(0.4)}
    model, after = SCAFFOLD().server_step(vector(1.0), vector(0.6), vectors, uploads, everyone(10, 30))
    assert model.tensors[0].tolist() == [0.6]
    assert after["control"].tensors[0].tolist() == pytest.approx([0.9])
    some = report_of(1, torch.tensor([10, 30]), torch.tensor([False, True]), None)
    _, after = SCAFFOLD().server_step(vector(1.0), vector(0.6), vectors, uploads, some)
    assert after["control"].tensors[0].tolist() == pytest.approx([0.8])

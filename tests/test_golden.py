"""Whole runs whose numbers are written down: they pin model initialisation, batches and noise of a seed.

The numbers came from this file's own runs at version 0.1.0 (commit 626dd45, torch 2.13.0 on a CPU). A change here means
that a seed no longer gives the results it gave: then say so in the changelog before the numbers are replaced.
"""

from __future__ import annotations

import pytest
import torch

import ffalm


def federation() -> ffalm.Federation:
    """Three clients of 12, 18 and 24 rows without any draw: features are sines of the row number."""

    def part(first: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        number = torch.arange(first, first + rows, dtype=torch.float64)
        x = torch.stack([(number * step).sin() for step in (0.7, 1.3, 2.9)], dim=1)
        return x, (x[:, 0] + 0.5 * x[:, 1] > 0.1).long(), (torch.arange(rows) + first) % 2

    return ffalm.Federation.from_arrays([part(0, 12), part(12, 18), part(30, 24)], validation=part(54, 20))


def linear() -> torch.nn.Module:
    return torch.nn.Linear(3, 2).double()


def run(privacy: ffalm.Privacy | None = None, lr: float = 0.5) -> ffalm.Result:
    return ffalm.simulate(
        ffalm.FFALM(),
        federation(),
        model=linear,
        rounds=2,
        batch_size=5,
        lr=lr,
        seed=5,
        engine="loop",
        device="cpu",
        privacy=privacy,
    )


def weights(result: ffalm.Result) -> list[float]:
    """The final model's weight matrix, then its bias."""
    return [*result.state_dict["weight"].flatten().tolist(), *result.state_dict["bias"].tolist()]


def test_a_seed_fixes_the_initial_model() -> None:
    """A learning rate of 1e-12 leaves the model as it was initialised."""
    expected = [
        0.290645659,
        0.304179102,
        0.520457506,
        -0.494810104,
        0.512944877,
        0.087365732,
        0.399788409,
        -0.049186498,
    ]
    assert weights(run(lr=1e-12)) == pytest.approx(expected, abs=1e-8)


def test_a_seed_fixes_the_trained_model_and_the_dual() -> None:
    result = run()
    expected = [-0.876765661, 0.220576738, 0.311304860, 0.672601216, 0.596547241, 0.296518378, 0.261619574, 0.088982338]
    assert weights(result) == pytest.approx(expected, abs=1e-8)
    assert float(result.state["dual"]) == pytest.approx(-0.100428588, abs=1e-8)
    assert [record["dual"] for record in result.history] == pytest.approx([-0.076139844, -0.100428588], abs=1e-8)


def test_a_seed_fixes_the_noise_on_the_model_and_on_the_dual() -> None:
    result = run(ffalm.Privacy(0.5, clip=0.2, state_clip=0.1))
    expected = [
        0.054726183,
        0.261609621,
        0.395332894,
        -0.144683822,
        0.548855135,
        0.109955312,
        0.333560144,
        -0.052054470,
    ]
    assert weights(result) == pytest.approx(expected, abs=1e-8)
    assert float(result.state["dual"]) == pytest.approx(-0.022659148, abs=1e-8)

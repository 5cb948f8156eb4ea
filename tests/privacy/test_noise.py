"""Where noise comes from: repeatable in simulations, unforeseeable in federations."""

from __future__ import annotations

import os

import pytest
import torch
from scipy import stats

from ffalm.privacy import KeyedNoise, Noise, SystemNoise
from ffalm.randomness import Purpose


def test_keyed_noise_is_a_function_of_seed_purpose_round_and_client() -> None:
    noise = KeyedNoise(3)
    one = noise.normal(Purpose.MODEL_NOISE, 2, 50, 1)
    assert torch.equal(one, KeyedNoise(3).normal(Purpose.MODEL_NOISE, 2, 50, 1))
    for other in (
        KeyedNoise(4).normal(Purpose.MODEL_NOISE, 2, 50, 1),
        noise.normal(Purpose.TALLY_NOISE, 2, 50, 1),
        noise.normal(Purpose.MODEL_NOISE, 3, 50, 1),
        noise.normal(Purpose.MODEL_NOISE, 2, 50, 2),
    ):
        assert not torch.isclose(one, other).any()


def test_keyed_noise_of_a_seed_never_changes() -> None:
    """The numbers of numpy's default generator seeded with [seed, purpose 9, round, client 0]."""
    found = KeyedNoise(3).normal(Purpose.MODEL_NOISE, 2, 3)
    assert found.tolist() == pytest.approx([0.962705266, -0.941631921, 0.176667949], abs=1e-9)
    assert torch.equal(found, KeyedNoise(3).normal(Purpose.MODEL_NOISE, 2, 3, client=0))


def test_system_noise_is_never_the_same_whatever_was_seeded() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(SystemNoise().normal(Purpose.MODEL_NOISE, 1, 50))
    assert not torch.isclose(found[0], found[1]).any()


def test_system_noise_asks_the_operating_system_for_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    genuine = os.urandom

    def counted(size: int) -> bytes:
        asked.append(size)
        return genuine(size)

    monkeypatch.setattr(os, "urandom", counted)
    SystemNoise().normal(Purpose.MODEL_NOISE, 1, 101)
    assert sum(asked) >= 8 * 101


@pytest.mark.parametrize("noise", [KeyedNoise(0), SystemNoise()])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_noise_comes_in_the_size_asked_for(noise: Noise, size: int) -> None:
    found = noise.normal(Purpose.MODEL_NOISE, 1, size)
    assert found.shape == (size,) and found.dtype == torch.float64 and found.isfinite().all()


def test_bits_become_standard_normal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(0)
    monkeypatch.setattr(
        os, "urandom", lambda size: bytes(torch.randint(256, (size,), dtype=torch.uint8, generator=draws).tolist())
    )
    found = SystemNoise().normal(Purpose.MODEL_NOISE, 1, 20_000).numpy()
    assert stats.kstest(found, "norm").pvalue > 0.01
    assert abs(stats.pearsonr(found[:10_000], found[10_000:]).statistic) < 0.04


def test_the_rarest_bits_give_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\0", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda size, byte=byte: byte * size)
        assert SystemNoise().normal(Purpose.MODEL_NOISE, 1, 4).isfinite().all()

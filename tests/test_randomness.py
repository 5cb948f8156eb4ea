"""Randomness is a function of (seed, purpose, round, client) and of nothing else."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import torch

from ffalm.randomness import Purpose, generator, torch_seeded


def test_the_same_key_gives_the_same_draws_whatever_happened_before() -> None:
    once = generator(3, Purpose.BATCHES, 7, 2).random(5)
    generator(3, Purpose.BATCHES, 7, 1).random(100)
    assert np.array_equal(once, generator(3, Purpose.BATCHES, 7, 2).random(5))


def test_every_part_of_the_key_matters() -> None:
    keys = itertools.product((0, 1, 2), (Purpose.MODEL, Purpose.BATCHES), (0, 1, 2), (0, 1, 2))
    draws = {tuple(generator(*key).integers(2**60, size=2).tolist()) for key in keys}
    assert len(draws) == 54


def test_purposes_keep_their_numbers_since_every_result_depends_on_them() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "MODEL": 1, "PARTITION": 2, "BATCHES": 3, "PARTICIPATION": 4, "LAYERS": 5, "DATA": 6, "SPLIT": 7,
        "BOOTSTRAP": 8, "MODEL_NOISE": 9, "TALLY_NOISE": 10, "SCORE_NOISE": 11,
    }  # fmt: skip


def test_a_stream_is_pinned_so_that_old_results_stay_reproducible() -> None:
    """NumPy promises the bits of SeedSequence and PCG64; a change of the key's layout would show here."""
    assert (
        generator(0, Purpose.BATCHES, 1, 2).bit_generator.random_raw()
        == np.random.PCG64(np.random.SeedSequence([0, 3, 1, 2])).random_raw()
    )


def test_torch_is_seeded_by_the_key_and_given_back_untouched() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch_seeded(1, Purpose.LAYERS, 4, 2):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    torch.rand(17)
    with torch_seeded(1, Purpose.LAYERS, 4, 2):
        assert torch.equal(torch.rand(3), inside)
    with torch_seeded(1, Purpose.LAYERS, 4, 3):
        assert not torch.equal(torch.rand(3), inside)


def test_the_callers_generator_comes_back_after_an_error_too() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with contextlib.suppress(KeyError), torch_seeded(1, Purpose.MODEL):
        {}[torch.rand(9)]  # type: ignore[index]
    assert torch.equal(torch.rand(3), expected)

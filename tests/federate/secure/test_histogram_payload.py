"""Score histograms under masks: exact sums, in words that hold as many counts as fit."""

from __future__ import annotations

import pytest
import torch
from tests.federate.secure.test_payload import TASK, tally

from ffalm.fairness import ScoreHistogram
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.secure.fixed_point import OutOfRange, added
from ffalm.federate.secure.histogram_payload import count_bits, histogram_numbers, read_histograms, with_histograms
from ffalm.federate.secure.payload import score_layout, score_numbers
from ffalm.federate.secure.secure_settings import Secure

NAMES = ("train", "validation", "test")


def told(counts: torch.Tensor) -> dict[str, Disclosed]:
    return dict.fromkeys(NAMES, Disclosed.of(tally(1, 2), 0, ScoreHistogram(counts)))


@pytest.mark.parametrize(("largest", "words"), [(1, 2048 // 2), (0, 2048 // 29 + 1), (1000, 2048)])
def test_histograms_add_up_exactly_in_as_few_words_as_hold_their_counts(largest: int, words: int) -> None:
    counts = torch.arange(2048).view(512, 1, 2, 2) % 7 * largest
    bits = count_bits([{part: 2 * counts.sum((0, 1)) for part in NAMES}])
    plain = score_layout(TASK, Secure(), 3)
    layout = with_histograms(plain, TASK, bits)
    own = told(counts)
    tallies = score_numbers({part: one.tally for part, one in own.items() if part != "train"})
    one = layout.words({**tallies, **histogram_numbers(own, 3, bits)})
    sums = read_histograms(layout.values(added(one, one)), TASK, 3, bits)
    assert sums.keys() == {"training", "validation", "test"}
    assert all(torch.equal(one.counts, 2 * counts) for one in sums.values())
    grown = {width: len(words) - len(plain.empty()[width]) for width, words in layout.empty().items()}
    assert grown == {"32": 3 * words, "64": 0}


def test_all_rows_of_all_sites_in_one_bin_do_not_reach_into_the_next() -> None:
    counts = torch.zeros(512, 1, 2, 2, dtype=torch.int64)
    counts[3, 0, 0, 1] = 341
    bits = count_bits([dict.fromkeys(NAMES, torch.tensor([[341, 0], [0, 0]]))] * 3)
    layout = with_histograms(score_layout(TASK, Secure(), 3), TASK, bits)
    own = told(counts)
    tallies = score_numbers({part: one.tally for part, one in own.items() if part != "train"})
    one = layout.words({**tallies, **histogram_numbers(own, 3, bits)})
    assert bits == 10
    sums = read_histograms(layout.values(added(added(one, one), one)), TASK, 3, bits)
    assert torch.equal(sums["test"].counts, 3 * counts)


def test_a_site_with_more_rows_than_the_bits_hold_sends_nothing() -> None:
    with pytest.raises(OutOfRange, match="more rows than the 3 bits"):
        histogram_numbers(told(torch.ones(512, 1, 2, 2, dtype=torch.int64)), 3, 3)

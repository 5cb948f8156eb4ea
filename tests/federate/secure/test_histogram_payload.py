"""Score histograms under masks: exact sums, in words of 32 bits."""

from __future__ import annotations

import torch
from tests.federate.secure.test_payload import TASK, tally

from ffalm.fairness import ScoreHistogram
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.secure.fixed_point import added
from ffalm.federate.secure.histogram_payload import histogram_numbers, read_histograms, with_histograms
from ffalm.federate.secure.payload import score_layout, score_numbers
from ffalm.federate.secure.secure_settings import Secure


def test_histograms_add_up_exactly_in_32_bits() -> None:
    counts = torch.arange(2048).view(512, 1, 2, 2) * 1000
    told = dict.fromkeys(("train", "validation", "test"), Disclosed.of(tally(1, 2), 0, ScoreHistogram(counts)))
    plain = score_layout(TASK, Secure(), 3)
    layout = with_histograms(plain, TASK)
    tallies = score_numbers({part: one.tally for part, one in told.items() if part != "train"})
    one = layout.words({**tallies, **histogram_numbers(told)})
    sums = read_histograms(layout.values(added(one, one)), TASK)
    assert sums.keys() == {"training", "validation", "test"}
    assert all(torch.equal(one.counts, 2 * counts) for one in sums.values())
    grown = {width: len(words) - len(plain.empty()[width]) for width, words in layout.empty().items()}
    assert grown == {"32": 3 * 2048, "64": 0}

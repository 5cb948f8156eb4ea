"""Score histograms as bytes: exact, small beside a round's models, and refused where a site sends something else."""

from __future__ import annotations

import random
import zlib

import pytest
import torch
from safetensors.torch import save

import ffalm
from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram
from ffalm.fairness.histograms import scores_of
from ffalm.federate.histogram_bytes import PARTS, packed_histograms, unpacked_histograms
from ffalm.simulation import rebuilt

TASK = Task("t")


def histograms(*counts: torch.Tensor) -> dict[str, ScoreHistogram]:
    return dict(zip(PARTS.values(), map(ScoreHistogram, counts), strict=True))


def bytes_of(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def drawn(largest: int, share: float, seed: int, cells: tuple[int, ...] = (1, 2, 2)) -> torch.Tensor:
    """Counts up to `largest` in this share of the bins."""
    draws = torch.Generator().manual_seed(seed)
    filled = torch.rand(512, *cells, generator=draws) < share
    return torch.randint(0, largest + 1, (512, *cells), generator=draws) * filled


@pytest.mark.parametrize("largest", [0, 1, 5, 300, 2**31 - 1])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_counts_come_back_exactly(largest: int, share: float) -> None:
    sent = histograms(*(drawn(largest, share, seed) for seed in range(3)))
    read = unpacked_histograms(packed_histograms(sent), TASK)
    assert read is not None and read.keys() == PARTS.keys()
    assert all(torch.equal(read[part].counts, sent[name].counts) for part, name in PARTS.items())


def test_three_labels_and_four_groups_come_back_exactly() -> None:
    task = Task("t", label_names=("a", "b", "c"), group_names=("p", "q", "r", "s"))
    sent = histograms(*(drawn(9, 0.3, seed, (2, 3, 4)) for seed in range(3)))
    read = unpacked_histograms(packed_histograms(sent), task)
    assert read is not None and torch.equal(read["test"].counts, sent["test"].counts)
    assert unpacked_histograms(packed_histograms(sent), TASK) is None


def test_the_histograms_of_three_sites_are_less_than_one_per_cent_of_a_round() -> None:
    federation = ffalm.load("census", rows=3000, clients=3, partition="iid")
    result = ffalm.simulate("fedavg", federation, rounds=5)
    model, task = rebuilt(result.state_dict, federation, {}), federation.task
    assert federation.validation is not None and federation.test is not None
    for place, client in enumerate(federation.clients):
        counted = {}
        for name, part in zip(PARTS.values(), (client, federation.validation, federation.test), strict=True):
            own = slice(None) if part is client else slice(place, None, 3)
            scores, fallback = scores_of(model.logits(part.x[own]), 1)
            counted[name] = ScoreHistogram.of(scores, fallback, part.y[own], part.group[own], (2, 2), 1)
        model_bytes, update = len(save(dict(result.state_dict))), dict(result.state_dict)
        with_scores = len(save({**update, "scores/histograms": packed_histograms(counted)}))
        assert with_scores - model_bytes < 0.01 * (2 * model_bytes)  # a round goes there and back
        assert unpacked_histograms(packed_histograms(counted), task) is not None


def test_other_bytes_are_refused() -> None:
    right = packed_histograms(histograms(*(drawn(5, 0.5, seed) for seed in range(3))))
    content = right.numpy().tobytes()
    endless = zlib.compress(bytes(10**8))
    for wrong in (
        b"",
        b"\0",
        content[:-1],
        content + b"\0",
        content + b"\x80",
        content[:40] + b"\xff" * 100_000,
        endless,
    ):
        assert wrong == b"" or unpacked_histograms(bytes_of(wrong), TASK) is None
    assert unpacked_histograms(torch.zeros(0, dtype=torch.uint8), TASK) is None
    assert unpacked_histograms(right.int(), TASK) is None


def test_random_bytes_are_refused_or_are_counts() -> None:
    draws = random.Random(0)
    for _ in range(300):
        found = unpacked_histograms(bytes_of(draws.randbytes(draws.choice([1, 3, 30, 300]))), TASK)
        assert found is None or all(bool((one.counts >= 0).all()) for one in found.values())

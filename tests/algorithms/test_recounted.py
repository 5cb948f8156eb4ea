"""Clients that become known late, as sites of a real federation may, or that are gone."""

from __future__ import annotations

import pytest
import torch
from tests.contract import TASK
from tests.variants import variants

import ffalm
from ffalm.algorithms import Algorithm

COUNTS = torch.tensor([[[30, 10], [20, 5]], [[8, 40], [3, 9]], [[12, 2], [7, 31]]])
LATE = torch.tensor([False, False, True])
METHODS = [
    *variants(),
    ffalm.FedFB(metric="eo"),
    ffalm.FedMinMax(),
    ffalm.FedGFT(constraint="dp,eo"),
    ffalm.Reductions(multiplier=0.3),
]


@pytest.mark.parametrize("algorithm", METHODS, ids=str)
def test_one_that_comes_late_to_a_state_that_has_not_moved_counts_as_if_it_had_been_there(algorithm: Algorithm) -> None:
    before = algorithm.start(TASK, torch.where(LATE.view(-1, 1, 1), 0, COUNTS))
    found, expected = algorithm.recounted(before, TASK, COUNTS, LATE), algorithm.start(TASK, COUNTS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", ["dp", "eo"])
def test_the_row_weights_of_fedfb_stay_and_its_duals_follow_the_shares(metric: str) -> None:
    algorithm = ffalm.FedFB(metric=metric)  # type: ignore[arg-type]
    state = algorithm.start(TASK, COUNTS[:2])
    weights = torch.tensor([[1.2, 0.7], [0.8, 1.3]] if metric == "dp" else [[1.0, 1.0], [1.4, 0.6]]).double()
    moved = algorithm.recounted({**state, "row_weights": weights}, TASK, COUNTS, LATE)
    assert moved["row_weights"].equal(weights)
    rows = COUNTS.sum(0).double() / COUNTS.sum()
    shares = rows.sum(0) if metric == "dp" else rows[1]
    torch.testing.assert_close(moved["duals"], weights[0 if metric == "dp" else 1] * shares)


def test_the_rows_of_fedminmax_keep_the_proportions_of_their_weights() -> None:
    algorithm, weights = ffalm.FedMinMax(), torch.tensor([1.5, 0.75]).double()
    state = algorithm.start(TASK, COUNTS[:2])
    found = algorithm.recounted({**state, "row_weights": weights.expand(2, 2)}, TASK, COUNTS, LATE)
    shares = COUNTS.sum((0, 1)).double() / COUNTS.sum()
    mixture = weights * shares / (weights * shares).sum()
    torch.testing.assert_close(found["group_weights"], mixture)
    torch.testing.assert_close(found["row_weights"], (mixture / shares).expand(2, 2))


def test_a_group_that_only_the_late_one_has_weighs_as_any_other_under_fedminmax() -> None:
    counts = COUNTS.clone()
    counts[:2, :, 1] = 0
    algorithm = ffalm.FedMinMax()
    alone = algorithm.project(algorithm.start(TASK, torch.where(LATE.view(-1, 1, 1), 0, counts)))
    found = algorithm.recounted(alone, TASK, counts, LATE)
    torch.testing.assert_close(found["row_weights"], torch.ones(2, 2).double())


def test_prices_follow_the_new_shares() -> None:
    algorithm = ffalm.Lagrangian(constraint="dp")
    state = {**algorithm.start(TASK, COUNTS[:2]), "duals": torch.tensor([[0.5, -0.5]]).double()}
    found = algorithm.recounted(state, TASK, COUNTS, LATE)["prices"][0]
    shares = COUNTS.sum((0, 1)).double() / COUNTS.sum()
    expected = shares.min() * torch.tensor([0.5, -0.5]).double() / shares
    torch.testing.assert_close(found, expected.expand(2, 2))


def test_a_rate_that_was_not_known_has_no_price_until_it_is_measured() -> None:
    counts = COUNTS.clone()
    counts[:2, :, 1] = 0
    algorithm = ffalm.FedGFT(penalty=1.0)
    state = algorithm.start(TASK, torch.where(LATE.view(-1, 1, 1), 0, counts))
    state = {**state, "rates": torch.tensor([[0.4, 0.0]]).double()}
    found = algorithm.recounted(state, TASK, counts, LATE)
    assert not found["prices"].any() and bool((found["rate_shares"] > 0).all())

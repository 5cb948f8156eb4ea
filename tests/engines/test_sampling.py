"""Who takes part, and in which batches rows are seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ffalm.engines import Training
from ffalm.engines.sampling import batches, drawn, participants


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 300), size=st.one_of(st.none(), st.integers(1, 400)), epochs=st.integers(1, 3))
def test_every_epoch_sees_every_row_once_and_keeps_the_last_short_batch(
    rows: int, size: int | None, epochs: int
) -> None:
    taken = batches(0, 1, 0, rows, Training(batch_size=size, local_epochs=epochs))
    per_epoch = len(taken) // epochs
    whole = min(size or rows, rows)
    assert len(taken) == epochs * -(-rows // whole)
    for epoch in range(epochs):
        one = taken[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(torch.cat(one).tolist()) == list(range(rows))
        assert all(len(batch) == whole for batch in one[:-1])
        assert len(one[-1]) == rows - whole * (per_epoch - 1)


def test_epochs_rounds_clients_and_seeds_are_shuffled_apart() -> None:
    plan = Training(batch_size=50, local_epochs=2)
    first = [batch.tolist() for batch in batches(0, 1, 0, 50 + 50, plan)]
    assert first[:2] != first[2:]
    for seed, round, client in ((1, 1, 0), (0, 2, 0), (0, 1, 1)):
        assert first != [batch.tolist() for batch in batches(seed, round, client, 100, plan)]
    assert first == [batch.tolist() for batch in batches(0, 1, 0, 100, plan)]


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 11])
def test_local_steps_count_batches_over_as_many_epochs_as_it_takes(steps: int) -> None:
    taken = batches(0, 1, 0, 10, Training(batch_size=3, local_steps=steps))
    assert len(taken) == steps
    longer = batches(0, 1, 0, 10, Training(batch_size=3, local_epochs=3))
    assert all(torch.equal(a, b) for a, b in zip(taken, longer, strict=False))


@pytest.mark.parametrize("length", [{"local_epochs": 2}, {"local_steps": 3}, {"local_steps": 9}], ids=str)
def test_batches_are_cut_out_of_all_that_is_drawn(length: dict[str, int]) -> None:
    plan = Training(batch_size=4, **length)
    order, sizes = drawn(0, 1, 0, 10, plan)
    taken = batches(0, 1, 0, 10, plan)
    assert [len(batch) for batch in taken] == sizes.tolist()
    assert torch.cat(taken).tolist() == order.tolist()


def test_a_full_batch_is_all_rows_in_their_own_order() -> None:
    for size in (None, 7, 100):
        (batch,) = batches(3, 9, 4, 7, Training(batch_size=size))
        assert batch.tolist() == list(range(7))


def test_full_participation_is_everybody_in_order() -> None:
    assert participants(0, 1, 5, 1.0) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("clients", "share", "wanted"), [(10, 0.3, 3), (10, 0.25, 3), (10, 0.01, 1), (1, 0.1, 1), (3, 0.5, 2), (7, 0.99, 7)]
)
def test_a_share_of_the_clients_takes_part_and_at_least_one(clients: int, share: float, wanted: int) -> None:
    for round in range(1, 6):
        chosen = participants(0, round, clients, share)
        assert len(set(chosen)) == len(chosen) == wanted
        assert chosen == sorted(chosen)
        assert set(chosen) <= set(range(clients))


def test_everybody_is_chosen_about_equally_often_and_rounds_differ() -> None:
    chosen = [participants(0, round, 10, 0.3) for round in range(1, 401)]
    times = np.bincount([client for one in chosen for client in one], minlength=10)
    assert abs(times - 120).max() < 40
    assert len({tuple(one) for one in chosen}) > 50
    assert participants(1, 1, 10, 0.3) != participants(0, 1, 10, 0.3) or participants(1, 2, 10, 0.3) != chosen[1]

"""Holdings: rows of a table by their numbers, gathered when somebody asks."""

from __future__ import annotations

import torch

from ffalm.data.row_views import ClientRows, RowView, row_views_of
from ffalm.data.types import Examples, Task

TABLE = Examples(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 1]))


def test_a_holding_gathers_its_rows() -> None:
    held = RowView(TABLE, torch.tensor([4, 1, 2]))
    assert len(held) == 3
    assert held.examples().x[:, 0].tolist() == [8, 2, 4]
    assert held.first(2).x[:, 0].tolist() == [8, 2]


def test_a_holding_of_everything_is_the_source_itself() -> None:
    held = RowView(TABLE)
    assert held.examples() is TABLE
    assert len(held.first(99)) == len(held) == 6


def test_rows_are_counted_as_those_of_the_gathered_examples() -> None:
    held = RowView(TABLE, torch.tensor([5, 3, 0]))
    assert torch.equal(held.counts(Task("t")), held.examples().counts(Task("t")))
    assert torch.equal(RowView(TABLE).counts(Task("t")), TABLE.counts(Task("t")))


def test_dealt_rows_read_like_a_list_of_examples() -> None:
    dealt = ClientRows([RowView(TABLE, torch.tensor([row])) for row in range(3)])
    assert [examples.x[0, 0].item() for examples in dealt] == [0, 2, 4]
    assert dealt[-1].y.tolist() == [0]
    assert [len(examples) for examples in dealt[1:]] == [1, 1]


def test_nobody_keeps_what_was_gathered() -> None:
    dealt = ClientRows([RowView(TABLE, torch.tensor([0, 1]))])
    assert dealt[0].x is not dealt[0].x


def test_examples_that_stand_for_themselves_are_held_whole() -> None:
    assert row_views_of([TABLE]) == (RowView(TABLE),)
    dealt = ClientRows([RowView(TABLE, torch.tensor([0]))])
    assert row_views_of(dealt) is dealt.row_views

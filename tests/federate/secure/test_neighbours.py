"""Who is whose neighbour."""

from __future__ import annotations

import pytest

from ffalm.federate.secure.circles import needed, ring


def test_few_sites_are_all_neighbours() -> None:
    assert ring("run", [0, 2, 5], 2) == {0: (2, 5), 2: (0, 5), 5: (0, 2)}


def test_among_many_each_has_as_many_as_asked_for_and_being_neighbours_is_mutual() -> None:
    near = ring("run", range(20), 6)
    assert all(len(set(others)) == 6 and client not in others for client, others in near.items())
    assert all(client in near[other] for client, others in near.items() for other in others)


def test_everybody_is_joined_to_everybody_by_some_way() -> None:
    near = ring("run", range(30), 4)
    reached, new = {0}, {0}
    while new:
        new = {other for client in new for other in near[client]} - reached
        reached |= new
    assert reached == set(range(30))


def test_the_order_is_another_in_each_run_and_the_same_in_all_its_sums() -> None:
    assert ring("run", range(20), 2) == ring("run", [*reversed(range(20))], 2) != ring("another", range(20), 2)


@pytest.mark.parametrize(
    ("circle", "share", "expected"), [(5, 0.6, 3), (3, 0.6, 2), (2, 0.6, 2), (4, 0.75, 3), (10, 1.0, 10), (4, 0.51, 3)]
)
def test_a_share_of_a_circle_is_rounded_up_and_is_two_at_least(circle: int, share: float, expected: int) -> None:
    assert needed(circle, share, circle) == expected


@pytest.mark.parametrize(("circle", "share", "expected"), [(3, 0.6, 3), (5, 0.6, 4), (33, 0.51, 18), (33, 0.6, 20)])
def test_in_circles_that_are_not_of_everyone_one_more_than_most_must_answer(
    circle: int, share: float, expected: int
) -> None:
    assert needed(circle, share, circle + 1) == expected

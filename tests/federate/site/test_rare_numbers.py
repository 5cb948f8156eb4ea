"""Numbers that few rows hold are put together before a site sums a column."""

from __future__ import annotations

import numpy as np
import pytest

from ffalm.federate.site.rare_numbers import put_together


def column(counts: dict[float, int]) -> np.ndarray:
    """So many rows of each value, in any order."""
    return np.random.default_rng(0).permutation(np.repeat([*map(float, counts)], [*counts.values()]))


def told(counts: dict[float, int], fewest: int = 10) -> dict[float, int]:
    values, rows = np.unique(put_together(column(counts), fewest), return_counts=True)
    return dict(zip(values.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({0: 300, 5: 100, -2.5: 10}, {0: 300, 5: 100, -2.5: 10}),  # all are held by enough rows
        ({0: 273, 1: 93, 2: 43, 3: 2}, {0: 273, 1: 93, 2: 45}),  # too few above
        ({0: 4, 7: 20, 9: 3, 20: 3, 21: 30}, {7: 27, 21: 33}),  # too few below and between: the nearer
        ({0: 20, 3: 8, 4: 2}, {0: 20, 3: 10}),  # enough together, in steps of one
        ({0: 20, 3: 7, 4: 3}, {0: 20, 3: 10}),
        ({0: 20, 3: 4, 4: 4, 5: 3, 9: 9, 10: 9}, {0: 20, 4: 11, 9: 18}),
        ({0: 1, 1: 1, 2.6: 9}, {2: 11}),  # not above the largest
        ({0: 9, 61_234: 1}, {0: 10}),
        ({1.5: 9, 2.0: 9, 2.5: 1, 8.0: 20}, {2.0: 19, 8.0: 20}),
    ],
)
def test_each_number_that_is_told_is_held_by_enough_rows(held: dict[float, int], expected: dict[float, int]) -> None:
    assert told(held) == expected


@pytest.mark.parametrize("fewest", [2, 10, 25])
@pytest.mark.parametrize("digits", [0, 1, 12])
def test_whatever_the_column_no_number_is_told_of_too_few_and_the_order_stays(fewest: int, digits: int) -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        values = np.round(draw.standard_t(2, draw.integers(fewest, 400)) * 7, digits)
        values[draw.random(len(values)) < draw.random() / 2] = 0.0
        given = put_together(values, fewest)
        assert np.unique(given, return_counts=True)[1].min() >= fewest
        assert (np.diff(given[np.argsort(values, kind="stable")]) >= 0).all()
        assert values.min() <= given.min() and given.max() <= values.max()


def test_numbers_that_are_all_different_are_told_as_means_of_enough() -> None:
    values = np.random.default_rng(3).normal(50, 9, 40)
    parts = np.sort(values).reshape(4, 10)
    assert np.unique(put_together(values, 10)) == pytest.approx(parts.mean(1), rel=1e-3)


def test_mean_and_scale_of_a_column_hardly_change() -> None:
    values = np.random.default_rng(4).normal(40, 12, 2000).round(1)
    given = put_together(values, 10)
    assert given.mean() == pytest.approx(values.mean(), rel=2e-3)
    assert given.std() == pytest.approx(values.std(), rel=1e-2)


def test_numbers_of_any_size_are_put_together() -> None:
    for values in ([-1.7e308, 1.7e308] * 5, [-1.7e308, 1.7e308, 5e-324, 0.0] * 3 + [1e300 * n for n in range(8)]):
        assert np.isfinite(put_together(np.array(values), 10)).all()

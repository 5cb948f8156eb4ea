from __future__ import annotations

import numpy as np
import pytest

from ffalm.theory.numeric import largest, roots, smallest


def test_every_root_of_a_function_is_found_to_the_last_bit() -> None:
    found = roots(np.sin, -7.0, 7.0)
    assert found == pytest.approx([-2 * np.pi, -np.pi, 0.0, np.pi, 2 * np.pi], abs=1e-15)


def test_a_root_that_lies_on_the_grid_is_found_once() -> None:
    assert roots(lambda x: x - 1.0, 0.0, 2.0) == [1.0]


def test_a_function_that_only_touches_zero_between_grid_points_has_no_root_here() -> None:
    assert roots(lambda x: x**2 + 1e-12, -1.0, 1.0) == []


def test_the_lowest_of_several_minima_wins() -> None:
    at, value = smallest(lambda x: (x**2 - 1) ** 2 + 0.1 * x, -2.0, 2.0)
    assert at == pytest.approx(-1.012, abs=1e-3)
    assert value == pytest.approx((at**2 - 1) ** 2 + 0.1 * at)


def test_an_extremum_at_the_edge_of_the_interval_is_found() -> None:
    assert smallest(lambda x: x, 2.0, 3.0) == (2.0, 2.0)
    assert largest(lambda x: x**2, -1.0, 3.0) == (3.0, 9.0)

"""Numbers as people give them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffalm.arrays import codes, numbers
from ffalm.errors import UserError


def test_arrays_of_any_kind_become_tensors() -> None:
    read_only = np.arange(4.0)
    read_only.flags.writeable = False
    for given in ([0.0, 1.0, 2.0, 3.0], read_only, np.arange(4, dtype=np.uint16), torch.arange(4)):
        assert numbers(given, "features").tolist() == [0, 1, 2, 3]
    assert numbers(np.arange(4)[::-1], "features").tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("given", [["a", "b"], [[1], [2, 3]], np.array(["x"])])
def test_what_is_no_array_of_numbers_is_refused(given: object) -> None:
    with pytest.raises(UserError, match="The labels must be numbers"):
        numbers(given, "labels")


def test_codes_are_whole_numbers_from_0_up() -> None:
    assert codes([0.0, 2.0, 1.0], "groups").tolist() == [0, 2, 1]
    for given in ([0.7, 1.0], [-1, 0], [float("nan"), 0.0]):
        with pytest.raises(UserError, match="whole numbers from 0 up"):
            codes(given, "groups")


def test_codes_that_are_names_rather_than_numbers_are_refused() -> None:
    with pytest.raises(UserError, match=r"groups go up to 90210.*pandas\.factorize"):
        codes([10115, 90210], "groups")

"""Numbers as people give them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from ffalm.arrays import codes, column, numbers
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


def test_a_missing_text_in_a_list_is_missing_and_no_text() -> None:
    found = column(["a", float("nan"), "b", None, 1], "groups")
    assert found.isna().tolist() == [False, True, False, True, False]


def test_no_warning_of_torch_reaches_a_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers([np.arange(2.0), np.arange(2.0)], "features").tolist() == [[0, 1], [0, 1]]
    assert numbers(torch._neg_view(torch.arange(2.0)), "features").numpy().tolist() == [0, -1]


def test_codes_are_whole_numbers_from_0_up() -> None:
    assert codes([0.0, 2.0, 1.0], "groups").tolist() == [0, 2, 1]
    for given in ([0.7, 1.0], [-1, 0], [float("nan"), 0.0]):
        with pytest.raises(UserError, match="whole numbers from 0 up"):
            codes(given, "groups")


def test_codes_that_are_names_rather_than_numbers_are_refused() -> None:
    with pytest.raises(UserError, match=r"groups go up to 90210.*pandas\.factorize"):
        codes([10115, 90210], "groups")


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([0, 1], dtype=torch.uint16),
        torch.tensor([0, 1], dtype=torch.uint64),
        torch.tensor([0.0, 1.0]).to(torch.float8_e4m3fn),
        np.array([0, 1], dtype=np.uint64),
        np.array([0, 1], dtype=np.longdouble),
        np.array([0, 1], dtype=">i8"),
        np.ma.masked_array([0, 1]),
        pd.Series([0, 1], dtype="UInt32"),
    ],
    ids=str,
)
def test_types_in_which_torch_does_not_compute_are_converted(given: object) -> None:
    assert codes(given, "groups").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.zeros(2, device="meta"), "without values"),
        (torch.zeros(2).to_sparse(), r"sparse tensor: call \.to_dense"),
        (torch.zeros(2, dtype=torch.complex64), "complex"),
        (np.ma.masked_array([0, 1], mask=[False, True]), "1 masked values"),
        (np.array([2**63], dtype=np.uint64), "scale them down"),
        (pd.Series([0, None], dtype="Int64"), "some are NaN"),
        ([10**30], "must be numbers"),
    ],
)
def test_tensors_that_cannot_be_taken_are_refused_by_their_role(given: object, words: str) -> None:
    with pytest.raises(UserError, match=f"The groups .*{words}"):
        codes(given, "groups")


def test_a_column_is_taken_from_anything_with_one_entry_per_row() -> None:
    series = pd.Series([1, 0], index=[7, 7])
    for given in ([1, 0], np.array([[1], [0]]), series, torch.tensor([1, 0]), torch.tensor([1.0, 0.0]).bfloat16()):
        found = column(given, "labels")
        assert found.tolist() == [1, 0] and found.index.tolist() == [0, 1]
    masked = np.ma.masked_array([1, 0], mask=[False, True])
    assert column(masked, "labels").isna().tolist() == [False, True]


@pytest.mark.parametrize(
    "given", [3, "x", {"a": 1}, np.zeros((2, 2)), [[1], [1, 2]], iter([1]), torch.zeros(2, 2).to_sparse()]
)
def test_what_is_no_column_is_refused(given: object) -> None:
    with pytest.raises(UserError, match="The labels"):
        column(given, "labels")


def test_a_big_endian_column_has_the_values_of_any_other() -> None:
    for given in (np.array([0, 1, 0], dtype=">i4"), pd.Series(np.array([0.0, 1.0, 0.0], dtype=">f8"))):
        assert column(given, "labels").unique().tolist() == [0, 1]

"""Compact features are what their dense form is, wherever a tensor of rows is used."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

import ffalm
from ffalm.data import compact_features
from ffalm.data.census import Census
from ffalm.data.compact_features import (
    CompactFeatures,
    as_tensors,
    from_tensors,
    row_blocks,
    row_bytes,
    stored_bytes,
    take_rows,
)
from ffalm.data.types import Dataset, Examples
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.partition import Partition


def features(rows: int = 12) -> CompactFeatures:
    """Features 0 to 2 and 4 to 6 are categories of two columns, 3 and 7 are numbers; some categories are unknown."""
    number = torch.arange(rows)
    codes = torch.stack([number % 3, 4 + number % 2], 1).short()
    codes[1, 0] = codes[4, 1] = -1
    return CompactFeatures(torch.randn(rows, 2, generator=torch.manual_seed(0)), torch.tensor([3, 7]), codes, 8)


def test_each_row_has_its_numbers_and_a_one_for_each_known_category() -> None:
    x = features()
    assert x[4].tolist() == [0, 1, 0, x.numbers[4, 0], 0, 0, 0, x.numbers[4, 1]]
    assert x[5].tolist() == [0, 0, 1, x.numbers[5, 0], 0, 1, 0, x.numbers[5, 1]]


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[3], lambda x: x[-1], lambda x: x[2:5], lambda x: x[::5], lambda x: x[torch.tensor([1, 1, 4])],
        lambda x: x[torch.arange(12) % 2 == 0], lambda x: x[:, 1:3], lambda x: x[..., 0],
        lambda x: x.index_select(0, torch.tensor([3])), lambda x: x.flatten(1).cpu()[1:3], lambda x: x.float()[0],
        lambda x: x.sum(), lambda x: x.double(), lambda x: x.isfinite(), lambda x: x == 1, lambda x: torch.cat([x, x]),
        lambda x: x @ torch.ones(8), lambda x: x.new_empty(3, 0), lambda x: torch.tensor(x.tolist()),
        lambda x: torch.from_numpy(x.numpy()), lambda x: torch.zeros(12, 8).copy_(x), lambda x: x.contiguous()[:2],
        lambda x: linear(x, torch.ones(3, 8)), lambda x: torch.cat(list(row_blocks(x, 5))),
        lambda x: take_rows(x, torch.tensor([7, 2])), lambda x: x.clone(), lambda x: x.detach(),
        lambda x: x[np.int64(3)], lambda x: x[torch.tensor(3)], lambda x: x[torch.tensor([[0, 1], [2, 3]])],
        lambda x: x[True], lambda x: x[[4, 2]], torch.utils.dlpack.from_dlpack, lambda x: x.share_memory_(),
        copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: from_tensors(as_tensors(x)),
    ],
)  # fmt: skip
def test_every_use_gives_what_the_dense_tensor_gives(use: Callable[[Any], Tensor]) -> None:
    x = features()
    found = use(x)
    assert torch.equal(found[:] if found.ndim else found, use(x.dense()))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.add_(1), lambda x: x.__setitem__(0, 5.0), lambda x: x[:2].shape and x.zero_(), lambda x: x.copy_(x)],
)
def test_a_change_in_place_is_refused_instead_of_lost(change: Callable[[Any], object]) -> None:
    with pytest.raises(UserError, match="cannot be changed in place"):
        change(features())


def test_rows_are_taken_in_inference_mode_too() -> None:
    with torch.inference_mode():
        assert torch.equal(features()[2:4], features().dense()[2:4])


def test_shape_type_and_checksum_are_those_of_the_dense_tensor() -> None:
    x = features()
    dense = x.dense()
    assert (x.shape, x.dtype, x.device, x.nbytes, len(x)) == (dense.shape, dense.dtype, dense.device, dense.nbytes, 12)
    assert b"".join(row_bytes(x, 3)) == b"".join(row_bytes(dense, 3)) == dense[::3].numpy().tobytes()
    assert stored_bytes(x) < stored_bytes(dense)
    assert repr(x) == "CompactFeatures(12 rows, 8 features)"


def test_chosen_features_are_renumbered() -> None:
    chosen = torch.tensor([5, 0, 7])
    assert torch.equal(features().columns(chosen).dense(), features().dense()[:, chosen])


def test_many_rows_stay_compact_and_few_become_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor([3, 1])
    assert type(take_rows(features(), rows)) is Tensor
    monkeypatch.setattr(compact_features, "DENSE_BYTES", 10)
    kept = take_rows(features(), rows)
    assert isinstance(kept, CompactFeatures)
    assert torch.equal(kept.dense(), features().dense()[rows])


@pytest.fixture(scope="module")
def both() -> tuple[Federation, Federation]:
    """The same rows, dense and compact."""
    dense = Census(rows=400).load()
    table = Census(rows=400).read()
    encoding = dense.preprocessing.table  # type: ignore[union-attr]
    assert encoding is not None
    parts = encoding.compact(table.features, table.parts)

    def compact(examples: Examples, x: Tensor) -> Examples:
        return replace(examples, x=x)

    train, validation, test = map(compact, (dense.train, dense.validation, dense.test), parts)
    small = Dataset(dense.task, train, validation, test)
    return tuple(Federation.from_dataset(one, Partition("iid", 3)) for one in (dense, small))  # type: ignore[return-value]


def test_both_have_one_fingerprint(both: tuple[Federation, Federation]) -> None:
    assert both[0].fingerprint() == both[1].fingerprint()


@pytest.mark.parametrize("engine", ["loop", "stacked", "lockstep"])
def test_training_gives_the_same_bits(
    both: tuple[Federation, Federation], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_features, "DENSE_BYTES", 0)
    dense, small = (ffalm.simulate("ffalm", one, rounds=2, engine=engine) for one in both)
    assert dense.test == pytest.approx(small.test, rel=0, abs=0, nan_ok=True)
    for name, value in dense.state_dict.items():
        assert torch.equal(value, small.state_dict[name])

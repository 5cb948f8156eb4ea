"""Partitions: disjoint, reproducible, and as skewed as the fact sheet measured."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

from ffalm.data.types import Dataset, Examples, Task
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.partition import Partition


def dataset(counts: dict[tuple[int, int], int], owner: list[int] | None = None, owners: int = 0) -> Dataset:
    """Shuffled rows with this many of each (label, group)."""
    cells = np.random.default_rng(0).permutation(np.repeat(np.array(list(counts)), list(counts.values()), axis=0))
    y, group = (torch.tensor(cells[:, i].copy()) for i in (0, 1))
    rows = Examples(torch.zeros(len(y), 1), y, group)
    names = tuple(f"site {i}" for i in range(owners))
    return Dataset(
        Task("made"), rows, rows, rows, owners=None if owner is None else [torch.tensor(owner)] * 3, owner_names=names
    )


def utkface_like() -> Dataset:
    """80 % of UTKFace: 3,674 rows of the rarer label."""
    return dataset({(0, 0): 9000, (0, 1): 6290, (1, 0): 2674, (1, 1): 1000})


def shares_of_label_1(data: Dataset, owned: list[torch.Tensor]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([float(data.train.y[rows].double().mean()) for rows in owned])


KINDS = ["plain", "even", "balanced", "group", "iid"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_row_is_owned_twice_and_every_row_number_exists(kind: str, seed: int) -> None:
    data = utkface_like()
    owned = Partition(kind, clients=10, alpha=0.5).split(data, seed)  # type: ignore[arg-type]
    assert len(owned) == 10
    together = torch.cat(owned)
    assert len(set(together.tolist())) == len(together)
    assert int(together.min()) >= 0
    assert int(together.max()) < len(data.train)
    if kind not in ("even", "balanced"):  # these trim clients to one size
        assert len(together) == len(data.train)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_and_nothing_else_does(kind: str) -> None:
    data, partition = utkface_like(), Partition(kind, alpha=1.0)  # type: ignore[arg-type]
    once = partition.split(data, 4)
    np.random.default_rng(0).random(9)
    torch.rand(5)
    again, other = partition.split(data, 4), partition.split(data, 5)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(
    ("kind", "least", "most", "zeros"),
    [("balanced", 725, 734, 3674), ("even", 1886, 1896, 15_290)],  # 2 * 3,674 / 10 and 18,964 / 10 less the trimming
)
def test_every_client_has_the_same_and_labels_are_evened_out_or_as_they_are(
    kind: str, least: int, most: int, zeros: int, alpha: float
) -> None:
    data = utkface_like()
    for seed in range(4):
        owned = Partition(kind, 10, alpha).split(data, seed)  # type: ignore[arg-type]
        sizes = {len(rows) for rows in owned}
        assert len(sizes) == 1
        assert least <= sizes.pop() <= most
        ones = int(data.train.y[torch.cat(owned)].sum())
        assert 3674 - 60 <= ones <= 3674
        assert sum(len(rows) for rows in owned) - ones <= zeros


@pytest.mark.parametrize(
    ("alpha", "lowest", "highest", "lone"),
    [(0.3, (0, 0.02), (0.98, 1), (1.0, 4.5)), (1.0, (0.02, 0.16), (0.84, 0.98), (0, 0.8)),
     (5.0, (0.2, 0.36), (0.64, 0.8), (0, 0))],
)  # fmt: skip
def test_a_balanced_partition_is_as_skewed_as_the_fact_sheet_says(
    alpha: float, lowest: tuple[float, float], highest: tuple[float, float], lone: tuple[float, float]
) -> None:
    """Medians over 12 seeds; the sheet has [0.001, 0.999] and 2.6, [0.079, 0.921] and 0.14, [0.277, 0.728] and 0."""
    data = utkface_like()
    shares = np.array([shares_of_label_1(data, Partition("balanced", 10, alpha).split(data, s)) for s in range(12)])
    assert lowest[0] <= np.median(shares.min(1)) <= lowest[1]
    assert highest[0] <= np.median(shares.max(1)) <= highest[1]
    single = ((shares > 0.99) | (shares < 0.01)).sum(1).mean()
    assert lone[0] <= single <= lone[1]


@pytest.mark.parametrize("kind", ["plain", "even", "balanced"])
def test_a_huge_alpha_gives_near_uniform_label_shares(kind: str) -> None:
    data = utkface_like()
    shares = shares_of_label_1(data, Partition(kind, 10, 1e6).split(data, 0))  # type: ignore[arg-type]
    overall = 0.5 if kind == "balanced" else float(data.train.y.double().mean())
    assert np.abs(shares - overall).max() < 0.01


@pytest.mark.parametrize("alpha", [0.01, 0.05])
def test_an_even_partition_keeps_rows_and_labels_under_the_severest_skew_too(alpha: float) -> None:
    for counts in ({(0, 0): 1900, (1, 1): 100}, {(0, 0): 1800, (1, 1): 120, (2, 1): 80}):
        data = dataset(counts)
        share = float((data.train.y > 0).double().mean())
        for seed in range(10):
            owned = torch.cat(Partition("even", 5, alpha, min_rows=1).split(data, seed))
            assert len(owned) >= 0.95 * len(data.train)
            assert float((data.train.y[owned] > 0).double().mean()) == pytest.approx(share, abs=0.01)


def test_an_even_partition_differs_from_client_to_client_in_labels_the_more_the_smaller_alpha_is() -> None:
    data = utkface_like()
    spread = [
        np.mean([np.ptp(shares_of_label_1(data, Partition("even", 10, alpha).split(data, s))) for s in range(6)])
        for alpha in (0.3, 1.0, 5.0, 1e4)
    ]
    assert spread[0] > 0.8
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.02


def test_plain_skew_has_the_spread_of_its_dirichlet() -> None:
    """A client's share of a label has mean 1/N and variance (1/N)(1 - 1/N)/(N alpha + 1)."""
    data, alpha = utkface_like(), 1.0
    ones = int((data.train.y == 1).sum())
    found = [
        int(data.train.y[rows].sum()) / ones
        for seed in range(60)
        for rows in Partition("plain", 10, alpha, min_rows=1).split(data, seed)
    ]
    assert np.mean(found) == pytest.approx(0.1, abs=1e-12)
    assert np.var(found) == pytest.approx(0.1 * 0.9 / (10 * alpha + 1), rel=0.25)


def test_plain_skew_keeps_the_minimum_size() -> None:
    data = dataset({(0, 0): 300, (1, 1): 100})
    for seed in range(5):
        assert min(len(rows) for rows in Partition("plain", 8, 0.3, min_rows=10).split(data, seed)) >= 10


@pytest.mark.parametrize("kind", ["plain", "group"])
def test_a_draw_with_exactly_the_minimum_size_is_kept(kind: Literal["plain", "group"]) -> None:
    data = dataset({(0, 0): 300, (1, 1): 100})
    first = Partition(kind, 4, 1.0, min_rows=1).split(data, 0)
    smallest = min(len(rows) for rows in first)
    again = Partition(kind, 4, 1.0, min_rows=smallest).split(data, 0)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in first]
    redrawn = Partition(kind, 4, 1.0, min_rows=smallest + 1).split(data, 0)
    assert min(len(rows) for rows in redrawn) > smallest


@pytest.mark.parametrize("kind", ["even", "balanced"])
def test_equal_clients_of_exactly_the_minimum_size_are_accepted(kind: Literal["even", "balanced"]) -> None:
    data = dataset({(0, 0): 300, (1, 1): 100})
    size = len(Partition(kind, 7, 0.5, min_rows=1).split(data, 0)[0])
    assert {len(rows) for rows in Partition(kind, 7, 0.5, min_rows=size).split(data, 0)} == {size}
    with pytest.raises(UserError, match=f"a client with {size} rows, fewer than {size + 1}"):
        Partition(kind, 7, 0.5, min_rows=size + 1).split(data, 0)


def test_a_minimum_size_that_no_draw_gives_is_refused_after_a_thousand() -> None:
    data = dataset({(0, 0): 500, (1, 1): 500})
    with pytest.raises(UserError, match="No draw of 1000"):
        Partition("plain", 50, 0.05, min_rows=15).split(data, 0)


def test_a_balanced_partition_that_leaves_too_little_is_refused() -> None:
    data = dataset({(0, 0): 990, (1, 1): 10})
    with pytest.raises(UserError, match="fewer than 10"):
        Partition("balanced", 10, 1.0).split(data, 0)


def test_group_skew_is_on_the_group_and_not_on_the_label() -> None:
    data = dataset({(0, 0): 2000, (0, 1): 2000, (1, 0): 2000, (1, 1): 2000})
    owned = Partition("group", 6, 0.3).split(data, 1)
    big = [rows for rows in owned if len(rows) > 200]
    groups = [float(data.train.group[rows].double().mean()) for rows in big]
    labels = [float(data.train.y[rows].double().mean()) for rows in big]
    assert np.ptp(groups) > 0.5
    assert np.ptp(labels) < 0.2


def test_iid_clients_are_alike_and_nearly_equal() -> None:
    data = utkface_like()
    owned = Partition("iid", 7).split(data, 0)
    sizes = [len(rows) for rows in owned]
    assert max(sizes) - min(sizes) <= 1
    assert np.ptp(shares_of_label_1(data, owned)) < 0.05


def test_silos_are_the_owners_that_the_data_names() -> None:
    owner = [0, 1, 1, 0, 2, 2, 1, 0]
    data = dataset({(0, 0): 4, (1, 1): 4}, owner, owners=3)
    partition = Partition("silos", min_rows=2)
    assert [rows.tolist() for rows in partition.split(data, 0)] == [[0, 3, 7], [1, 2, 6], [4, 5]]
    assert Federation.from_dataset(data, partition).client_names == ("site 0", "site 1", "site 2")


def test_silos_need_owners_and_enough_rows_of_each() -> None:
    with pytest.raises(UserError, match="does not say who owns"):
        Partition("silos").split(dataset({(0, 0): 40, (1, 1): 40}), 0)
    assert (Partition("silos").min_rows, Partition("plain").min_rows) == (1, 10)
    with pytest.raises(UserError, match="'site 1' have fewer than 2 training rows: lower min_rows to 1"):
        Partition("silos", min_rows=2).split(dataset({(0, 0): 2, (1, 1): 2}, [0, 0, 0, 1], owners=2), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_more_clients_than_rows_are_refused(kind: str) -> None:
    data = dataset({(0, 0): 4, (1, 1): 4})
    with pytest.raises(UserError, match="do not fit"):
        Partition(kind, clients=9, min_rows=1).split(data, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": -0.3},
        {"alpha": 0.0},
        {"alpha": float("nan")},
        {"alpha": float("inf")},
        {"clients": 0},
        {"min_rows": 0},
        {"kind": "balancd"},
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Partition(**settings)


def test_one_client_owns_everything() -> None:
    data = dataset({(0, 0): 30, (1, 1): 30})
    for kind in ("plain", "even", "group", "iid", "balanced"):
        (rows,) = Partition(kind, clients=1).split(data, 0)
        assert rows.tolist() == list(range(60))


def test_a_tiny_alpha_gives_neither_nan_nor_a_lost_row() -> None:
    data = dataset({(0, 0): 3000, (1, 1): 3000})
    owned = Partition("balanced", 10, 0.001, min_rows=1).split(data, 3)
    assert len({len(rows) for rows in owned}) == 1
    assert len(set(torch.cat(owned).tolist())) == sum(len(rows) for rows in owned)


@pytest.mark.parametrize("kind", ["balanced", "even"])
def test_the_smallest_alphas_skew_labels_most(kind: Literal["balanced", "even"]) -> None:
    data = dataset({(0, 0): 1000, (1, 1): 1000})
    shares = {
        alpha: shares_of_label_1(data, Partition(kind, 10, alpha).split(data, 0)).std() for alpha in (1.0, 1e-4, 1e-9)
    }
    assert shares[1e-9] == pytest.approx(shares[1e-4], abs=0.05)
    assert shares[1e-4] > 0.45 > shares[1.0]


def test_silos_hold_their_rows_in_order_and_nobodys_rows_are_left_out() -> None:
    owner = [1, -1, 0, 1, 0, 1]
    data = dataset({(0, 0): 3, (1, 1): 3}, owner, owners=2)
    assert [rows.tolist() for rows in Partition("silos", min_rows=1).split(data, 0)] == [[2, 4], [0, 3, 5]]

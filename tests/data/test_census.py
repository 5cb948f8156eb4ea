"""The census has the published figures, repeats itself by seed and is about as hard as UCI Adult."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from ffalm.data import source
from ffalm.data.census import CELL_SHARES, CELLS, COLUMNS, CORRELATIONS, Census, _correlation
from ffalm.data.encoding import RawTable
from ffalm.data.types import Dataset, Examples
from ffalm.errors import UserError


@pytest.fixture(scope="module")
def table() -> RawTable:
    return Census().read()


@pytest.fixture(scope="module")
def codes(table: RawTable) -> dict[str, NDArray[np.int64]]:
    return recoded(table.features)


@pytest.fixture(scope="module")
def dataset(table: RawTable) -> Dataset:
    return table.encoded()


def parts(dataset: Dataset) -> tuple[Examples, Examples, Examples]:
    return dataset.train, dataset.validation, dataset.test


def recoded(features: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
    """Each person's place in the tables of figures, worked out anew from features named as in UCI Adult."""
    relationship = features["relationship"].replace({"Husband": "Spouse", "Wife": "Spouse"})
    dollars = np.where(features["capital-gain"] > 0, features["capital-gain"], features["capital-loss"])
    kinds = np.select([features["capital-gain"] > 0, features["capital-loss"] > 0], ["gain", "loss"], "none")
    employed = features["workclass"].where(features["occupation"] != "?")
    country = features["native-country"].where(features["native-country"] == "United-States", "Elsewhere")
    values = {
        "household": list(zip(features["marital-status"], relationship, strict=True)),
        "education": list(zip(features["education"], features["education-num"].astype(int), strict=True)),
        "occupation": list(features["occupation"]),
        "workclass": list(employed),
        "race": list(features["race"]),
        "country": list(country),
    }
    codes = {}
    for name, table in COLUMNS.items():
        keys = list(table)
        if name in values:
            place = {key: number for number, key in enumerate(keys)}
            codes[name] = np.array([place.get(value, -1) for value in values[name]])
        elif name in ("age", "hours"):
            amount = features["age" if name == "age" else "hours-per-week"]
            codes[name] = np.maximum(np.searchsorted([low for low, _ in keys], amount, side="right") - 1, 0)
        else:
            codes[name] = _capital(keys, kinds, dollars)
    return codes


def _capital(
    keys: list[tuple[str, int, int]], kinds: NDArray[np.str_], dollars: NDArray[np.float64]
) -> NDArray[np.int64]:
    codes = np.zeros(len(kinds), dtype=np.int64)
    for number, (kind, low, _) in enumerate(keys):
        first = number == 0 or keys[number - 1][0] != kind
        codes[(kinds == kind) & (first | (dollars >= low))] = number
    return codes


def shares(codes: NDArray[np.int64], rows: NDArray[np.bool_], categories: int) -> NDArray[np.float64]:
    known = codes[rows & (codes >= 0)]
    return np.bincount(known, minlength=categories) / len(known)


def test_the_parts_have_70_10_and_20_percent_of_the_rows_and_every_feature_is_finite(
    dataset: Dataset,
) -> None:
    assert [len(part) for part in parts(dataset)] == [31_500, 4_500, 9_000]
    assert 60 <= dataset.train.x.shape[1] <= 110
    for part in parts(dataset):
        assert part.x.dtype == torch.float32
        assert part.y.dtype == part.group.dtype == torch.int64
        assert part.x.shape[1] == dataset.train.x.shape[1]
        assert torch.isfinite(part.x).all()


def test_the_task_is_income_by_sex_with_over_50k_favourable(dataset: Dataset) -> None:
    task = dataset.task
    assert (task.name, task.label, task.favourable) == ("census", "income over 50K", 1)
    assert task.group_names == ("female", "male")
    assert dataset.notes


def test_sex_can_be_left_out_of_the_features() -> None:
    whole, blind = Census(rows=2000).read(), Census(rows=2000, use_group_as_feature=False).read()
    assert blind.features.equals(whole.features.drop(columns="sex"))
    assert blind.group.tolist() == whole.group.tolist()


def test_no_person_is_in_two_parts(table: RawTable) -> None:
    rows = np.concatenate(table.parts)
    assert np.array_equal(np.sort(rows), np.arange(45_000))


def test_every_part_has_the_published_base_rates(dataset: Dataset) -> None:
    for part in parts(dataset):
        female, male = part.group == 0, part.group == 1
        assert female.double().mean().item() == pytest.approx(0.331, abs=0.002)
        assert part.y[female].double().mean().item() == pytest.approx(0.1095, abs=0.002)
        assert part.y[male].double().mean().item() == pytest.approx(0.3057, abs=0.002)


def test_the_same_seed_gives_the_same_people_and_another_seed_gives_others() -> None:
    first, again, other = (Census(rows=2_000, data_seed=seed).load() for seed in (3, 3, 4))
    for one, two in zip(parts(first), parts(again), strict=True):
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.y, two.y)
        assert torch.equal(one.group, two.group)
    assert not torch.equal(first.train.y, other.train.y)
    assert not torch.equal(first.train.x[:, :1], other.train.x[:, :1])


@pytest.mark.parametrize("column", COLUMNS)
def test_in_every_cell_the_shares_are_the_published_ones_within_sampling_error(
    table: RawTable, codes: dict[str, NDArray[np.int64]], column: str
) -> None:
    for cell, (group, label) in enumerate(CELLS):
        rows = (table.group == group) & (table.y == label)
        published = np.array([by_cell[cell] for by_cell in COLUMNS[column].values()])
        published /= published.sum()
        error = np.sqrt(published * (1 - published) / rows.sum())
        drawn = shares(codes[column], rows, len(published))
        assert (np.abs(drawn - published) <= 4.5 * error + 1e-9).all()


def test_the_means_of_numbers_are_those_counted_in_adult(table: RawTable) -> None:
    counted = {
        "age": ((36.2, 42.1), (37.1, 44.6)),
        "education-num": ((9.8, 11.8), (9.5, 11.6)),
        "hours-per-week": ((35.9, 40.4), (40.7, 46.4)),
    }
    means = table.features[list(counted)].groupby([table.group, table.y]).mean()
    for name, by_group in counted.items():
        for group, label in CELLS:
            assert means.loc[(group, label), name] == pytest.approx(by_group[group][label], abs=0.8)


def test_nobody_contradicts_themselves(table: RawTable) -> None:
    features = table.features
    husband, wife = features["relationship"] == "Husband", features["relationship"] == "Wife"
    married = features["marital-status"].str.startswith("Married")
    assert (table.group[husband] == 1).all()
    assert (table.group[wife] == 0).all()
    assert married[husband | wife].all()
    assert ((features["occupation"] == "?") == (features["workclass"] == "?")).all()
    assert not ((features["capital-gain"] > 0) & (features["capital-loss"] > 0)).any()
    assert ((features["sex"] == "Male") == (table.group == 1)).all()


def test_the_figures_are_complete_and_consistent() -> None:
    assert sum(CELL_SHARES) == pytest.approx(1.0)
    for table in COLUMNS.values():
        assert np.allclose(np.sum(list(table.values()), axis=0), 1.0, atol=0.005)
    for cell in range(len(CELLS)):
        assert [len(below) for below in CORRELATIONS[cell]] == list(range(len(COLUMNS)))
        matrix = _correlation(cell)
        assert np.allclose(np.diag(matrix), 1.0)
        assert np.linalg.eigvalsh(matrix).min() > 0
        assert np.allclose(matrix, matrix.T)


def test_a_classifier_is_as_accurate_and_as_unfair_as_on_adult(dataset: Dataset) -> None:
    """Logistic regression by Newton's method, because it has one answer and needs a second."""
    x, test = torch.nn.functional.pad(dataset.train.x.double(), (0, 1), value=1.0), dataset.test
    y = dataset.train.y.double()
    weight = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(12):
        p = torch.sigmoid(x @ weight)
        hessian = (x.T * (p * (1 - p))) @ x + 1.0 * torch.eye(x.shape[1], dtype=torch.float64)
        weight += torch.linalg.solve(hessian, x.T @ (y - p) - weight)
    predicted = torch.nn.functional.pad(test.x.double(), (0, 1), value=1.0) @ weight > 0
    rate = [predicted[test.group == group].double().mean().item() for group in (0, 1)]
    hit = [predicted[(test.group == group) & (test.y == 1)].double().mean().item() for group in (0, 1)]
    assert 0.84 <= (predicted == (test.y == 1)).double().mean().item() <= 0.865
    assert 0.16 <= rate[1] - rate[0] <= 0.21
    assert 0.03 <= hit[1] - hit[0] <= 0.16


def test_it_is_made_in_well_under_a_second() -> None:
    Census(rows=1_000).load()
    start = time.process_time()
    Census().load()
    assert time.process_time() - start < 1.0


def test_a_small_census_still_has_every_cell_in_training() -> None:
    dataset = source("census", rows=100).load()
    assert (dataset.train.counts(dataset.task) > 0).all()


@pytest.mark.parametrize(("settings", "said"), [({"rows": 99}, "100 or more"), ({"data_seed": -1}, "0 or more")])
def test_settings_that_cannot_work_are_refused_in_one_sentence(settings: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        source("census", **settings)


@pytest.fixture(scope="module")
def adult(shared_data: Path) -> RawTable:
    from ffalm.data.adult import Adult

    return Adult(str(shared_data / "tabular")).read()


@pytest.fixture(scope="module")
def adult_codes(adult: RawTable) -> dict[str, NDArray[np.int64]]:
    return recoded(adult.features)


@pytest.mark.parametrize("column", COLUMNS)
def test_the_published_figures_are_those_of_the_real_training_file(
    adult: RawTable, adult_codes: dict[str, NDArray[np.int64]], column: str
) -> None:
    official = np.arange(len(adult.y)) < 32_561
    for cell, (group, label) in enumerate(CELLS):
        rows = official & (adult.group == group) & (adult.y == label)
        assert rows.sum() / official.sum() == pytest.approx(CELL_SHARES[cell], abs=0.0001)
        published = np.array([by_cell[cell] for by_cell in COLUMNS[column].values()])
        assert np.abs(shares(adult_codes[column], rows, len(published)) - published).max() < 0.002


def test_columns_agree_within_cells_about_as_in_the_real_file(
    adult: RawTable,
    adult_codes: dict[str, NDArray[np.int64]],
    table: RawTable,
    codes: dict[str, NDArray[np.int64]],
) -> None:
    """Rank correlations of places in the tables, of which the copula's are the cause."""
    for group, label in CELLS:
        ranked = []
        for people, places in ((adult, adult_codes), (table, codes)):
            frame = pd.DataFrame(places)[(people.group == group) & (people.y == label)]
            ranked.append(frame[(frame >= 0).all(axis=1)].corr("spearman").to_numpy())
        assert np.abs(ranked[0] - ranked[1]).max() < 0.15

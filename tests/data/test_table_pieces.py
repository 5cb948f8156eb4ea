"""Tables that are read in pieces come out as those that are read whole: rows, notes, refusals and checksums."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ffalm.data import compact_features, table_readers
from ffalm.data.compact_features import CompactFeatures
from ffalm.data.table import Table
from ffalm.data.table_files import read_table
from ffalm.data.types import Dataset
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.partition import Partition
from ffalm.system import spilled_arrays

ROWS = 90


def loans(**columns: Any) -> pd.DataFrame:
    number = np.arange(ROWS)
    usual = {
        "age": 20 + number % 37,
        "income": np.round(1e4 * np.sin(number) ** 2, 2),
        "town": np.array(["York", "Leeds", " Bath", "Ély"])[number % 4],
        "branch": np.array(["north", "south", "west"])[number // 2 % 3],
        "sex": np.where(number % 2 == 0, "woman", "man"),
        "paid": np.where(number // 2 % 2 == 0, "yes", "no"),
    }
    return pd.DataFrame({**usual, **columns})


def table(file: Path, **settings: Any) -> Table:
    return Table(**{"file": str(file), "label": "paid", "group": "sex", "favourable": "yes", **settings})


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes memory seem short: a few rows are read at a time, into temporary files, and no feature is kept dense."""

    def shorten() -> None:
        monkeypatch.setattr(table_readers, "_WHOLE", 0)
        monkeypatch.setattr(table_readers, "_PIECE_VALUES", 100)
        monkeypatch.setattr(spilled_arrays, "_SHARE", 0)
        monkeypatch.setattr(compact_features, "DENSE_BYTES", 0)

    return shorten


def assert_alike(one: Dataset, other: Dataset) -> None:
    """Bit for bit, with the same notes, preprocessing and checksum."""
    for part in ("train", "validation", "test"):
        a, b = getattr(one, part), getattr(other, part)
        assert torch.equal(torch.as_tensor(a.x[:]), torch.as_tensor(b.x[:]))
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.group, b.group)
    assert one.task == other.task
    assert one.notes == other.notes
    assert one.owner_names == other.owner_names
    assert one.preprocessing == other.preprocessing
    kind = Partition("silos") if one.owners is not None else Partition("iid", 3)
    assert len({Federation.from_dataset(data, kind).fingerprint() for data in (one, other)}) == 1


gaps = np.where(np.arange(ROWS) % 7 == 3, np.nan, np.arange(ROWS) / 3)
late_gap = np.where(np.arange(ROWS) == 80, np.nan, np.arange(ROWS) % 5)
late_text = [
    str(number) if number < 60 else f"A{number % 3}" for number in np.arange(ROWS) % 6 + np.arange(ROWS) // 60 * 60
]


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        ({}, {}),
        ({}, {"owner": "branch"}),
        ({}, {"drop": ("town", "age"), "use_group_as_feature": False}),
        ({}, {"categorical": ("age",)}),
        ({}, {"group": "sex,branch", "min_group_size": 10}),
        ({}, {"group": "branch", "against_rest": ("north",)}),
        ({}, {"group": "branch", "groups": ("west", "south", "north")}),
        ({"pay": gaps, "stay": late_gap}, {"missing": "mean"}),
        ({"sex": np.where(np.arange(ROWS) % 9 == 4, None, loans()["sex"])}, {}),
        ({"town": [None] * 40 + ["York"] * 50}, {}),
        ({"member": np.arange(ROWS) % 2 == 0}, {}),
        ({"member": np.where(np.arange(ROWS) < 50, "True", "maybe")}, {}),
        ({"code": late_text}, {"categorical": ("code",)}),
        ({"code": np.where(np.arange(ROWS) < 50, "007", "x7")}, {}),
        ({"number": np.where(np.arange(ROWS) == 85, "18446744073709551615", "3")}, {}),
        ({"number": [str(2**53 + 1)] * 50 + ["0.5"] * 40}, {}),
        ({"hash": ["18446744073709551615", "NA", "3"] * 10 + ["nan"] * 60}, {}),
        ({"constant": 1, "row": np.arange(ROWS)}, {}),
        ({"part": np.array(["train", "val", "train", "train", "test"])[np.arange(ROWS) % 5]}, {"split": "part"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_in_pieces_is_the_whole_table(
    tmp_path: Path, in_pieces: Callable[[], None], columns: dict[str, Any], settings: dict[str, Any], ending: str
) -> None:
    file, frame = tmp_path / f"loans{ending}", loans(**columns)
    if ending == ".csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    source = table(file, **settings)
    whole = source.load()
    in_pieces()
    assert_alike(whole, source.load())


def test_compressed_files_and_other_formats_are_read_in_pieces(tmp_path: Path, in_pieces: Callable[[], None]) -> None:
    file = tmp_path / "loans.csv.gz"
    file.write_bytes(gzip.compress(loans().to_csv(index=False, sep=";", decimal=",").encode("cp1252")))
    source = table(file, decimal=",", separator=";", encoding="cp1252")
    whole = source.load()
    in_pieces()
    assert_alike(whole, source.load())
    utf_16 = tmp_path / "loans.tsv"
    utf_16.write_text(loans().to_csv(index=False, sep="\t"), encoding="utf-16")
    assert_alike(
        replace(whole, preprocessing=None), replace(table(utf_16, encoding="utf-16").load(), preprocessing=None)
    )


def test_parquet_with_decimals_categories_dates_and_an_index_is_read_by_column(
    tmp_path: Path, in_pieces: Callable[[], None]
) -> None:
    import decimal

    frame = loans(fee=[decimal.Decimal(number) / 4 for number in range(ROWS)], flag=pd.array([True, None, False] * 30))
    frame["town"] = frame["town"].astype("category")
    frame["day"] = pd.Timestamp("2020-01-01")
    frame.index = pd.Index(range(500, 500 + ROWS), name="id")
    frame.to_parquet(tmp_path / "loans.parquet")
    whole, _ = read_table(str(tmp_path / "loans.parquet"))
    in_pieces()
    pieces, _ = read_table(str(tmp_path / "loans.parquet"))
    assert list(pieces) == list(whole)
    for name in whole:
        assert pieces[name].astype(object).equals(whole[name].astype(object))


@pytest.mark.parametrize(
    "text",
    [
        "a,b,a\n1,x,1\n2,y,2\n",  # a column twice
        "a,b,a\n1,x,1\n2,y,3\n",  # two columns of one name
        "a, ,b\n1,2,3\n",  # one without a name
        "a,b\n",
        "a,b\n1,2\n1,2,3\n",
        "a,b\n" + "1,2\n" * 200 + "1,2,3\n",
        "a\n1\n",
        "",
    ],
)
def test_files_are_refused_alike(tmp_path: Path, in_pieces: Callable[[], None], text: str) -> None:
    (tmp_path / "t.csv").write_text(text)

    def outcome() -> Any:
        try:
            frame, notes = read_table(str(tmp_path / "t.csv"))
        except UserError as error:
            return str(error)
        return frame.astype(str).to_dict("list"), notes

    whole = outcome()
    in_pieces()
    assert outcome() == whole


def test_several_files_are_read_in_pieces(tmp_path: Path, in_pieces: Callable[[], None]) -> None:
    frame = loans(late=late_gap)
    files = [tmp_path / f"{name}.csv" for name in ("north", "south", "west")]
    for file in files:
        frame[frame["branch"] == file.stem].drop(columns="branch").to_csv(file, index=False)
    several = table(Path(",".join(map(str, files))), missing="mean")
    whole = several.load()
    in_pieces()
    assert_alike(whole, several.load())


def test_large_features_are_kept_compact_and_in_temporary_files(tmp_path: Path, in_pieces: Callable[[], None]) -> None:
    loans().to_csv(tmp_path / "loans.csv", index=False)
    in_pieces()
    x = table(tmp_path / "loans.csv").load().train.x
    assert isinstance(x, CompactFeatures)
    assert spilled_arrays._mapped


def test_a_disk_without_room_is_refused_with_what_to_do(
    tmp_path: Path, in_pieces: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    loans().to_csv(tmp_path / "loans.csv", index=False)
    in_pieces()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("", (), {"free": 0}))
    with pytest.raises(UserError, match="set TMPDIR to a folder with more room"):
        table(tmp_path / "loans.csv").load()

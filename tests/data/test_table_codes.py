"""Columns of codes: what a cell means does not depend on the other cells of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

import ffalm
from ffalm.data.category_lookup import as_text
from ffalm.data.table_codes import code_columns
from ffalm.data.table_files import read_table

CELLS = ("007", "7", "1.0", "1", "2.50", "1e5", "+7", "TRUE", "true", "x", "9007199254740993", "9007199254740995.0", "")


def codes(file: Path, cells: tuple[str, ...], decimal: str = ".") -> list[str]:
    file.write_text("code;paid\n" + "".join(f"{cell};1\n" for cell in cells))
    column = read_table(str(file), ";", decimal, codes={"code"})[0]["code"]  # type: ignore[arg-type]
    return ["" if value != value else as_text(value) for value in column]


@pytest.mark.parametrize("other", CELLS)
def test_a_code_is_the_same_whatever_stands_below_it(other: str, tmp_path: Path) -> None:
    alone = {cell: codes(tmp_path / "one.csv", (cell, cell))[0] for cell in CELLS}
    for cell in CELLS:
        assert codes(tmp_path / "two.csv", (cell, other)) == [alone[cell], alone[other]]


def test_codes_are_kept_as_written_but_for_numbers_and_truth_values_of_several_spellings(tmp_path: Path) -> None:
    assert codes(tmp_path / "a.csv", ("007", "7", "7.0", "TRUE", "+7")) == ["007", "7", "7", "True", "+7"]
    assert codes(tmp_path / "a.csv", ("07", "1,50", "2,0"), ",") == ["07", "1.5", "2"]


def test_a_decimal_comma_is_one_in_every_cell_also_beside_texts(tmp_path: Path) -> None:
    cells = ("01", "1", "1,5", "2,0")
    alone = codes(tmp_path / "a.csv", cells, ",")
    assert alone == ["01", "1", "1.5", "2"]
    assert codes(tmp_path / "a.csv", (*cells, "x", "a,b"), ",") == [*alone, "x", "a,b"]


def test_long_codes_with_a_point_keep_all_digits_also_where_the_whole_column_is_numbers(tmp_path: Path) -> None:
    cells = ("9007199254740992.0", "9007199254740993.0", "9007199254740993", "9" * 400 + ".00")
    assert codes(tmp_path / "a.csv", cells) == ["9007199254740992", *["9007199254740993"] * 2, "9" * 400]
    assert codes(tmp_path / "a.csv", ("9007199254740993,0",), ",") == ["9007199254740993"]


def test_columns_are_codes_if_they_are_groups_or_listed(tmp_path: Path) -> None:
    assert code_columns(("a", "b, c"), ("sex",)) == {"a", "b, c", "b", "c", "sex"}
    rows = [("007", "01"), ("7", "02")] * 30
    (tmp_path / "a.csv").write_text(
        "code,sex,paid\n" + "".join(f"{code},{sex},{n % 3 % 2}\n" for n, (code, sex) in enumerate(rows))
    )
    read = ffalm.load(tmp_path / "a.csv", label="paid", group="sex", clients=2, categorical=["code"])
    assert read.preprocessing is not None and read.preprocessing.table is not None
    assert read.preprocessing.table.features == ("code=007", "code=7", "sex=01", "sex=02")
    assert read.task.group_names == ("01", "02")
    owned = ffalm.load(tmp_path / "a.csv", label="paid", group="sex", owner="code", min_rows=1)
    assert owned.client_names == ("007", "7")
    audited = ffalm.audit(tmp_path / "a.csv", label="paid", prediction="paid", group="code", min_group=1)
    assert list(audited.by_group().index) == ["007", "7"]

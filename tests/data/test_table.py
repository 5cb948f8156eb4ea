from __future__ import annotations

import csv
import gzip
import warnings
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

import ffalm
from ffalm.data import source
from ffalm.data.category_lookup import distinct
from ffalm.data.encoding import TableEncoding, is_numeric
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.table import FrameTable, Table
from ffalm.data.table_columns import as_category
from ffalm.data.table_values import natural
from ffalm.errors import UserError


def people(rows: int = 80, **columns: Any) -> pd.DataFrame:
    """A frame in which label and group take all four combinations equally often."""
    number = np.arange(rows)
    usual = {
        "age": 20 + number % 37,
        "town": np.where(number % 3 == 0, "York", "Leeds"),
        "sex": np.where(number % 2 == 0, "woman", "man"),
        "hired": np.where(number // 2 % 2 == 0, "yes", "no"),
    }
    return pd.DataFrame({**usual, **columns})


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a frame to a CSV file and gives its path."""

    def write_frame(frame: pd.DataFrame, name: str = "people.csv") -> str:
        frame.to_csv(tmp_path / name, index=False, sep="\t" if ".tsv" in name else ",")
        return str(tmp_path / name)

    return write_frame


def table(file: str, **settings: Any) -> Table:
    return Table(**{"file": file, "label": "hired", "group": "sex", "favourable": "yes", **settings})


def features(of: Table) -> tuple[str, ...]:
    return TableEncoding.of(of.read().summary()).features


def refusal(of: Table) -> str:
    """The one sentence with which a table is refused."""
    with pytest.raises(UserError) as caught:
        of.load()
    message = str(caught.value)
    assert "\n" not in message and message.endswith((".", "?"))
    return message


def test_a_table_becomes_parts_with_labels_and_groups(write: Any) -> None:
    data = table(write(people())).load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [56, 8, 16]
    assert data.test.counts(data.task).tolist() == [[4, 4], [4, 4]]
    assert data.task.label_names == ("no", "yes") and data.task.favourable == 1
    assert data.task.group_names == ("man", "woman")
    assert (data.task.name, data.task.label, data.task.group) == ("people", "hired", "sex")


def test_the_favourable_label_is_one_whichever_it_is(write: Any) -> None:
    file = write(people())
    assert (table(file).read().y + table(file, favourable="no").read().y).tolist() == [1] * 80


@pytest.mark.parametrize(
    ("values", "favourable"),
    [
        ((1, 0), 1),
        ((1, 0), "1"),
        ((1, 0), True),
        ((1.0, 0.0), 1),
        (("1", "2"), 1),
        ((True, False), "True"),
        ((True, False), "1"),
        ((" yes ", "no"), "Yes"),
        (("Y", "N"), " y "),
        ((0.5, 1.5), 0.5),
    ],
)
def test_the_favourable_value_is_matched_forgivingly(write: Any, values: tuple[Any, Any], favourable: Any) -> None:
    frame = people()
    frame["hired"] = np.where(frame["hired"] == "yes", values[0], values[1])
    y = table(write(frame), favourable=favourable).read().y
    assert y.tolist() == [1 if number // 2 % 2 == 0 else 0 for number in range(80)]


def test_without_a_favourable_value_only_zero_and_one_are_guessed_and_noted(write: Any) -> None:
    frame = people()
    assert "set favourable to 'no' or 'yes'" in refusal(table(write(frame), favourable=None))
    frame["hired"] = (frame["hired"] == "yes").astype(int)
    data = table(write(frame), favourable=None).load()
    assert data.task.label_names == ("0", "1")
    assert "'hired' = 1 was taken as the favourable outcome" in data.notes[0]


def test_label_owner_split_and_dropped_columns_are_no_features(write: Any) -> None:
    frame = people(bank=["a", "b"] * 40, part=["train"] * 60 + ["test"] * 20, id=range(80))
    got = features(table(write(frame), owner="bank", split="part", drop=("id",)))
    assert got == ("age", "sex=man", "sex=woman", "town=Leeds", "town=York")


def test_the_group_is_a_feature_unless_told_otherwise(write: Any) -> None:
    file = write(people())
    assert features(table(file, use_group_as_feature=False)) == ("age", "town=Leeds", "town=York")


def test_groups_are_numbered_in_natural_order(write: Any) -> None:
    frame = people(sex=np.array(["band 10", "band 2", "band 1"])[np.arange(80) % 3])
    raw = table(write(frame)).read()
    assert raw.task.group_names == ("band 1", "band 2", "band 10")
    assert raw.group[:3].tolist() == [2, 1, 0]


def test_numbers_can_be_groups_and_are_then_categories(write: Any) -> None:
    frame = people(sex=np.array([10, 2, 1])[np.arange(80) % 3])
    of = table(write(frame))
    assert of.read().task.group_names == ("1", "2", "10")
    assert "sex=10" in features(of)


def test_the_user_may_fix_the_groups_and_their_order(write: Any) -> None:
    file = write(people())
    raw = table(file, groups=("Woman", "man", "other")).read()
    assert raw.task.group_names == ("Woman", "man", "other")
    assert raw.group[:2].tolist() == [0, 1]
    assert "'man', which `groups` does not list" in refusal(table(file, groups=("woman", "other")))
    assert "lists a group twice" in refusal(table(file, groups=("woman", "woman")))


RACES = ["Asian", "Black", "Indian", "White"]


def races(rows: int = 80) -> pd.DataFrame:
    return people(rows, race=np.array(RACES)[np.arange(rows) // 4 % 4])


def test_one_group_of_many_can_be_held_against_the_rest(write: Any) -> None:
    merged = table(write(races()), group="race", against_rest=("black",))
    raw = merged.read()
    assert raw.task.group_names == ("rest", "Black")
    assert raw.task.group == "race"
    assert raw.group.tolist() == (races()["race"] == "Black").astype(int).tolist()
    note = "Groups of 'race' were merged: 'Black' against 'rest', which is 'Asian', 'Indian', 'White'."
    assert raw.notes == (note,)
    assert [name for name in features(merged) if "race" in name] == [f"race={race}" for race in RACES]


def test_several_groups_can_be_held_against_the_rest_and_so_can_numbers(write: Any) -> None:
    raw = table(write(races()), group="race", against_rest=("Indian", "Black")).read()
    assert raw.task.group_names == ("rest", "Black or Indian")
    assert raw.group.sum() == 40
    bands = table(write(people(rows=120, band=np.arange(120) // 4)), group="band", against_rest=(3, 4.0)).read()
    assert bands.task.group_names == ("rest", "3 or 4")
    assert bands.group.sum() == 8


def test_a_group_that_is_called_rest_is_told_from_the_others(write: Any) -> None:
    frame = races().replace({"race": {"White": "rest"}})
    assert table(write(frame), group="race", against_rest=("rest",)).read().task.group_names == ("not rest", "rest")


def test_groups_that_do_not_occur_or_leave_no_rest_are_refused(write: Any) -> None:
    file = write(races())
    told = refusal(table(file, group="race", against_rest=("Blakc",)))
    assert told.endswith("holds no 'Blakc', which `against_rest` names: did you mean 'Black'?")
    told = refusal(table(file, group="race", against_rest=("Xyz",)))
    assert told.endswith("its values are 'Asian', 'Black', 'Indian', 'White'.")
    assert "nobody is left to compare" in refusal(table(file, group="race", against_rest=tuple(RACES)))
    with pytest.raises(UserError, match="exclude each other"):
        table(file, group="race", against_rest=("Black",), groups=tuple(RACES))


def test_one_group_against_the_rest_needs_no_brackets(write: Any) -> None:
    mine: dict[str, Any] = {"label": "hired", "group": "race", "favourable": "yes", "clients": 2, "partition": "iid"}
    frame = races().assign(code=np.arange(80) // 4 % 4)
    assert ffalm.load(write(frame), against_rest="Black", **mine).task.group_names == ("rest", "Black")
    assert ffalm.load(write(frame), against_rest=3, **{**mine, "group": "code"}).task.group_names == ("rest", "3")


def test_owners_are_coded_for_training_rows(write: Any) -> None:
    frame = people(bank=[f"bank {number % 11}" for number in range(80)])
    raw = table(write(frame), owner="bank").read()
    assert raw.owner is not None
    assert raw.owner_names == tuple(f"bank {number}" for number in range(11))
    assert raw.owner[raw.parts[0]].tolist() == [row % 11 for row in raw.parts[0]]
    data = raw.encoded()
    assert data.owners is not None and len(data.owners[0]) == len(data.train)


def test_an_owner_without_training_rows_is_left_out(write: Any) -> None:
    frame = people(bank=["a"] * 40 + ["b"] * 40, part=["train"] * 40 + ["test"] * 40)
    raw = table(write(frame), owner="bank", split="part").read()
    assert raw.owner_names == ("a",)


def test_a_split_column_decides_the_parts(write: Any) -> None:
    part = np.array(["Train", "val", "TEST", "training"])[np.arange(80) % 4]
    raw = table(write(people(sex=["woman", "man", "man", "woman"] * 20, part=part)), split="part").read()
    assert raw.parts[2].tolist() == list(range(2, 80, 4))
    assert raw.parts[1].tolist() == list(range(1, 80, 4))
    assert len(raw.parts[0]) == 40


def test_a_split_column_without_validation_gives_up_some_training_rows(write: Any) -> None:
    raw = table(write(people(part=["train"] * 60 + ["test"] * 20)), split="part").read()
    assert [len(rows) for rows in raw.parts] == [54, 6, 20]


def test_shares_that_a_split_column_leaves_without_effect_are_noted(write: Any) -> None:
    kept = table(write(people(part=["train", "train", "test", "train", "train"] * 16)), split="part", test=0.4)
    assert kept.read().notes == (
        "The setting 'test' changes nothing: the split column 'part' says which rows are tested and held out.",
    )
    assert replace(kept, test=0.2, validation=0.3, data_seed=4).read().notes == ()
    whole = table(write(people(part=["train", "Val", "test", "train", "train"] * 16)), split="part", data_seed=4)
    assert "settings 'data_seed', 'test', 'validation' change nothing" in " ".join(
        replace(whole, validation=0.3, test=0.4).read().notes
    )
    assert replace(whole, data_seed=0).read().notes == ()


def test_a_strange_or_incomplete_split_column_is_refused(write: Any) -> None:
    assert "it holds 'holdout'" in refusal(table(write(people(part=["train", "holdout"] * 40)), split="part"))
    assert "marks no row as test" in refusal(table(write(people(part=["train"] * 80)), split="part"))
    assert "training part" in refusal(
        table(write(people(part=np.where(people()["hired"] == "yes", "train", "test"))), split="part")
    )


@pytest.mark.parametrize("name", ["people.csv", "people.csv.gz", "people.tsv", "PEOPLE.CSV"])
def test_text_formats_read_alike(write: Any, name: str) -> None:
    assert table(write(people(), name)).load().train.x.shape == (56, 5)


def test_parquet_reads_like_csv(write: Any, tmp_path: Path) -> None:
    frame = people(pay=[Decimal(number) / 4 for number in range(80)])
    frame["town"] = frame["town"].astype("category")
    frame.index = pd.Index(range(500, 580))
    frame.to_parquet(tmp_path / "people.parquet")
    from_parquet, from_csv = table(str(tmp_path / "people.parquet")).load(), table(write(frame)).load()
    assert from_parquet.train.x.tolist() == from_csv.train.x.tolist()


def test_names_and_values_are_stripped_and_a_byte_order_mark_is_no_part_of_them(tmp_path: Path) -> None:
    file = tmp_path / "spaced.csv"
    rows = "\n".join(f"{20 + number}, {'woman' if number % 2 else 'man'} , {number // 2 % 2}" for number in range(40))
    file.write_text(f"\ufeffage, sex , hired\n{rows}\n", encoding="utf-8")
    assert features(table(str(file), favourable=1)) == ("age", "sex=man", "sex=woman")


def test_names_of_columns_may_hold_other_separators_and_several_lines(tmp_path: Path) -> None:
    frame = people(pay=1.5 + np.arange(80))

    def names(header: str, separator: str, decimal: str = ".") -> list[str]:
        file = tmp_path / "people.csv"
        body = frame.to_csv(sep=separator, decimal=decimal, index=False, header=False)
        file.write_text(f"{header}\n{body}")
        return [*table(str(file), decimal=decimal).read().features]

    assert names("age;town;sex;hired;pay, net", ";") == ["age", "town", "sex", "pay, net"]
    assert names("age;town;sex;hired;pay, net", ";", ",") == ["age", "town", "sex", "pay, net"]
    assert names("age,town,sex,hired,pay; net | tax", ",") == ["age", "town", "sex", "pay; net | tax"]
    assert names('"age\n(years, rounded)";town;sex;hired;pay', ";")[0] == "age\n(years, rounded)"
    assert names('age,town,sex,hired,"pay; net"', ",")[-1] == "pay; net"


def test_another_separator_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    people().to_csv(file, sep="#", index=False)
    assert "set `separator`" in refusal(table(str(file)))
    assert len(table(str(file), separator="#").load().train) == 56
    assert "one character" in refusal(table(str(file), separator="::"))


def test_a_tab_can_be_named_as_on_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    people().to_csv(file, sep="\t", index=False)
    assert len(table(str(file), separator=r"\t").load().train) == 56


def test_a_first_line_that_says_the_separator_is_no_header(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("\ufeffsep=;\r\n" + people().to_csv(sep=";", index=False, lineterminator="\r\n"), newline="")
    expected = tmp_path / "plain.csv"
    people().to_csv(expected, index=False)
    assert table(str(file)).load().train.x.equal(table(str(expected)).load().train.x)


def test_groups_that_differ_in_spelling_alone_are_noted(write: Any) -> None:
    frame = people()
    mixed = frame.assign(sex=frame["sex"].where(frame.index % 3 > 0, frame["sex"].str.upper()))
    assert any("differ in spelling alone" in note for note in table(write(mixed)).load().notes)
    assert not any("spelling" in note for note in table(write(frame)).load().notes)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_separator_is_found_where_the_header_has_no_other(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "people.csv"
    people().rename(columns={"town": "town, or city"}).to_csv(file, sep=separator, index=False, quoting=csv.QUOTE_ALL)
    assert list(table(str(file)).read().features) == ["age", "town, or city", "sex"]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "UTF-8", "utf-8-sig"])
def test_text_of_another_encoding_is_read_where_it_is_named(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "people.csv"
    frame = people(town=["Málaga", "Köln"] * 40)
    file.write_bytes(frame.to_csv(index=False, sep=";").encode(encoding))
    loaded = table(str(file), encoding=encoding).load()
    assert loaded.preprocessing is not None and loaded.preprocessing.table is not None
    assert loaded.preprocessing.table.features == ("age", "sex=man", "sex=woman", "town=Köln", "town=Málaga")
    assert loaded.preprocessing.read(file).equals(frame)
    assert Preprocessing.from_plain(loaded.preprocessing.to_plain()) == loaded.preprocessing


@pytest.mark.parametrize("name", ["no such", "", "rot13", "base64", "a\0b"])
def test_a_name_that_is_no_encoding_of_text_is_refused(write: Any, name: str) -> None:
    assert "is not known: give one such as utf-8" in refusal(table(write(people()), encoding=name))


def test_a_file_that_is_not_of_its_encoding_is_refused_with_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_bytes(people(town=["Málaga"] * 80).to_csv(index=False).encode("cp1252"))
    assert "--encoding" in refusal(table(str(file)))
    assert "is not ascii text" in refusal(table(str(file), encoding="ascii"))


def test_numbers_may_be_written_with_a_decimal_comma_if_the_user_says_so(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    people(pay=(1 + np.arange(80) % 16) / 4).to_csv(file, sep=";", decimal=",", index=False)
    assert "'pay'" in (message := refusal(table(str(file)))) and "such as '0,25': set decimal to ','" in message
    assert "pay" in features(table(str(file), decimal=","))
    assert "pay=0,25" in features(table(str(file), categorical=("pay",)))


def test_thousands_separators_of_a_file_with_decimal_commas_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    amounts = [f"{number % 30 + 1}.{number * 7 % 10}00" for number in range(80)]
    people(pay=(1 + np.arange(80) % 16) / 4, amount=amounts).to_csv(file, sep=";", decimal=",", index=False)
    message = refusal(table(str(file), decimal=","))
    assert "'amount'" in message and "such as '1.000': write them without it (1000)" in message
    assert "amount=1" in features(table(str(file), decimal=",", categorical=("amount",)))


def test_text_among_numbers_with_a_decimal_comma_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    pay = [f"{number % 40},5" for number in range(80)]
    people(pay=["?", *pay[1:]]).to_csv(file, sep=";", index=False)
    assert "text such as '?' in 1 row, first in data row 1" in refusal(table(str(file), decimal=","))


def test_texts_that_look_like_amounts_are_noted_unless_they_are_declared(write: Any) -> None:
    file = write(people(pay=[f"CHF {number % 40}" for number in range(80)]))
    (note,) = table(file).read().notes
    assert "'pay' holds texts that look like numbers with a currency or a unit, such as 'CHF 0'" in note
    assert not table(file, categorical=("pay",)).read().notes


def test_few_numbers_with_a_text_among_them_are_noted_unless_they_are_declared(write: Any) -> None:
    file = write(people(visits=["-" if number % 9 == 0 else str(number % 6) for number in range(80)]))
    (note,) = table(file).read().notes
    assert note.startswith("The column 'visits' holds numbers, but also text such as '-', so each number is a category")
    assert not table(file, categorical=("visits",)).read().notes


def test_a_saved_row_index_is_left_out_with_a_note(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    people().to_csv(file)
    raw = table(str(file)).read()
    assert list(raw.features) == ["age", "town", "sex"]
    assert raw.notes == ("A column without a name was left out of people.csv.",)


def test_a_column_that_counts_the_rows_is_noted(write: Any) -> None:
    assert "'id' is a row number" in table(write(people(id=range(7, 87)))).read().notes[0]


def test_numbers_that_are_codes_can_be_made_categories(write: Any) -> None:
    code = np.array([3.0, 1.0, np.nan])[np.arange(80) % 3]
    got = features(table(write(people(code=code)), categorical=("code",)))
    assert got[1:4] == ("code=1", "code=3", "code=(missing)")


@pytest.mark.parametrize("kind", ["int8", "uint64", "float16", "float32", "float64", "Int64"])
def test_codes_of_any_numeric_type_are_the_same_categories(kind: str) -> None:
    column = as_category(pd.Series([3, 1, 3]).astype(kind))
    assert not is_numeric(column)
    assert [found.tolist() if isinstance(found, np.ndarray) else found for found in distinct(column)] == [
        [0, 1, 0],
        ["3", "1"],
    ]


def test_booleans_and_missing_categories_are_categories(write: Any) -> None:
    got = features(table(write(people(flag=[True, False] * 40, job=["cook", None] * 40))))
    assert {"flag=False", "flag=True", "job=cook", "job=(missing)"} <= set(got)


def test_test_rows_never_shape_the_encoding(write: Any) -> None:
    frame = people(part=["train"] * 60 + ["test"] * 20)
    changed = frame.copy()
    changed.loc[60:, ["age", "town"]] = [900, "Bath"]
    one, other = (table(write(f), split="part").load() for f in (frame, changed))
    assert one.train.x.tolist() == other.train.x.tolist()
    assert one.test.x.tolist() != other.test.x.tolist()


@pytest.mark.parametrize("role", ["label", "owner"])
def test_missing_values_in_a_role_are_counted(write: Any, role: str) -> None:
    frame = people(bank="a")
    column = {"label": "hired", "owner": "bank"}[role]
    frame.loc[[3, 9], column] = None
    message = refusal(table(write(frame), owner="bank"))
    assert f"The {role} column '{column}'" in message
    assert "is empty in 2 of 80 rows, first in data row 4" in message


def test_a_missing_number_names_its_row_in_the_file(write: Any) -> None:
    frame = people()
    frame["age"] = frame["age"].astype(float)
    frame.loc[[50, 70], "age"] = None
    message = refusal(table(write(frame)))
    assert "'age'" in message and "is empty in 2 of 80 rows, first in data row 51" in message
    assert "set missing to 'mean'" in message


def test_missing_numbers_take_the_mean_of_the_training_rows_alone(write: Any) -> None:
    frame = people(part=["train"] * 60 + ["test"] * 20, pay=[1.0] * 30 + [3.0] * 29 + [None] + [100.0] * 19 + [None])
    raw = table(write(frame), split="part", missing="mean").read()
    known = raw.features["pay"].iloc[[row for row in raw.parts[0] if row != 59]].mean()
    assert raw.features["pay"].iloc[[59, 79]].tolist() == [known, known]
    assert "The column 'pay' was empty in 2 of 80 rows; the mean was used there." in raw.notes
    frame.loc[:59, "pay"] = None
    assert "'pay'" in (message := refusal(table(write(frame), split="part", missing="mean")))
    assert "empty in every training row" in message


def test_all_columns_with_missing_numbers_are_named_at_once_and_empty_ones_are_to_be_dropped(write: Any) -> None:
    frame = people(pay=[None, *[1.0, 2.5] * 39, 3.0], debt=[*[1.5, 2.0] * 39, 3.0, None], notes=None)
    message = refusal(table(write(frame)))
    assert message.count("is empty in 1 of 80 rows") == 2 and message.count("--missing mean") == 2
    assert "'notes'" in message and "is empty in every row: list it in drop (--drop)." in message
    assert "is empty in every row" in refusal(table(write(frame), missing="mean"))


def test_infinite_numbers_are_refused_even_where_missing_ones_are_filled(write: Any) -> None:
    frame = people(pay=[1.0, np.inf] * 40)
    assert "missing or infinite" in refusal(table(write(frame), missing="mean"))


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%y", "%Y-%m-%d %H:%M"])
def test_dates_are_refused_rather_than_made_categories(write: Any, form: str) -> None:
    days = [day.strftime(form) for day in pd.date_range("2024-01-01", periods=40)] * 2
    message = refusal(table(write(people(since=days))))
    assert "'since'" in message and f"holds dates, such as {days[0]!r}" in message
    assert f"since={days[0]}" in features(table(write(people(since=days)), categorical=("since",)))


def test_a_column_that_never_changes_is_told_of(write: Any) -> None:
    notes = table(write(people(country="UK"))).read().notes
    assert notes == ("The column 'country' is constant and carries no information.",)


def three_labels(rows: int = 90) -> pd.DataFrame:
    """Three labels in three groups, all nine combinations equally often."""
    number = np.arange(rows)
    return people(
        rows,
        hired=np.array(["yes", "no", "maybe"])[number % 3],
        sex=np.array(["woman", "man", "other"])[number // 3 % 3],
    )


@pytest.mark.parametrize(
    ("favourable", "names"), [("yes", ("maybe", "no", "yes")), ("maybe", ("no", "yes", "maybe")), (" NO ", None)]
)
def test_a_label_may_have_many_values_and_the_favourable_one_comes_last(
    write: Any, favourable: str, names: tuple[str, ...] | None
) -> None:
    frame = three_labels()
    data = table(write(frame), favourable=favourable).read()
    assert data.task.label_names == (names or ("maybe", "yes", "no"))
    assert data.task.favourable == 2 and data.task.labels == 3 and data.task.groups == 3
    assert [data.task.label_names[code] for code in data.y] == frame["hired"].tolist()


def test_splits_keep_the_shares_of_every_label_and_group(write: Any) -> None:
    data = table(write(three_labels()), validation=0.2, test=0.3).load()
    assert data.train.counts(data.task).tolist() == [[5] * 3] * 3
    assert data.test.counts(data.task).tolist() == [[3] * 3] * 3


def test_many_labels_need_a_favourable_one_even_if_they_are_numbers(write: Any) -> None:
    file = write(people(hired=np.arange(80) % 3))
    assert "set favourable to one of '0', '1', '2'." in refusal(table(file, favourable=None))
    assert table(file, favourable=0).read().task.label_names == ("1", "2", "0")


def test_a_label_with_one_value_is_refused(write: Any) -> None:
    assert "one value only, 'yes'" in refusal(table(write(people(hired="yes"))))


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.arange(400), "holds 400 different numbers in 400 rows, like a quantity or an id: put them into bins"),
        (np.arange(400) % 40 + 0.5, "holds 40 different numbers in 400 rows, like a quantity or an id"),
        (np.arange(400) % 41, "holds 41 different numbers in 400 rows, like a quantity or an id"),
        ([f"person {row}" for row in range(400)], "400 different values in 400 rows, like a name or an id: name"),
    ],
)
def test_a_label_that_looks_like_a_quantity_or_an_id_is_refused(write: Any, label: Any, said: str) -> None:
    assert said in refusal(table(write(people(400, hired=label))))


def test_a_stray_or_misspelt_label_is_refused_instead_of_becoming_a_class(write: Any) -> None:
    frame = people()
    frame.loc[[3, 9], "hired"] = "perhaps"
    assert "holds 'perhaps' in fewer than 3 rows: correct these rows" in refusal(table(write(frame)))
    frame.loc[15, "hired"] = "perhaps"
    assert table(write(frame)).read().task.label_names == ("no", "perhaps", "yes")
    frame.loc[20:40, "hired"] = "Yes"
    assert "holds 'Yes', 'yes', which differ in spelling alone" in refusal(table(write(frame)))


@pytest.mark.parametrize("words", [("no", "yes"), ("N", "Y"), ("yes", "yes")])
def test_labels_that_say_yes_and_no_in_several_ways_are_refused(write: Any, words: tuple[str, str]) -> None:
    """As when owners write 0 and 1, and others no and yes: these would be four labels."""
    coded, frame = (people()["hired"] == "yes").astype(int), people()
    frame["hired"] = [words[one] if place % 5 == 0 else str(one) for place, one in enumerate(coded)]
    assert "which say yes and no in several ways: write them the same way." in refusal(
        table(write(frame), favourable="1")
    )
    letters = people(hired=list("FTNYA" * 16))
    assert table(write(letters), favourable="A").read().task.labels == 5


def test_many_classes_are_taken_and_numbers_among_them_noted(write: Any) -> None:
    named = table(write(people(400, hired=[f"class {row % 40}" for row in range(400)])), favourable="class 7").read()
    assert named.task.labels == 40 and named.task.label_names[-2:] == ("class 39", "class 7") and named.notes == ()
    coded = table(write(people(400, hired=np.arange(400) % 40)), favourable=7).read()
    assert coded.task.label_names[:3] == ("0", "1", "2") and coded.task.label_names[-1] == "7"
    assert "40 different numbers in 400 rows, each a label of its own: put them into bins" in coded.notes[0]
    assert table(write(people(200, hired=np.arange(200) % 20 + 0.5)), favourable=0.5).read().task.labels == 20


def test_a_label_without_training_rows_is_noted_unless_it_is_the_favourable_one(write: Any) -> None:
    frame = three_labels()
    frame["part"] = np.where(frame["hired"] == "maybe", "test", np.where(np.arange(90) % 9 < 6, "train", "test"))
    file = write(frame.drop(columns="town"))  # which tells the other two labels apart
    data = table(file, split="part").read()
    assert data.task.labels == 3
    assert data.notes == (f"The training part of {file!r} has no row with the label 'maybe'; models cannot learn it.",)
    message = refusal(table(file, split="part", favourable="maybe"))
    assert "has no row with the favourable label 'maybe'" in message


def test_a_wrong_name_is_answered_with_the_nearest(write: Any) -> None:
    file = write(people())
    assert "no column 'hire': did you mean 'hired'?" in refusal(table(file, label="hire"))
    assert "did you mean 'sex'?" in refusal(table(file, group="sexx"))
    assert "did you mean 'town'?" in refusal(table(file, drop=("twon",)))
    assert "its columns are 'age', 'hired', 'sex', 'town'." in refusal(table(file, owner="zzzzzz"))
    assert "did you mean 'yes'?" in refusal(table(file, favourable="yess"))
    long = write(people().assign(**{"hired within a year of the interview": "no", "fired": "no"}).drop(columns="hired"))
    assert "did you mean 'hired within a year of the interview'?" in refusal(table(long, label="Hired"))


def test_groups_must_be_few_and_at_least_two(write: Any) -> None:
    assert "different numbers: put them into bins" in refusal(table(write(people()), group="age"))
    assert "one group only, 'man'" in refusal(table(write(people(sex="man"))))


def test_ids_and_names_are_refused_as_features(write: Any) -> None:
    message = refusal(table(write(people(who=[f"person {number}" for number in range(80)]))))
    assert "'who'" in message and "list it in drop" in message
    many = people(3000, street=[f"street {number % 1500}" for number in range(3000)])
    assert "1500 different texts in 3000 rows" in refusal(table(write(many)))


def test_all_columns_that_cannot_be_used_are_named_at_once_and_dropped_by_a_list_with_commas(write: Any) -> None:
    numbers = range(80)
    file = write(people(who=[f"person {n}" for n in numbers], born=[f"1980-01-{n % 28 + 1:02d}" for n in numbers]))
    assert "list it in drop. The column 'born' of" in refusal(table(file))
    assert features(table(file, drop=("who, born",), categorical=("age,town",)))[0] == "age=20"
    assert "no column 'brn': did you mean 'born'?" in refusal(table(file, drop=("who,brn",)))


@pytest.mark.parametrize("form", ["${:,d}", "{:,d}.50", "{:d} %", "{:,d} €"])
def test_numbers_with_signs_or_thousands_separators_are_refused_as_such(write: Any, form: str) -> None:
    said = refusal(table(write(people(pay=[form.format(number * 7 + 1300) for number in range(80)]))))
    assert "'pay'" in said and "write them as plain numbers" in said


def test_text_among_numbers_is_refused_rather_than_made_categories(write: Any) -> None:
    frame = people(pay=[str(number % 40) for number in range(80)])
    frame.loc[[5, 6], "pay"] = "?"
    file = write(frame)
    message = refusal(table(file))
    assert "'pay'" in message and "'?' in 2 rows, first in data row 6" in message
    assert "pay=?" in features(table(file, categorical=("pay",)))


def test_a_few_codes_with_text_are_categories(write: Any) -> None:
    assert "children=3+" in features(table(write(people(children=["0", "1", "2", "3+"] * 20))))


def test_nothing_left_to_learn_from_is_refused(write: Any) -> None:
    only = people()[["sex", "hired"]]
    assert "no feature columns" in refusal(table(write(only), use_group_as_feature=False))


def test_a_group_of_very_few_training_rows_is_noted(write: Any) -> None:
    frame = people(160)
    frame.loc[:3, "sex"] = "x"
    (note,) = table(write(frame)).read().notes
    assert "Groups of very few training rows are compared: 'x (" in note and "data.min_group_size=30" in note
    (note,) = table(write(frame), min_group_size=30).read().notes
    assert note == "Groups of fewer than 30 training rows are scored, not compared: 'x'."


def test_one_column_cannot_be_label_and_group() -> None:
    with pytest.raises(UserError, match="label and the group must be different columns"):
        Table("x.csv", label="sex", group="sex")
    with pytest.raises(UserError, match="leave rows to train on"):
        Table("x.csv", label="hired", group="sex", test=0.95)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "is empty"),
        ("blank.csv", b"\n\n", "is empty"),
        ("header.csv", b"age,sex,hired\n", "a header but no rows"),
        ("twice.csv", b"age,sex,age,hired\n1,2,3,4\n", "more than one column named 'age'"),
        ("latin.csv", "age,sex,hired\n1,Señora,1\n".encode("latin-1"), "is not UTF-8 text"),
        ("one.csv", b"hired\n1\n0\n", "only one column, 'hired'"),
        ("ragged.csv", b"age,sex,hired\n1,2,3\n1,2,3,4\n", "line 3"),
        ("shifted.csv", b"age,sex,hired\n1,2,3,4\n1,2,3,4\n", "more fields than its first line"),
        ("broken.csv.gz", b"\x1f\x8b no gzip", "cannot be read as a table"),
        ("cut.csv.gz", gzip.compress(b"age,sex,hired\n" * 999, mtime=0)[:-20], "cannot be read as a table"),
        ("broken.parquet", b"PAR1 not really", "cannot be read as a table"),
        ("people.xlsx", b"", "no known ending: use .csv"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    message = refusal(table(str(tmp_path / name)))
    assert said in message and name in message


def test_a_missing_file_or_a_folder_is_told_apart(tmp_path: Path) -> None:
    assert "There is no file" in refusal(table(str(tmp_path / "none.csv")))
    assert "is a folder" in refusal(table(str(tmp_path)))


def test_settings_come_from_a_file_of_plain_values(write: Any) -> None:
    loaded = source("table", file=write(people()), label="hired", group="sex", favourable="yes", drop=["town"])
    assert loaded.load().train.x.shape[1] == 3
    with pytest.raises(UserError, match="did you mean 'favourable'"):
        source("table", file="x.csv", label="hired", group="sex", favorable="yes")


def test_the_same_seed_gives_the_same_data_and_another_gives_other_parts(write: Any) -> None:
    file = write(people())
    one, again, other = (table(file, data_seed=seed).read() for seed in (1, 1, 2))
    assert one.parts[2].tolist() == again.parts[2].tolist() != other.parts[2].tolist()


def test_natural_order_is_that_of_people() -> None:
    assert sorted(["b10", "b9", "-1", "10", "9.5", "B1", "a", "²"], key=natural) == [
        "-1",
        "9.5",
        "10",
        "a",
        "B1",
        "b9",
        "b10",
        "²",
    ]


def test_german_credit_works_as_somebodys_own_table(shared_data: Path, tmp_path: Path) -> None:
    rows = [line.split() for line in (shared_data / "tabular" / "german.data").read_text().splitlines()]
    frame = pd.DataFrame(rows, columns=[f"a{number}" for number in range(1, 21)] + ["credit"])
    frame["sex"] = np.where(frame["a9"].isin(["A92", "A95"]), "female", "male")
    frame.to_csv(tmp_path / "german.csv", index=False)
    data = Table(str(tmp_path / "german.csv"), label="credit", group="sex", favourable=1, drop=("a9",)).load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [700, 100, 200]
    assert data.task.group_names == ("female", "male")
    counts = data.train.counts(data.task) + data.validation.counts(data.task) + data.test.counts(data.task)
    assert counts.tolist() == [[109, 191], [201, 499]]


def crossed_people(rows: int = 400) -> pd.DataFrame:
    """Women and men in two towns, two women in a third, and four rows without a sex."""
    number = np.arange(rows)
    frame = people(rows, town=np.where(number % 5 < 3, "Leeds", "York"))
    frame.loc[[0, 2], "town"] = "Hull"
    frame.loc[[1, 11, 21, 31], "sex"] = None
    return frame


@pytest.mark.parametrize("group", ["sex,town", "sex, town", ["sex", "town"], ("sex", "town")])
def test_several_group_columns_are_crossed(write: Any, group: Any) -> None:
    raw = table(write(crossed_people()), group=group).read()
    task = raw.task
    assert task.group == "sex, town"
    assert task.group_names[: task.compared] == ("man, Leeds", "man, York", "woman, Leeds", "woman, York")
    assert task.group_names[task.compared :] == ("woman, Hull", "unknown")
    frame = crossed_people()
    for row in (0, 1, 5, 7):
        known = f"{frame['sex'][row]}, {frame['town'][row]}"
        assert task.group_names[raw.group[row]] == (known if row != 1 else "unknown")
    assert len(raw.group) == len(raw.y) == 400
    assert "Groups of fewer than 30 training rows are scored, not compared: 'woman, Hull'." in raw.notes


def test_crossed_groups_whose_values_hold_commas_stay_apart(write: Any) -> None:
    frame = people(400)
    first = np.arange(400) % 2 == 0
    frame["sex"], frame["town"] = np.where(first, "a, b", "a"), np.where(first, "c", "b, c")
    assert table(write(frame), group="sex,town").read().task.group_names == ('"a, b", c', 'a, "b, c"')


def test_the_size_of_a_compared_group_can_be_set(write: Any) -> None:
    file = write(crossed_people())
    assert table(file, group="sex,town", min_group_size=0).read().task.excluded == 1
    few = table(write(people(town=["Hull"] * 3 + ["Leeds", "York"] * 38 + ["York"])), group="town", min_group_size=5)
    assert few.read().task.group_names == ("Leeds", "York", "Hull")
    assert few.read().task.compared == 2
    assert "fewer than two have 200 training rows" in refusal(table(file, group="sex,town", min_group_size=200))
    with pytest.raises(UserError, match="min_group_size"):
        ffalm.load(file, label="hired", group="sex", min_group_size=-1)
    with pytest.raises(UserError, match="different ones"):
        table(file, group="sex,sex")


def test_rows_without_a_group_are_kept_and_not_compared(write: Any) -> None:
    frame = people()
    frame.loc[[3, 9], "sex"] = None
    whole = table(write(frame)).load()
    assert whole.task.group_names == ("man", "woman", "unknown") and whole.task.compared == 2
    assert sum(len(part) for part in (whole.train, whole.validation, whole.test)) == 80
    assert any("2 of 80 rows have no 'sex'" in note for note in whole.notes)
    assert table(write(frame), against_rest=("man",)).read().task.group_names == ("rest", "man", "unknown")
    assert "is empty in every row" in refusal(table(write(people(sex=None))))


def test_crossed_groups_are_features_and_may_be_kept_out(write: Any) -> None:
    file = write(crossed_people())
    assert {"sex=man", "sex=(missing)", "town=Hull"} <= set(features(table(file, group="sex,town")))
    assert features(table(file, group="sex,town", use_group_as_feature=False)) == ("age",)


def test_columns_are_taken_in_every_type_that_frames_hold_them_in() -> None:
    import pyarrow

    plain = people(pay=np.arange(80) % 7 + 0.5)
    settings: Any = {"label": "hired", "group": "sex", "favourable": "yes", "clients": 2}
    want = ffalm.load(plain, **settings).test
    exact = pd.ArrowDtype(pyarrow.decimal128(6, 2))
    kinds: dict[str, Any] = {
        "objects": plain["pay"].astype(object),
        "big-endian": plain["pay"].to_numpy().astype(">f8"),
        "decimals of a database": pd.Series([Decimal(str(pay)) for pay in plain["pay"]]),
        "decimals": pd.Series(pd.array([Decimal(str(pay)) for pay in plain["pay"]], dtype=exact)),
    }
    for kind, column in kinds.items():
        found = ffalm.load(plain.assign(pay=column), **settings).test
        assert want is not None and found is not None and found.x.equal(want.x), kind
    records = np.array([(place,) for place in range(5)] * 16, dtype=[("a", "i8")])
    assert ffalm.load(plain.assign(pay=records), **settings).test is not None
    nested = pd.Series([[1]] * 80, dtype=pd.ArrowDtype(pyarrow.list_(pyarrow.int64())))
    with pytest.raises(UserError, match="holds lists or records"):
        ffalm.load(plain.assign(pay=nested), **settings)


def test_a_column_that_is_there_twice_with_the_same_values_is_used_once(write: Any) -> None:
    frame = people()
    file = write(pd.concat([frame, frame[["age", "sex"]]], axis=1))
    assert (
        table(file).read().notes[0]
        == "people.csv holds the column 'age' twice, with the same values: one of them is used."
    )
    assert features(table(file)) == features(table(write(frame, "once.csv")))


def test_a_file_whose_name_begins_with_a_tilde_is_read(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(write(people(), "~people.csv")).parent)
    assert table("~people.csv").read().task.label == "hired"


def test_names_and_values_are_the_same_however_their_accents_are_coded() -> None:
    composed, apart = "\u00e9", "e\u0301"
    frame = people(sex=[[composed, apart, "m", "m"][number % 4] for number in range(80)]).rename(columns={"sex": apart})
    for name in (composed, apart):
        data = ffalm.load(frame, label="hired", group=name, favourable="yes", clients=2)
        assert (data.task.group, data.task.group_names) == (composed, ("m", composed))
    with pytest.raises(UserError, match="more than one column named"):
        ffalm.load(frame.assign(**{composed: 1}), label="hired", group=apart, favourable="yes")


def test_several_files_are_a_client_each(write: Any) -> None:
    frame = people(120).assign(bank=np.repeat(["east", "north", "west"], 40))
    whole = ffalm.load(write(frame), label="hired", group="sex", favourable="yes", owner="bank")
    files = [write(own.drop(columns="bank"), f"{name}.csv") for name, own in frame.groupby("bank")]
    apart = ffalm.load(", ".join(files), label="hired", group="sex", favourable="yes")
    assert apart.client_names == whole.client_names == ("east", "north", "west")
    assert all(one.x.equal(other.x) for one, other in zip(apart.clients, whole.clients, strict=True))
    dealt = ffalm.load(",".join(files), label="hired", group="sex", favourable="yes", partition="iid", clients=2)
    assert len(dealt.clients) == 2
    other = write(frame.rename(columns={"age": "years"}), "other.csv")
    assert "differ in 'age', 'bank', 'years'" in refusal(table(f"{files[0]},{other}"))
    assert "named twice" in refusal(table(f"{files[0]},{files[0]}"))
    Path(files[0]).with_name("link.csv").symlink_to(files[0])
    assert "named twice" in refusal(table(f"{files[0]},{Path(files[0]).with_name('link.csv')}"))
    assert "no file" in refusal(table("a.csv,b.csv"))
    own = [write(people(40).assign(**{"(file)": "x"}), f"{name}.csv") for name in ("one", "two")]
    assert "may not have a column '(file)'" in refusal(table(",".join(own)))


@pytest.mark.parametrize(
    "columns",
    [
        {"district": ["01", "02", "1"] * 13 + ["9"] + ["01", "2A", "02", "3"] * 10},  # numbers in the first file only
        {"member": ["TRUE", "false"] * 20 + ["TRUE", "maybe"] * 20},
        {"member": ["TRUE", "FALSE"] * 20 + ["1", "0", "2", "0"] * 10},
        {"member": [""] * 40 + ["True", "False"] * 20, "rate": ["1.50", "2"] * 40},
    ],
)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_column_of_several_files_has_the_type_that_it_has_in_one(
    write: Any, columns: dict[str, list[str]], in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = people(80, **columns)
    whole = table(write(frame.assign(bank=np.repeat(["east", "west"], 40))), owner="bank").load()
    east, west = write(frame[:40], "east.csv"), write(frame[40:][sorted(frame.columns)], "west.csv")
    if in_pieces:
        monkeypatch.setattr("ffalm.data.table_readers._WHOLE", 0)
        monkeypatch.setattr("ffalm.data.table_readers._PIECE_VALUES", 50)
    apart = table(f"{east},{west}").load()
    assert apart.preprocessing == whole.preprocessing
    assert apart.train.x.equal(whole.train.x)


def test_codes_with_far_outliers_are_looked_at_without_a_warning_of_numpy() -> None:
    number = np.arange(400)
    frame = people(400, code=np.where(number % 9 < 7, number % 9, 10**15 + number % 9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FrameTable(label="hired", group="sex", favourable="yes", frame=frame).read().notes == ()


def test_columns_that_give_the_label_away_are_noted() -> None:
    draws = np.random.default_rng(0)
    good = draws.random(600) < 0.4
    frame = pd.DataFrame(
        {
            "code": np.where(good, draws.choice(["P1", "P2"], 600), draws.choice(["C1", "C2"], 600)),
            "closed": np.where(good, 5 + draws.random(600), draws.random(600)),
            "useful": good + draws.normal(0, 0.5, 600),
            "kind": draws.choice(["a", "b"], 600),
            "sex": draws.choice(["f", "m"], 600),
            "paid": np.where(good, "yes", "no"),
        }
    )
    notes = FrameTable(label="paid", group="sex", favourable="yes", frame=frame).read().notes
    assert [note.split("'")[1] for note in notes] == ["code", "closed"]
    assert all("gives the label away in 100.0% of the training rows" in note for note in notes)
    few = FrameTable(label="paid", group="sex", favourable="yes", frame=frame[:50].drop(columns="code")).read().notes
    assert [note.split("'")[1] for note in few] == ["closed"]
    coded = frame[:50].assign(code=frame["paid"].map({"yes": "Y", "no": "N"})).drop(columns="closed")
    few = FrameTable(label="paid", group="sex", favourable="yes", frame=coded).read().notes
    assert [note.split("'")[1] for note in few] == ["code"]
    rare = frame.assign(paid=np.where(np.arange(600) < 8, "yes", "no"))  # one label is nearly always right
    assert FrameTable(label="paid", group="sex", favourable="yes", frame=rare).read().notes == ()


def test_numbers_as_text_in_a_data_frame_are_noted_unless_they_are_categories_of_numbers() -> None:
    ages = np.arange(400) % 60 + 18
    (note,) = frame_notes(people(400, age=ages.astype(str)))
    assert note.startswith("The column 'age' holds texts that look like numbers, such as '18'")
    assert frame_notes(people(400, age=pd.Categorical(ages))) == ()
    pay = people(pay=np.arange(80) + 0.5).astype({"pay": str})
    message = refusal(FrameTable(label="hired", group="sex", favourable="yes", frame=pay))
    assert message.endswith("like a name or an id: list it in drop, or convert it to numbers if it is a quantity.")


def test_a_rare_label_is_not_given_away_by_columns_that_are_right_where_it_is_not() -> None:
    """In 1 of 800 rows, so that a column is right in 99.9 % of the rows even if it misses half of the rare ones."""
    draws = np.random.default_rng(0)
    fraud = np.arange(14_000) % 800 == 0
    frame = pd.DataFrame(
        {
            "amount": draws.normal(4 * fraud, 1),
            "kind": draws.choice(["a", "b"], 14_000),
            "reversed": np.where(fraud, "yes", "no"),
            "sex": draws.choice(["f", "m"], 14_000),
            "fraud": np.where(fraud, "yes", "no"),
        }
    )
    (note,) = FrameTable(label="fraud", group="sex", favourable="no", frame=frame).read().notes
    assert note.startswith("The column 'reversed' alone gives the label away in 100.0%")


def test_numbers_that_stand_for_missing_values_are_noted() -> None:
    ages = np.arange(20, 90).repeat(3)
    frame = people(210, age=ages)
    assert frame_notes(frame) == ()
    frame.loc[:1, "age"] = -999
    assert frame_notes(frame) == (
        "The column 'age' holds -999 in 2 rows, far from its other numbers: if that stands for a missing value, leave "
        "these cells empty and set missing to 'mean'.",
    )
    assert frame_notes(people(210, age=ages, left=np.tile([-1, 0, 1], 70))) == ()  # a number among its neighbours


def test_codes_that_are_taken_for_quantities_are_noted() -> None:
    draws = np.random.default_rng(0)
    job, age = draws.integers(1, 31, 4000), draws.integers(18, 80, 4000)
    rate = np.random.default_rng(1).uniform(0.2, 0.8, 31)[job] - 0.0002 * (age - 50) ** 2
    frame = people(4000, job=job, age=age, hired=np.where(draws.random(4000) < rate, "yes", "no"))
    assert frame_notes(frame) == (
        "The column 'job' holds 30 different whole numbers that predict the label better as categories than as "
        "quantities: list it in categorical if they are codes.",
    )
    assert frame_notes(frame, categorical=("job",)) == ()


@pytest.mark.parametrize(
    "form",
    [{}, {"encoding": "utf-16"}, {"sep": ";", "decimal": ","}, {"sep": "\t"}, {"quoting": csv.QUOTE_ALL}],
    ids=lambda form: "".join(map(str, form)),
)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_numbers_with_zeros_before_them_are_noted(tmp_path: Path, form: dict[str, Any], ending: str) -> None:
    file = tmp_path / f"people{ending}"
    postcode, day = ["00501", "10001", "90210", "00501", "2139"] * 16, ["01/02/2020", "2020-01-01 05:00"] * 40
    frame = people(postcode=postcode, bonus=[0, 0.5, 1.05, 10, 0.01] * 16, town=day)
    frame.loc[3, "bonus"] = None
    frame.to_csv(file, index=False, **form)
    settings = {name: value for name, value in form.items() if name in ("encoding", "decimal")}
    noted = "The column 'postcode' holds numbers with zeros before them, such as 00501, which are read as quantities "
    own = {**settings, "missing": "mean"}
    assert table(str(file), **own).read().notes[1:] == (f"{noted}(501): list it in categorical if they are codes.",)
    assert table(str(file), **own, categorical=("postcode",)).read().notes[1:] == ()
    assert table(str(file), **own, drop=("postcode",)).read().notes[1:] == ()


def test_zeros_before_numbers_are_noted_of_each_file_and_beside_a_leak(write: Any) -> None:
    codes = np.where(people()["hired"] == "yes", "007", "104")
    north, south = write(people(branch=codes), "north.csv"), write(people(branch=104, age="05"), "south.csv")
    told = table(f"{north},{south}").read().notes
    assert [("'branch'" in note, "'age'" in note, "zeros" in note) for note in told] == [
        (False, True, True),
        (True, False, True),
    ]
    leak, zeros = table(north).read().notes
    assert "'branch' alone gives the label away" in leak and "such as 007," in zeros
    assert frame_notes(people(branch=[7, 104] * 40)) == ()


def test_ids_that_are_numbers_are_noted() -> None:
    draws = np.random.default_rng(0)
    noted = ("The column 'id' holds a different whole number in every row, like an id: list it in drop unless it is a "
             "quantity.",)  # fmt: skip
    assert frame_notes(people(400, id=draws.permutation(1000)[:400] + 10**6)) == noted
    assert frame_notes(people(400, id=np.sort(draws.permutation(1000)[:400]))) == noted
    assert frame_notes(people(400, income=draws.integers(0, 1000, 400))) == ()
    assert frame_notes(people(400, income=draws.permutation(10**6)[:400])) == ()  # may differ by chance


@pytest.mark.parametrize("mark", [".", ","])
def test_thousands_that_are_read_as_decimals_are_noted(tmp_path: Path, mark: Any) -> None:
    file, amounts = tmp_path / "people.csv", np.random.default_rng(0).integers(200, 9000, 400)

    def notes(texts: list[str]) -> tuple[str, ...]:
        people(400, pay=texts).to_csv(file, sep=";", index=False)
        return table(str(file), decimal=mark, missing="mean").read().notes

    written = [f"{amount:,}".replace(",", mark) for amount in amounts]
    (note,) = notes(written)
    kind = "point" if mark == "." else "comma"
    assert f"'pay' holds numbers with a {kind} before three digits, such as {amounts[0] // 1000}{mark}" in note
    assert f"write them without it ({amounts[0]})." in note
    assert "'pay' holds" in notes(["", *written[1:]])[1]
    for other in (f"0{mark}500", f"2{mark}5", f"12{mark}3456", "1200"):
        assert notes([*written[1:], other]) == ()
    assert notes([f"{amount / 1000:.3f}".replace(".", mark) for amount in amounts]) == ()


def frame_notes(frame: pd.DataFrame, **settings: Any) -> tuple[str, ...]:
    return FrameTable(label="hired", group="sex", favourable="yes", frame=frame, **settings).read().notes


def test_a_parquet_file_whose_text_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    columns = {name: pa.array(people(40)[name].tolist()) for name in ("age", "sex", "hired")}
    broken = pa.Array.from_buffers(pa.utf8(), 40, pa.array([b"\xff1"] * 40, pa.binary()).buffers())
    file = tmp_path / "people.parquet"
    pq.write_table(pa.table({**columns, "town": broken}), file)
    assert "cannot be read as a table" in refusal(table(str(file)))


def test_a_file_that_is_written_while_it_is_read_is_refused(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = write(people()), pd.read_csv

    def grows(*given: Any, **options: Any) -> Any:
        frame = read(*given, **options)
        with open(file, "a") as more:
            more.write("30,York,man,yes\n")
        return frame

    monkeypatch.setattr(pd, "read_csv", grows)
    assert "changed while it was read" in refusal(table(file))


def test_a_word_for_a_missing_value_is_one_beside_numbers_of_twenty_digits(write: Any) -> None:
    frame = people(hash=["18446744073709551615", "NA", "3", "None"] * 20)
    assert {"hash=3", "hash=18446744073709551615", "hash=(missing)"} == {
        name for name in features(table(write(frame))) if name.startswith("hash")
    }


@pytest.mark.parametrize("kind", [pa.string_view(), pa.run_end_encoded(pa.int32(), pa.string())], ids=str)
def test_texts_of_arrow_that_pandas_has_no_name_for_are_categories(kind: Any) -> None:
    texts = pa.array(["m", "f"] * 30)
    odd = pa.compute.run_end_encode(texts) if pa.types.is_run_end_encoded(kind) else texts.cast(kind)
    frame = pa.table({"sex": odd, "age": range(60), "paid": [0, 1, 1] * 20}).to_pandas(types_mapper=pd.ArrowDtype)
    assert ffalm.load(frame, label="paid", group="sex", clients=2, min_rows=1).task.group_names == ("f", "m")


def test_a_table_of_arrow_that_pandas_cannot_hold_is_refused() -> None:
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 30), pa.array(["m", "m"]))
    with pytest.raises(UserError, match="cannot be converted to a pandas data frame"):
        ffalm.load(pa.table({"sex": twice, "paid": [0, 1] * 30}), label="paid", group="sex")


def test_a_missing_quotation_mark_does_not_hide_rows(tmp_path: Path) -> None:
    rows = "".join(f'{n},"ab",{"mf"[n % 2]},{n % 3 % 2}\n' for n in range(40))
    file = tmp_path / "a.csv"
    settings: dict[str, Any] = {"label": "paid", "group": "sex", "clients": 2, "min_rows": 1}
    file.write_text("age,job,sex,paid\n" + rows.replace('3,"ab",f', '3,"a\nb",f').replace('"ab",m', '"ab" ,m', 1))
    assert "job=a\nb" in ffalm.load(file, **settings).preprocessing.table.features  # type: ignore
    file.write_text("age,job,sex,paid\n" + rows.replace('"ab",f', '"ab,f', 1))
    with pytest.raises(UserError, match="quotation mark in line 4 ends within a cell that begins in line 3, so one is"):
        ffalm.load(file, **settings)

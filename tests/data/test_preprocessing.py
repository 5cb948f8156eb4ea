"""New rows become features as the training rows did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from ffalm.data.decode import Recipe
from ffalm.data.encoding import NumericColumn, TableEncoding, TableSummary
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.table import FrameTable, Table
from ffalm.errors import UserError

FRAME = pd.DataFrame({"age": [20.0, 40.0, 60.0], "job": ["cook", "nurse", "cook"]})
TABLE = Preprocessing(TableEncoding.of(TableSummary.of(FRAME)))


def people(rows: int = 60) -> pd.DataFrame:
    numbers = np.arange(rows)
    return pd.DataFrame(
        {
            "age": np.where(numbers % 7 == 0, np.nan, numbers % 13),
            "race": np.array(["a", "b", "c"])[numbers % 3],
            "paid": np.array(["no", "yes"])[numbers // 3 % 2],
        }
    )


def test_a_source_keeps_what_made_its_features() -> None:
    settings = {"label": "paid", "group": "race", "favourable": "yes", "against_rest": ("a",), "missing": "mean"}
    source = FrameTable(frame=people(), **settings)  # type: ignore[arg-type]
    found = source.load()
    assert found.preprocessing is not None
    raw = source.read()
    again = found.preprocessing.encode(people().iloc[raw.parts[2]])
    assert torch.allclose(again, found.test.x)  # missing numbers are the training rows' mean
    assert found.preprocessing.group_values == {"b": "rest", "c": "rest"}
    groups = found.preprocessing.groups(people(), "race", found.task.group_names, 60)
    assert groups.tolist() == [
        found.task.group_names.index("a" if race == "a" else "rest") for race in people()["race"]
    ]


def test_plain_values_give_it_back() -> None:
    for one in (TABLE, Preprocessing(images=Recipe(16, "none")), Preprocessing(group_values={"a": "rest"})):
        assert Preprocessing.from_plain(json.loads(json.dumps(one.to_plain()))) == one


def test_missing_columns_are_all_named_and_new_categories_counted() -> None:
    with pytest.raises(UserError, match="lacks the columns 'age', 'job'"):
        TABLE.encode(pd.DataFrame({"x": [1]}))
    with pytest.raises(UserError, match="more than one column named 'age'"):
        TABLE.encode(pd.concat([FRAME, FRAME[["age"]]], axis=1))
    new = FRAME.assign(job=["cook", "baker", None])
    assert TABLE.unseen(new) == {"job": 2}
    assert TABLE.unseen(FRAME) == {}
    assert TABLE.encode(new)[1, 1:].tolist() == [0.0, 0.0]


def test_missing_numbers_are_refused_unless_training_filled_them() -> None:
    gaps = FRAME.assign(age=[20.0, None, 60.0])
    with pytest.raises(UserError, match="'age' has 1 missing"):
        TABLE.encode(gaps)
    filled = Preprocessing(TABLE.table, missing="mean")
    assert filled.encode(gaps)[1, 0] == 0.0
    row = pd.DataFrame([{"age": None, "job": "cook"}])
    assert filled.encode(row)[0, 0] == 0.0
    odd = Preprocessing(TableEncoding((NumericColumn("self", 3.0, 1.0),)), missing="mean")
    assert odd.encode(pd.DataFrame({"self": [None, 4.0]})).flatten().tolist() == [0.0, 1.0]


def test_images_are_read_from_a_folder_in_the_order_of_their_names(tmp_path: Path) -> None:
    images = Preprocessing(images=Recipe(8))
    for name, level in (("b.png", 250), ("a.png", 10)):
        Image.fromarray(np.full((20, 20, 3), level, dtype=np.uint8)).save(tmp_path / name)
    assert images.encode(images.read(tmp_path))[:, 0, 0, 0].tolist() == [10, 250]
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(UserError, match=r"text.png cannot be used: not an image\.$"):
        images.encode(images.read(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        images.read(tmp_path / "none")
    with pytest.raises(UserError, match="no file or folder"):
        images.read(tmp_path / "absent")


def test_with_an_array_of_features_whole_numbers_are_the_groups_own() -> None:
    names = ("female", "male")
    assert TABLE.groups(torch.zeros(2, 3), [1, 0], names, 2).tolist() == [1, 0]
    assert TABLE.groups(torch.zeros(2, 3), ["male", "other"], names, 2).tolist() == [1, -1]
    assert TABLE.groups(torch.zeros(2, 3), torch.tensor([1.0, 0.0], requires_grad=True), names, 2).tolist() == [-1, -1]
    with pytest.raises(UserError, match="groups are a tensor without values"):
        TABLE.groups(torch.zeros(2, 3), torch.empty(2, device="meta"), names, 2)
    with pytest.raises(UserError, match="no column of groups"):
        TABLE.groups(torch.zeros(2, 3), "sex", names, 2)


@pytest.mark.parametrize(
    ("names", "given", "places"),
    [
        (("female", "male"), [1, 0, -1, 2], [1, 0, -1, -1]),
        (("1", "2"), [1, 2, 2, 7], [0, 1, 1, -1]),  # names first
        (("30", "40"), [0, 1, 1, 0], [0, 1, 1, 0]),
        (("0", "1", "unknown"), [0, 1, 2, 2], [0, 1, 2, 2]),
        (("female", "male"), ["male", 0, None, 1.0], [1, 0, -1, -1]),
    ],
)
@pytest.mark.parametrize("data", [torch.zeros(4, 3), pd.DataFrame({"sex": ["a"] * 4})])
def test_groups_are_names_or_numbers_that_are_no_names(
    data: object, names: tuple[str, ...], given: list[object], places: list[int]
) -> None:
    assert Preprocessing().groups(data, given, names, 4).tolist() == places


def test_numbers_of_a_column_are_values_and_no_places() -> None:
    frame = pd.DataFrame({"sex": [0, 1]})
    assert Preprocessing().groups(frame, "sex", ("female", "male"), 2).tolist() == [-1, -1]


def test_numbers_that_may_be_names_or_places_are_refused() -> None:
    with pytest.raises(UserError, match="The group 0 is none of '1', '2', and 1 is: give each row's group by name"):
        Preprocessing().groups(torch.zeros(2, 3), [0, 1], ("1", "2"), 2)


def test_truth_values_may_come_as_numbers_and_complex_numbers_may_not() -> None:
    own = Preprocessing(TableEncoding.of(TableSummary.of(pd.DataFrame({"paid": [True, False], "age": [1.0, 2.0]}))))
    rows = pd.DataFrame({"paid": [True, False, True], "age": [1.0, 2.0, 3.0]})
    assert own.encode(rows.assign(paid=[1, 0, 1])).equal(own.encode(rows))
    with pytest.raises(UserError, match="'age' holds complex numbers"):
        replace(own, missing="mean").encode(rows.assign(age=rows["age"] + 1j))


def test_rows_may_be_dicts_as_json_has_them() -> None:
    rows = FRAME.to_dict("records")
    assert TABLE.encode(TABLE.read(rows)).equal(TABLE.encode(FRAME))
    assert TABLE.encode(TABLE.read(rows[0])).equal(TABLE.encode(FRAME)[:1])


@pytest.mark.parametrize("codes", [("u", "007", "7"), ("u", "1e3", "1000"), ("u", ".5", "0.5"), ("u", "TRUE", "True")])
def test_a_file_without_texts_keeps_codes_apart_that_are_one_number(codes: tuple[str, ...], tmp_path: Path) -> None:
    own = Preprocessing(TableEncoding.of(TableSummary.of(pd.DataFrame({"code": codes, "age": [1.0, 2.0, 3.0]}))))
    file = tmp_path / "new.csv"
    file.write_text(f"code,age\n{codes[1]},2\n{codes[1]},2\n")
    wanted = own.encode(pd.DataFrame({"code": codes[1], "age": [2.0, 2.0]}))
    assert own.encode(own.read(file)).tolist() == wanted.tolist()
    file.write_text(f"shop,code,age\n{codes[1]},u,2\n")
    assert own.groups(own.read(file, "shop", codes), "shop", codes, 1).tolist() == [1]


@pytest.mark.parametrize("later", [(), ("y",)])
@pytest.mark.parametrize(
    ("beside", "declared"), [((), ("code",)), (("x", "A7"), ("code",)), (("x", "A7"), ())]
)  # without texts it must be declared
def test_codes_of_a_file_with_a_decimal_comma_are_known_again(
    beside: tuple[str, ...], declared: tuple[str, ...], later: tuple[str, ...], tmp_path: Path
) -> None:
    def write(cells: tuple[str, ...]) -> Path:
        rows = [f"{cell};{n},5;{'mf'[n % 2]};{n % 3 % 2}\n" for n, cell in enumerate(cells * 20)]
        (tmp_path / "codes.csv").write_text("code;age;sex;paid\n" + "".join(rows))
        return tmp_path / "codes.csv"

    cells = ("01", "1", "1,5", "2,0", *beside)
    own = Table(str(write(cells)), "paid", "sex", decimal=",", categorical=declared).load().preprocessing
    assert own is not None
    for known in (cells, ("1,5", "01")):
        assert own.unseen(own.read(write(known))) == {}
    assert own.unseen(own.read(write((*cells, *later)))) == ({"code": 20} if later else {})


def test_groups_of_a_file_with_a_decimal_comma_are_known_again(tmp_path: Path) -> None:
    file, names = tmp_path / "new.csv", ("01", "1", "1.5")
    own = replace(TABLE, decimal=",")
    for last in ("2,0", "x"):
        file.write_text(f"shop;age\n01;1,5\n1;2\n1,50;3\n{last};4\n")
        assert own.groups(own.read(file, "shop", names), "shop", names, 4).tolist() == [0, 1, 2, -1]


@pytest.mark.parametrize("beside", ["", "0.5"])
def test_a_long_code_is_known_again_in_a_file_that_would_be_read_as_floats(beside: str, tmp_path: Path) -> None:
    codes = ("u", "9007199254740993", "0.5")
    own = Preprocessing(TableEncoding.of(TableSummary.of(pd.DataFrame({"code": codes, "age": [1.0, 2.0, 3.0]}))))
    file = tmp_path / "new.csv"
    file.write_text(f"code,age\n{codes[1]},2\n{beside},2\n")
    wanted = own.encode(pd.DataFrame({"code": [codes[1], beside or None], "age": [2.0, 2.0]}))
    assert own.encode(own.read(file)).tolist() == wanted.tolist()
    file.write_text(f"shop,code,age\n{codes[1]},u,2\n{beside},u,2\n")
    known = own.groups(own.read(file, "shop", codes), "shop", codes, 2)
    assert known.tolist() == [1, 2 if beside else -1]

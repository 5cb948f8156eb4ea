from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ffalm.data import source
from ffalm.data.compas import FILE, Compas
from ffalm.data.encoding import TableEncoding
from ffalm.errors import UserError

HEADER = (
    "id,name,sex,age,age_cat,race,juv_fel_count,decile_score,juv_misd_count,juv_other_count,priors_count,"
    "days_b_screening_arrest,c_charge_degree,is_recid,decile_score,score_text,priors_count,two_year_recid"
)


def line(
    number: int,
    race: str = "Caucasian",
    days: str = "-1",
    degree: str = "F",
    known: int = 0,
    score: str = "Low",
    again: int = 0,
) -> str:
    person = f"{number},name {number},Male,{20 + number},25 - 45,{race},0,9,0,0,{number}"
    return f"{person},{days},{degree},{known},9,{score},{number},{again}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    races = ("African-American", "Caucasian", "Hispanic")
    kept = [line(number, races[number % 3], again=number // 3 % 2) for number in range(60)]
    left_out = [
        line(60, days="31"),
        line(61, days=""),
        line(62, known=-1),
        line(63, degree="O"),
        line(64, score="N/A"),
    ]
    edge = [line(65, days="30"), line(66, days="-30")]
    (tmp_path / FILE).write_text("\n".join([HEADER, *kept, *left_out, *edge]) + "\n")
    return tmp_path


def test_the_published_filter_is_applied(folder: Path) -> None:
    raw = Compas(str(folder)).read()
    assert len(raw.y) == 62
    assert not set(range(80, 85)) & set(raw.features["age"])
    assert raw.notes == ("62 of 67 published records pass the filter and belong to a group.",)


def test_not_reoffending_is_the_favourable_label(folder: Path) -> None:
    raw = Compas(str(folder)).read()
    assert raw.y[:6].tolist() == [1, 1, 1, 0, 0, 0]
    assert raw.task.label_names[raw.task.favourable] == "did not reoffend"


@pytest.mark.parametrize("strange", [{"race": ""}, {"again": 2}])
def test_a_record_without_a_race_or_an_outcome_is_not_taken_for_another_one(folder: Path, strange: Any) -> None:
    with (folder / FILE).open("a") as file:
        file.write(line(70, **strange) + "\n")
    with pytest.raises(UserError, match="record 68 lacks a race, or a two_year_recid of 0 or 1"):
        Compas(str(folder)).read()


def test_groups_compare_black_defendants_with_the_rest_or_with_white_ones(folder: Path) -> None:
    rest, white = Compas(str(folder)).read(), Compas(str(folder), groups="black_vs_white").read()
    assert rest.group[:6].tolist() == [0, 1, 1, 0, 1, 1]
    assert white.group[:4].tolist() == [0, 1, 0, 1]
    assert set(white.features["race"]) == {"African-American", "Caucasian"}
    assert (rest.task.group_names[1], white.task.group_names[1]) == ("other", "Caucasian")


def test_race_can_be_left_out_of_the_features(folder: Path) -> None:
    whole, blind = Compas(str(folder)).read(), Compas(str(folder), use_group_as_feature=False).read()
    assert set(whole.features) - set(blind.features) == {"race"}
    assert blind.group.tolist() == whole.group.tolist()


def test_another_models_score_is_no_feature(folder: Path) -> None:
    names = TableEncoding.of(Compas(str(folder)).read().summary()).features
    assert not [name for name in names if "decile" in name or "score" in name or "recid" in name]
    assert "priors_count" in names and "race=Hispanic" in names


def test_the_file_is_split_by_the_shares(folder: Path) -> None:
    data = Compas(str(folder)).load()
    assert len(data.train) + len(data.validation) + len(data.test) == 62
    assert abs(len(data.test) - 12.4) < 1 and abs(len(data.validation) - 6.2) < 1


def test_a_missing_or_strange_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ffalm data get compas"):
        Compas(str(tmp_path)).load()
    (tmp_path / FILE).write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="is not ProPublica's file as published") as caught:
        Compas(str(tmp_path)).load()
    assert "\n" not in str(caught.value)


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="must be one of black_vs_rest, black_vs_white"):
        source("compas", root=".", groups="all")
    with pytest.raises(UserError, match="leave rows to train on"):
        Compas(".", validation=0.5, test=0.5)


def test_the_real_file_gives_the_known_counts(shared_data: Path) -> None:
    raw = Compas(str(shared_data / "tabular")).read()
    assert len(raw.y) == 6_172
    assert raw.group.tolist().count(0) == 3_175
    assert [len(rows) for rows in raw.parts] == pytest.approx([4320, 617, 1234], abs=1)
    assert len(Compas(str(shared_data / "tabular"), groups="black_vs_white").read().y) == 5_278

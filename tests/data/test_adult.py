from __future__ import annotations

from pathlib import Path

import pytest

from ffalm.data import source
from ffalm.data.adult import Adult
from ffalm.data.encoding import TableEncoding
from ffalm.errors import UserError

RECORD = (
    "{age}, Private, 1000, Bachelors, 13, Divorced, {work}, Unmarried, {race}, {sex}, 0, 0, 40, {country}, {income}"
)


def lines(count: int, stop: str = "") -> list[str]:
    """Records in which sex, race and income take all combinations in turn."""
    return [
        RECORD.format(
            age=20 + number,
            work="?" if number % 5 == 0 else "Sales",
            race="White" if number // 4 % 2 else "Black",
            sex="Male" if number % 2 else "Female",
            country="Cuba" if number == 1 and stop else "Peru",
            income=(">50K" if number // 2 % 2 else "<=50K") + stop,
        )
        for number in range(count)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files in UCI's format: a comment on top, full stops after test labels, a blank last line."""
    (tmp_path / "adult.data").write_text("\n".join(lines(80)) + "\n\n")
    (tmp_path / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(lines(24, ".")) + "\n\n")
    return tmp_path


def test_the_official_test_file_is_the_test_part(folder: Path) -> None:
    data = Adult(str(folder)).load()
    assert (len(data.train), len(data.validation), len(data.test)) == (72, 8, 24)
    assert data.test.y.tolist()[:4] == [0, 0, 1, 1]
    assert data.test.group.tolist()[:4] == [0, 1, 0, 1]


def test_the_validation_part_is_stratified(folder: Path) -> None:
    data = Adult(str(folder), validation=0.2).load()
    assert data.validation.counts(data.task).tolist() == [[4, 4], [4, 4]]


def test_race_can_be_the_sensitive_attribute(folder: Path) -> None:
    data = Adult(str(folder), sensitive="race").load()
    assert data.task.group_names == ("non-White", "White")
    assert data.test.group.tolist()[:8] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_survey_weight_and_the_label_are_no_features(folder: Path) -> None:
    raw = Adult(str(folder)).read()
    assert "fnlwgt" not in raw.features and "income" not in raw.features
    assert "sex" in raw.features


def test_the_sensitive_column_can_be_left_out_of_the_features(folder: Path) -> None:
    raw = Adult(str(folder), sensitive="race", use_group_as_feature=False).read()
    assert "race" not in raw.features and "sex" in raw.features


def test_a_question_mark_is_a_category_and_test_rows_add_none(folder: Path) -> None:
    names = TableEncoding.of(Adult(str(folder)).read().summary()).features
    assert "occupation=?" in names
    assert "native-country=Peru" in names and "native-country=Cuba" not in names


def test_the_seed_moves_the_validation_part_only(folder: Path) -> None:
    once, other = Adult(str(folder)).read(), Adult(str(folder), data_seed=1).read()
    assert once.parts[1].tolist() != other.parts[1].tolist()
    assert once.parts[2].tolist() == other.parts[2].tolist()


def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*adult.data.*ffalm data get adult"):
        Adult(str(tmp_path)).load()


@pytest.mark.parametrize(
    "text",
    [
        "1, 2, 3\n",
        lines(1)[0].replace("20", "old", 1) + "\n",
        lines(1)[0].replace("<=50K", "rich") + "\n",
        lines(1)[0].replace("Female", "?") + "\n",
        lines(1)[0] + ", more\n",
        lines(1)[0] + "\n" + lines(1)[0] + ", more\n",
        "\n",
    ],
)
def test_a_file_that_is_not_adult_is_refused_in_one_sentence(folder: Path, text: str) -> None:
    (folder / "adult.data").write_text(text)
    with pytest.raises(UserError, match=r"adult.data' is not UCI's Adult file as published: .*\.$") as caught:
        Adult(str(folder)).load()
    assert "\n" not in str(caught.value)


def test_settings_are_checked(folder: Path) -> None:
    with pytest.raises(UserError, match="must be one of sex, race"):
        source("adult", root=str(folder), sensitive="age")
    with pytest.raises(UserError, match="'validation' of data source 'adult' must be below 1"):
        source("adult", root=str(folder), validation=1.0)


def test_the_real_files_give_the_known_counts(shared_data: Path) -> None:
    raw = Adult(str(shared_data / "tabular")).read()
    official = sorted([*raw.parts[0], *raw.parts[1]])
    assert (len(official), len(raw.parts[2])) == (32_561, 16_281)
    rates = [raw.y[official][raw.group[official] == group].mean() for group in (0, 1)]
    assert rates == pytest.approx([0.1095, 0.3057], abs=5e-5)
    data = raw.encoded()
    assert 105 <= data.train.x.shape[1] <= 107
    numeric = TableEncoding.of(raw.summary()).features.index("age")
    assert float(data.train.x[:, numeric].mean()) == pytest.approx(0, abs=1e-5)
    assert float(data.train.x[:, numeric].std()) == pytest.approx(1, abs=1e-3)

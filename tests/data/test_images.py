from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ffalm.data import source
from ffalm.data.images import Images
from ffalm.data.types import Dataset, Examples
from ffalm.errors import UserError

Painter = Callable[..., Path]

ROWS = 60


def parts(data: Dataset) -> tuple[Examples, Examples, Examples]:
    return data.train, data.validation, data.test


def row(number: int) -> dict[str, str]:
    return {
        "file": f"{number}.png",
        "ill": "yes" if number % 3 == 0 else "no",
        "skin": "dark" if number % 2 else "light",
        "site": f"clinic {number % 4}",
        "part": "train" if number < 40 else "validation" if number < 50 else "test",
    }


def write_table(folder: Path, rows: list[dict[str, str]]) -> Path:
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    file = folder / "labels.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def clinic(tmp_path: Path, paint: Painter) -> Path:
    for number in range(ROWS):
        paint(tmp_path / "pictures" / f"{number}.png", seed=number)
    write_table(tmp_path, [row(number) for number in range(ROWS)])
    return tmp_path


def load(clinic: Path, **settings: object) -> Dataset:
    given = {"label": "ill", "group": "skin", "favourable": "no", "size": 16, **settings}
    return source("images", folder=str(clinic / "pictures"), labels=str(clinic / "labels.csv"), **given).load()


def test_labels_and_groups_come_from_the_table(clinic: Path) -> None:
    data = load(clinic, split="part")
    assert data.task.label_names == ("yes", "no")
    assert data.task.group_names == ("dark", "light")
    assert data.train.y.tolist() == [int(number % 3 != 0) for number in range(40)]
    assert data.test.group.tolist() == [int(number % 2 == 0) for number in range(50, 60)]


def test_images_may_have_more_than_two_labels(clinic: Path) -> None:
    stages = ("early", "late", "none")
    write_table(clinic, [{**row(number), "ill": stages[number // 2 % 3]} for number in range(ROWS)])
    data = load(clinic, split="part", favourable="none")
    assert data.task.label_names == stages and data.task.favourable == 2
    assert data.train.y.tolist() == [number // 2 % 3 for number in range(40)]
    assert load(clinic, split="part", favourable="early").task.label_names == ("late", "none", "early")
    with pytest.raises(UserError, match="set favourable to one of 'early', 'late', 'none'"):
        load(clinic, favourable=None)


def test_a_label_that_no_training_image_has_is_noted(clinic: Path) -> None:
    rows = [row(number) for number in range(ROWS)]
    write_table(clinic, [*rows[:-3], *({**one, "ill": "unclear"} for one in rows[-3:])])
    (note,) = load(clinic, split="part").notes
    assert note.endswith("has no row with the label 'unclear'; models cannot learn it.")


def test_examples_are_bytes_with_channels_first(clinic: Path) -> None:
    data = load(clinic)
    assert data.train.x.dtype == torch.uint8
    assert [len(part) for part in parts(data)] == [42, 6, 12]
    assert data.train.x.shape[1:] == (3, 16, 16)


def test_pictures_stay_with_their_rows(clinic: Path) -> None:
    in_order = load(clinic, split="part")
    label = {
        picture.numpy().tobytes(): int(y) for part in parts(in_order) for picture, y in zip(part.x, part.y, strict=True)
    }
    shuffled = load(clinic, data_seed=3)
    for part in parts(shuffled):
        assert [label[picture.numpy().tobytes()] for picture in part.x] == part.y.tolist()


def test_owners_are_those_of_the_training_rows(clinic: Path) -> None:
    data = load(clinic, split="part", owner="site")
    assert data.owners is not None
    assert data.owners[0].tolist() == [number % 4 for number in range(40)]
    assert data.owner_names == ("clinic 0", "clinic 1", "clinic 2", "clinic 3")


def test_groups_can_be_put_in_an_order(clinic: Path) -> None:
    data = load(clinic, split="part", groups=["light", "dark"])
    assert data.task.group_names == ("light", "dark")
    assert data.train.group.tolist() == [number % 2 for number in range(40)]


def test_the_ending_may_be_left_out_and_folders_and_other_columns_used(tmp_path: Path, paint: Painter) -> None:
    rows = []
    for number in range(ROWS):
        paint(tmp_path / "pictures" / "deep" / f"case_{number}.JPG", seed=number)
        rows.append({"image": f"deep/case_{number}", **row(number)})
    write_table(tmp_path, rows)
    assert sum(len(part) for part in parts(load(tmp_path, file_column="image"))) == ROWS


def test_names_of_digits_alone_and_codes_are_read_as_they_are_written(tmp_path: Path, paint: Painter) -> None:
    rows = [{**row(number), "file": f"{number:06d}", "skin": ("01", "1", "2")[number % 3]} for number in range(ROWS)]
    for number, one in enumerate(rows):
        paint(tmp_path / "pictures" / f"{one['file']}.png", seed=number)
    write_table(tmp_path, rows)
    assert load(tmp_path).task.group_names == ("01", "1", "2")


def test_copies_share_a_part_unless_a_split_column_says_otherwise(clinic: Path) -> None:
    pictures = clinic / "pictures"
    for number in range(0, ROWS, 2):
        (pictures / f"{number + 1}.png").write_bytes((pictures / f"{number}.png").read_bytes())
    data = load(clinic)
    seen = [{picture.numpy().tobytes() for picture in part.x} for part in parts(data)]
    assert sum(map(len, seen)) == len(set.union(*seen)) == ROWS // 2
    assert any("30 groups of byte-identical images" in note for note in data.notes)
    (pictures / "59.png").write_bytes((pictures / "0.png").read_bytes())
    assert any("1 validation or test images are byte" in note for note in load(clinic, split="part").notes)


def test_a_broken_image_is_named_unless_it_may_be_skipped(clinic: Path) -> None:
    (clinic / "pictures" / "5.png").write_bytes(b"text")
    with pytest.raises(UserError, match=r"1 of 60 images .* first 5\.png \(not an image\)"):
        load(clinic)
    data = load(clinic, skip_bad=True, split="part", owner="site")
    assert data.train.y.tolist() == [int(number % 3 != 0) for number in range(40) if number != 5]
    assert data.owners is not None
    assert data.owners[0].tolist() == [number % 4 for number in range(40) if number != 5]


def test_missing_files_are_counted(clinic: Path) -> None:
    for number in (7, 9):
        (clinic / "pictures" / f"{number}.png").unlink()
    with pytest.raises(UserError, match=r"names 2 images that are not in .* first '7\.png'"):
        load(clinic)


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/secret.png", "a/../../secret.png", "C:/secret.png", "..\\s.png"]
)
def test_names_that_leave_the_folder_are_refused(name: str, clinic: Path, paint: Painter) -> None:
    paint(clinic / "secret.png")
    write_table(clinic, [row(number) for number in range(1, ROWS)] + [{**row(0), "file": name}])
    with pytest.raises(UserError, match="names 1 images outside"):
        load(clinic)


@pytest.mark.parametrize("again", ["4.png", "./4.png", "4"])
def test_an_image_named_twice_is_refused(again: str, clinic: Path) -> None:
    write_table(clinic, [row(number) for number in range(ROWS)] + [{**row(4), "file": again}])
    with pytest.raises(UserError, match=r"names 1 images again, first '4\.png'"):
        load(clinic)


def test_rows_without_a_file_name_are_counted(clinic: Path) -> None:
    write_table(clinic, [row(number) for number in range(ROWS)] + [{**row(4), "file": " "}])
    with pytest.raises(UserError, match="names no image in 1 rows"):
        load(clinic)


def test_a_misspelt_column_gets_a_suggestion(clinic: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'skin'"):
        load(clinic, group="skn")
    with pytest.raises(UserError, match="did you mean 'file'"):
        load(clinic, file_column="files")


def test_a_missing_folder_or_table_is_named(clinic: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*gone"):
        Images(str(clinic / "gone"), str(clinic / "labels.csv"), "ill", "skin", favourable="no").load()
    with pytest.raises(UserError, match=r"There is no file .*gone\.csv"):
        Images(str(clinic / "pictures"), str(clinic / "gone.csv"), "ill", "skin", favourable="no").load()


def test_label_and_group_must_differ(clinic: Path) -> None:
    with pytest.raises(UserError, match="must be different columns"):
        load(clinic, group="ill")


def test_shares_must_leave_something_to_train_on(clinic: Path) -> None:
    with pytest.raises(UserError, match="leave images to train on"):
        load(clinic, validation=0.5, test=0.5)

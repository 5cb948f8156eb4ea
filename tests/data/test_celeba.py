from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ffalm.data.celeba import CelebA
from ffalm.data.types import Dataset, Examples
from ffalm.errors import UserError

Painter = Callable[..., Path]

ROWS = 60
ATTRACTIVE = [1 if row % 3 else -1 for row in range(ROWS)]
MALE = [1 if row % 2 else -1 for row in range(ROWS)]
PART = [0 if row < 40 else 1 if row < 50 else 2 for row in range(ROWS)]
NAMES = [f"{row + 1:06d}.jpg" for row in range(ROWS)]


def parts(data: Dataset) -> tuple[Examples, Examples, Examples]:
    return data.train, data.validation, data.test


def write_lists(root: Path) -> None:
    """The three text files as the publishers write them, with a third attribute in between."""
    rows = [f"{name} {a:2d} -1 {m:2d}" for name, a, m in zip(NAMES, ATTRACTIVE, MALE, strict=True)]
    header = f"{ROWS}\nAttractive Bald Male \n"
    (root / "list_attr_celeba.txt").write_text(header + "\n".join(rows) + "\n")
    lines = [f"{name} {part}" for name, part in zip(NAMES, PART, strict=True)]
    (root / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    people = [f"{name} {row // 3 + 1}" for row, name in enumerate(NAMES)]
    (root / "identity_CelebA.txt").write_text("\n".join(people) + "\n")


@pytest.fixture
def celeba(tmp_path: Path, paint: Painter) -> Path:
    for seed, name in enumerate(NAMES):
        paint(tmp_path / "img_align_celeba" / name, seed=seed, width=18, height=22)
    write_lists(tmp_path)
    return tmp_path


def load(root: Path, **settings: object) -> Dataset:
    return CelebA(str(root), size=16, **settings).load()  # type: ignore[arg-type]


def test_the_official_partition_is_followed(celeba: Path) -> None:
    data = load(celeba)
    assert [len(part) for part in parts(data)] == [40, 10, 10]
    assert torch.cat([part.y for part in parts(data)]).tolist() == [int(value == 1) for value in ATTRACTIVE]
    assert torch.cat([part.group for part in parts(data)]).tolist() == [int(value == 1) for value in MALE]
    assert data.notes == ()


def test_attractive_is_favourable_and_women_are_group_zero(celeba: Path) -> None:
    task = load(celeba).task
    assert task.label_names == ("not Attractive", "Attractive")
    assert task.group_names == ("female", "male")
    assert task.favourable == 1


def test_examples_are_bytes_with_channels_first(celeba: Path) -> None:
    data = load(celeba)
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.shape == (40, 3, 16, 16)


def test_other_attributes_can_be_label_and_group(celeba: Path) -> None:
    data = load(celeba, label="Male", group="Attractive")
    assert data.task.group_names == ("not Attractive", "Attractive")
    assert data.train.y.tolist() == [int(value == 1) for value in MALE[:40]]


def test_a_misspelt_attribute_gets_a_suggestion(celeba: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'Attractive'"):
        load(celeba, label="attractive")


def test_label_and_group_must_differ() -> None:
    with pytest.raises(UserError, match="both 'Male'"):
        CelebA("somewhere", label="Male")


def test_an_attribute_nobody_has_is_named(celeba: Path) -> None:
    with pytest.raises(UserError, match="has Bald 'Bald'"):
        load(celeba, group="Bald")


def test_by_identity_nobody_is_in_two_parts(celeba: Path) -> None:
    everything = torch.cat([part.x for part in parts(load(celeba))])
    person = {row.numpy().tobytes(): number // 3 for number, row in enumerate(everything)}
    data = load(celeba, split="identity", validation=0.2, test=0.2)
    people = [{person[row.numpy().tobytes()] for row in part.x} for part in parts(data)]
    assert sum(map(len, people)) == len(set.union(*people)) == 20
    assert sum(len(part) for part in parts(data)) == ROWS


def test_by_identity_needs_the_identity_file(celeba: Path) -> None:
    (celeba / "identity_CelebA.txt").unlink()
    with pytest.raises(UserError, match=r"holds no identity_CelebA\.txt"):
        load(celeba, split="identity")


def test_the_publishers_drive_folders_are_understood(tmp_path: Path, paint: Painter) -> None:
    for seed, name in enumerate(NAMES):
        paint(tmp_path / "Img" / "img_align_celeba" / name, seed=seed)
    write_lists(tmp_path)
    for file, folder in (("list_attr_celeba.txt", "Anno"), ("list_eval_partition.txt", "Eval")):
        (tmp_path / folder).mkdir()
        (tmp_path / file).rename(tmp_path / folder / file)
    assert len(load(tmp_path).train) == 40


def test_a_mirror_with_comma_separated_lists_is_understood(tmp_path: Path, paint: Painter) -> None:
    for seed, name in enumerate(NAMES):
        paint(tmp_path / "img_align_celeba" / "img_align_celeba" / name, seed=seed)
    rows = [f"{name},{a},{m}" for name, a, m in zip(NAMES, ATTRACTIVE, MALE, strict=True)]
    (tmp_path / "list_attr_celeba.csv").write_text("image_id,Attractive,Male\n" + "\n".join(rows))
    lines = [f"{name},{part}" for name, part in zip(NAMES, PART, strict=True)]
    (tmp_path / "list_eval_partition.csv").write_text("image_id,partition\n" + "\n".join(lines))
    data = load(tmp_path)
    assert [len(part) for part in parts(data)] == [40, 10, 10]
    assert data.test.y.tolist() == [int(value == 1) for value in ATTRACTIVE[50:]]


def test_missing_images_are_counted_unless_they_may_be_missing(celeba: Path) -> None:
    for name in (NAMES[3], NAMES[55]):
        (celeba / "img_align_celeba" / name).unlink()
    with pytest.raises(UserError, match=r"2 of the 60 images .* first 000004\.jpg"):
        load(celeba)
    data = load(celeba, allow_missing=True)
    assert [len(part) for part in parts(data)] == [39, 10, 9]
    assert data.train.y.tolist() == [int(value == 1) for row, value in enumerate(ATTRACTIVE[:40]) if row != 3]
    assert any("2 of the 60" in note for note in data.notes)


def test_a_subset_without_test_images_is_told_to_split_by_identity(celeba: Path) -> None:
    for name in NAMES[40:]:
        (celeba / "img_align_celeba" / name).unlink()
    with pytest.raises(UserError, match=r"in the validation part of .* set split to 'identity'"):
        load(celeba, allow_missing=True)
    data = load(celeba, allow_missing=True, split="identity")
    assert sum(len(part) for part in parts(data)) == 40


def test_a_broken_image_is_named_unless_it_may_be_skipped(celeba: Path) -> None:
    (celeba / "img_align_celeba" / NAMES[41]).write_bytes(b"")
    with pytest.raises(UserError, match=r"1 of 60 images .* first 000042\.jpg \(the file is empty\)"):
        load(celeba)
    data = load(celeba, skip_bad=True)
    assert [len(part) for part in parts(data)] == [40, 9, 10]
    assert data.validation.group.tolist() == [
        int(value == 1) for row, value in enumerate(MALE) if 40 <= row < 50 and row != 41
    ]


def test_copies_between_official_parts_are_noted(celeba: Path) -> None:
    images = celeba / "img_align_celeba"
    (images / NAMES[59]).write_bytes((images / NAMES[0]).read_bytes())
    assert "1 validation or test images are byte-identical to training images." in load(celeba).notes


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("list_attr_celeba.txt", "7\nAttractive Male\n000001.jpg 1 1\n", "says it has '7' rows but has 1"),
        ("list_attr_celeba.txt", "1\nAttractive Male\n000001.jpg 1 5\n", "1 values of Male"),
        ("list_attr_celeba.txt", "2\nAttractive Male\n1.jpg 1 1\n1.jpg 1 1\n", "1 images more than once"),
        ("list_attr_celeba.txt", "", "is not a table"),
        ("list_eval_partition.txt", "000001.jpg 0\n", "lacks 59 of the 60"),
        ("list_eval_partition.txt", "".join(f"{name} 3\n" for name in NAMES), "0, 1 or 2"),
        ("list_eval_partition.txt", "".join(f"{name} x\n" for name in NAMES), "whole numbers"),
    ],
)
def test_damaged_lists_are_told_apart(file: str, text: str, message: str, celeba: Path) -> None:
    (celeba / file).write_text(text)
    with pytest.raises(UserError, match=message):
        load(celeba)


def test_a_missing_folder_says_where_portraits_come_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*gone: download .* https://mmlab"):
        load(tmp_path / "gone")


def test_images_still_in_their_archive_are_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "img_align_celeba.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"unpack .*img_align_celeba\.zip"):
        load(tmp_path)


def test_real_portraits_load_with_no_person_in_two_parts(shared_data: Path, tmp_path: Path) -> None:
    packed = np.load(shared_data / "celeba_native_64.npz", allow_pickle=False)
    rows = range(0, 20000, 50)
    jpeg, offsets, names = packed["jpeg"], packed["offsets"], [name.decode() for name in packed["name"][rows]]
    attractive, male, identity = (packed[key][rows].astype(int) for key in ("attractive", "male", "identity"))
    images = tmp_path / "img_align_celeba"
    images.mkdir()
    for row, name in zip(rows, names, strict=True):
        (images / name).write_bytes(jpeg[offsets[row] : offsets[row + 1]].tobytes())
    marks = zip(names, 2 * attractive - 1, 2 * male - 1, strict=True)
    lines = [f"{len(names)}", "Attractive Male", *(f"{name} {a} {m}" for name, a, m in marks)]
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join(lines))
    people = [f"{name} {person}" for name, person in zip(names, identity, strict=True)]
    (tmp_path / "identity_CelebA.txt").write_text("\n".join(people))
    data = CelebA(str(tmp_path), split="identity").load()
    assert sum(len(part) for part in parts(data)) == 400
    women = sum(int((part.group == 0).sum()) for part in parts(data))
    assert women == int((male == 0).sum())
    assert 60 < float(data.train.x.float().mean()) < 180


def test_shares_of_a_split_by_identity_must_leave_images_to_train_on() -> None:
    with pytest.raises(UserError, match="must leave images to train on"):
        CelebA(root="celeba", split="identity", validation=0.6, test=0.5)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ffalm.data import source
from ffalm.data.imagecache import Decoded
from ffalm.data.types import Dataset, Examples
from ffalm.data.utkface import RACES, UTKFace
from ffalm.errors import UserError

Painter = Callable[..., Path]


def parts(data: Dataset) -> tuple[Examples, Examples, Examples]:
    return data.train, data.validation, data.test


def counts(data: Dataset) -> np.ndarray:
    """Rows per (label, group) over all parts."""
    return np.asarray(sum(part.counts(data.task) for part in parts(data)))


@pytest.fixture
def faces(tmp_path: Path, paint: Painter) -> Path:
    """Per race 12 children and 24 adults (half of each male), as noise under UTKFace's names."""
    stamp = 0
    for race in range(5):
        for number in range(36):
            age = 5 + number % 12 if number < 12 else 20 + number
            name = f"{age}_{number % 2}_{race}_2017011{stamp:010d}.jpg.chip.jpg"
            paint(tmp_path / "UTKFace" / name, seed=stamp)
            stamp += 1
    return tmp_path


def test_children_are_the_favourable_label_and_black_people_group_one(faces: Path) -> None:
    data = UTKFace(str(faces), size=16).load()
    assert data.task.label_names == ("20 or older", "under 20")
    assert data.task.group_names == ("rest", "Black")
    assert data.task.favourable == 1
    assert counts(data).tolist() == [[96, 24], [48, 12]]


def test_twenty_is_not_under_twenty(tmp_path: Path, paint: Painter) -> None:
    for seed in range(40):
        paint(tmp_path / f"{19 + seed % 2}_0_{seed // 2 % 2}_{seed}.jpg", seed=seed)
    data = UTKFace(str(tmp_path), size=16).load()
    assert counts(data).sum(axis=1).tolist() == [20, 20]


def test_examples_are_bytes_with_channels_first(faces: Path) -> None:
    data = UTKFace(str(faces), size=16).load()
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.shape == (144, 3, 16, 16)
    assert data.train.y.dtype == data.train.group.dtype == torch.int64


def test_every_part_has_the_same_shares(faces: Path) -> None:
    data = UTKFace(str(faces), size=16).load()
    assert [len(part) for part in parts(data)] == [144, 18, 18]
    for part in parts(data):
        shares = part.counts(data.task) / len(part)
        assert torch.allclose(shares, torch.tensor([[96, 24], [48, 12]]) / 180, atol=0.04)


def test_the_split_follows_its_seed_alone(faces: Path) -> None:
    first, again, other = (UTKFace(str(faces), size=16, data_seed=seed).load() for seed in (0, 0, 1))
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)


@pytest.mark.parametrize(
    ("sensitive", "names", "rows"),
    [
        ("white_vs_rest", ("rest", "White"), [144, 36]),
        ("asian_vs_rest", ("rest", "Asian"), [144, 36]),
        ("indian_vs_rest", ("rest", "Indian"), [144, 36]),
        ("other_vs_rest", ("rest", "Other"), [144, 36]),
        ("darker_vs_rest", ("rest", "Black or Indian"), [108, 72]),
        ("black_vs_white", ("White", "Black"), [36, 36]),
        ("race", RACES, [36] * 5),
        ("gender", ("female", "male"), [90, 90]),
    ],
)
def test_groupings(sensitive: str, names: tuple[str, ...], rows: list[int], faces: Path) -> None:
    data = source("utkface", root=str(faces), size=16, sensitive=sensitive).load()
    assert data.task.group_names == names
    assert counts(data).sum(axis=0).tolist() == rows


def test_gender_zero_in_a_name_is_male(tmp_path: Path, paint: Painter) -> None:
    for seed in range(30):
        paint(tmp_path / f"{10 + seed}_{int(seed < 10)}_0_{seed}.jpg", seed=seed)
    data = UTKFace(str(tmp_path), size=16, sensitive="gender").load()
    female = sum(int((part.group == 0).sum()) for part in parts(data))
    assert female == 10


def test_all_groupings_share_one_cache(faces: Path, cache: Path) -> None:
    UTKFace(str(faces), size=16).load()
    UTKFace(str(faces), size=16, sensitive="black_vs_white").load()
    assert len(list(cache.glob("*.npy"))) == 1


def test_faces_outside_both_groups_are_left_out_with_a_note(faces: Path) -> None:
    data = UTKFace(str(faces), size=16, sensitive="black_vs_white").load()
    assert "108 images in no group of 'black_vs_white' were left out." in data.notes


def test_names_without_a_race_are_skipped_with_a_count(faces: Path, paint: Painter) -> None:
    for name in ("61_1_20170109142408075.jpg.chip.jpg", "39_1_20170116174525125.jpg.chip.jpg", "x.jpg"):
        paint(faces / "UTKFace" / name)
    data = UTKFace(str(faces), size=16).load()
    assert counts(data).sum() == 180
    assert "3 images whose name lacks an age or a race were left out." in data.notes


def test_odd_published_names_are_read(faces: Path, paint: Painter) -> None:
    for seed, name in enumerate(
        (
            "24_0_1_20170116220224657 .jpg.chip.jpg",
            "55_0_0_20170116232725357jpg.chip.jpg",
            "44_1_4_20170116235150272.pg.chip.jpg",
            "53__0_20170116184028385.jpg",
        )
    ):
        paint(faces / "UTKFace" / name, seed=1000 + seed)
    assert counts(UTKFace(str(faces), size=16).load()).sum() == 184


def test_copies_of_one_image_never_straddle_parts(faces: Path) -> None:
    folder = faces / "UTKFace"
    originals = sorted(folder.iterdir())
    for number, original in enumerate(originals[::2]):
        race = original.name.split("_")[2]
        (folder / f"30_0_{race}_9{number:04d}.jpg.chip.jpg").write_bytes(original.read_bytes())
    for seed in range(5):
        data = UTKFace(str(faces), size=16, data_seed=seed).load()
        seen = [{row.numpy().tobytes() for row in part.x} for part in parts(data)]
        assert sum(map(len, seen)) == len(set.union(*seen)) == 180
    assert any("90 groups of byte-identical images (180 images)" in note for note in data.notes)
    assert any("30 of them disagree on the label" in note for note in data.notes)


@pytest.mark.parametrize("place", [".", "UTKFace", "utkface", "part1"])
def test_images_are_found_where_people_keep_them(place: str, tmp_path: Path, paint: Painter) -> None:
    for seed in range(40):
        paint(tmp_path / place / f"{seed + 1}_0_{seed % 2}_{seed}.jpg", seed=seed)
    assert counts(UTKFace(str(tmp_path), size=16).load()).sum() == 40


def test_parts_in_several_folders_are_joined_and_repeated_names_used_once(tmp_path: Path, paint: Painter) -> None:
    for seed in range(60):
        paint(tmp_path / f"part{seed % 3 + 1}" / f"{seed + 1}_0_{seed % 2}_{seed}.jpg", seed=seed)
    paint(tmp_path / "part3" / "1_0_0_0.jpg", seed=0)
    assert counts(UTKFace(str(tmp_path), size=16).load()).sum() == 60


def test_a_missing_folder_says_where_faces_come_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*gone: download .* https://susanqq"):
        UTKFace(str(tmp_path / "gone")).load()


def test_a_folder_without_faces_says_what_it_looked_for(tmp_path: Path, paint: Painter) -> None:
    paint(tmp_path / "holiday.jpg")
    with pytest.raises(UserError, match="age_gender_race_stamp"):
        UTKFace(str(tmp_path)).load()


def test_a_broken_image_is_named_unless_it_may_be_skipped(faces: Path) -> None:
    broken = sorted((faces / "UTKFace").iterdir())[7]
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(UserError, match=f"1 of 180 images .* first {broken.name}"):
        UTKFace(str(faces), size=16).load()
    data = UTKFace(str(faces), size=16, skip_bad=True).load()
    assert counts(data).sum() == 179
    assert any(broken.name in note for note in data.notes)


def test_a_group_nobody_is_in_is_named(tmp_path: Path, paint: Painter) -> None:
    for seed in range(20):
        paint(tmp_path / f"{seed + 5}_0_0_{seed}.jpg", seed=seed)
    with pytest.raises(UserError, match="has race 'Black'"):
        UTKFace(str(tmp_path)).load()


def test_a_misspelt_grouping_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'black_vs_rest'"):
        source("utkface", root="faces", sensitive="black_vs_all")


def test_shares_that_leave_no_training_rows_are_refused(faces: Path) -> None:
    with pytest.raises(UserError):
        UTKFace(str(faces), validation=0.5, test=0.5).load()


def test_the_real_names_give_the_counted_base_rates(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All published names without their pictures: the counts of the data set, to the last face."""
    packed = np.load(shared_data / "utkface_64.npz", allow_pickle=False)
    names = [name.decode() for name in packed["name"]]
    content = dict(zip(names, map(str, packed["dup_group"]), strict=True))

    def decoded(root: Path, found: list[str], *_: object) -> Decoded:
        return Decoded(np.zeros((len(found), 3, 8, 8), np.uint8), [content[name] for name in found], {})

    monkeypatch.setattr("ffalm.data.pictures.load_images", decoded)
    monkeypatch.setattr("ffalm.data.utkface._find", lambda root: (root, sorted(names)))
    data = UTKFace(str(tmp_path), size=8).load()
    assert counts(data).tolist() == [[14922, 4190], [4257, 336]]
    assert any("375 groups of byte-identical images (765 images)" in note for note in data.notes)
    assert any("10 of them disagree" in note for note in data.notes)
    assert [len(part) for part in parts(data)] == pytest.approx([18964, 2370, 2371], abs=2)


def test_real_faces_load(shared_data: Path, tmp_path: Path) -> None:
    packed = np.load(shared_data / "utkface_64.npz", allow_pickle=False)
    jpeg, offsets = packed["jpeg"], packed["offsets"]
    for row in range(0, 23705, 60):
        (tmp_path / packed["name"][row].decode()).write_bytes(jpeg[offsets[row] : offsets[row + 1]].tobytes())
    data = UTKFace(str(tmp_path)).load()
    assert counts(data).sum() == 396
    assert data.train.x.shape[1:] == (3, 64, 64)
    assert 60 < float(data.train.x.float().mean()) < 180


def test_shares_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(UserError, match="shares of UTKFace must leave images to train on"):
        UTKFace(root="faces", validation=0.6, test=0.5)

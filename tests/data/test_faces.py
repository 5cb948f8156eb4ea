"""Drawn faces repeat themselves by seed, show age and skin tone, and are harder to read in one group."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ffalm.data import source
from ffalm.data.faces import ADULTHOOD, Faces, _ages, _cells, _looks
from ffalm.data.faces_drawing import Looks, draw_faces
from ffalm.data.types import Dataset, Examples
from ffalm.errors import UserError


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Faces(rows=2_000).load()


def parts(dataset: Dataset) -> tuple[Examples, Examples, Examples]:
    return dataset.train, dataset.validation, dataset.test


def one_look(rows: int = 1, **changes: float) -> Looks:
    """The same unremarkable person in every row, with some looks changed; no noise."""
    draw = np.random.default_rng(0)
    person = _looks(np.array([30.0]), np.array([0]), draw)
    plain = {
        "childlike": 0.0,
        "aged": 0.0,
        "contrast": 1.0,
        "exposure": 1.0,
        "grain": 0.0,
        "light": 0.0,
        "shift_x": 0.0,
        "shift_y": 0.0,
        "scale": 1.0,
        "roll": 0.0,
        "turn": 0.0,
        "hair_length": -0.1,
        "parting": 0.0,
        "glasses": False,
        "beard": False,
    }
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Looks):
        value = np.repeat(getattr(person, field.name), rows, axis=0)
        chosen = changes.get(field.name, plain.get(field.name))
        values[field.name] = value if chosen is None else np.full_like(value, chosen)
    return Looks(**values)


def drawn(looks: Looks, size: int = 32) -> np.ndarray[Any, np.dtype[np.float64]]:
    return draw_faces(looks, size, np.random.default_rng(1)).astype(np.float64)


def test_pictures_are_bytes_of_the_size_asked_for_in_70_10_20_parts(dataset: Dataset) -> None:
    assert [len(part) for part in parts(dataset)] == [1_400, 200, 400]
    for part in parts(dataset):
        assert part.x.dtype == torch.uint8
        assert part.x.shape[1:] == (3, 32, 32)
        assert part.y.dtype == part.group.dtype == torch.int64
    assert Faces(rows=100, size=64).load().train.x.shape[1:] == (3, 64, 64)


def test_the_task_is_youth_by_skin_tone_with_young_favourable(dataset: Dataset) -> None:
    task = dataset.task
    assert (task.name, task.label, task.favourable) == ("faces", "young", 1)
    assert task.group_names == ("lighter", "darker")
    assert "built in" in dataset.notes[0]


def test_every_part_has_the_same_base_rates_with_a_gap_of_15_points(dataset: Dataset) -> None:
    for part in parts(dataset):
        rates = [part.y[part.group == group].double().mean().item() for group in (0, 1)]
        assert rates == pytest.approx([0.33, 0.18], abs=0.015)
        assert (part.group == 1).double().mean().item() == pytest.approx(0.4, abs=0.01)


def test_the_same_seed_draws_the_same_faces_and_another_seed_others() -> None:
    first, again, other = (Faces(rows=150, data_seed=seed).load() for seed in (5, 5, 6))
    for one, two in zip(parts(first), parts(again), strict=True):
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.y, two.y)
        assert torch.equal(one.group, two.group)
    assert not torch.equal(first.train.x, other.train.x)


def test_no_two_faces_are_alike(dataset: Dataset) -> None:
    rows = torch.cat([part.x.flatten(1) for part in parts(dataset)])
    assert len(torch.unique(rows, dim=0)) == 2_000


def test_the_young_are_below_twenty_and_the_others_not() -> None:
    draw = np.random.default_rng(0)
    y = np.repeat([0, 1], 500)
    ages = _ages(y, draw)
    assert ((ages < ADULTHOOD) == (y == 1)).all()
    assert ages.min() >= 2
    assert ages.max() <= 90


def test_group_and_label_counts_are_exact_under_every_seed() -> None:
    for seed in (0, 1):
        group, y = _cells(6_000, np.random.default_rng(seed))
        assert np.bincount(2 * group + y).tolist() == [2_412, 1_188, 1_968, 432]


def test_lighter_skin_is_brighter_in_the_middle_of_the_face(dataset: Dataset) -> None:
    middle = dataset.train.x[:, :, 12:22, 12:20].double().mean(dim=(1, 2, 3))
    lighter, darker = (middle[dataset.train.group == group] for group in (0, 1))
    assert lighter.mean() > darker.mean() + 60


def test_looks_differ_with_age_and_more_reliably_in_the_lighter_group() -> None:
    draw = np.random.default_rng(0)
    ages = np.tile([8.0, 70.0], 2_000)
    mistakes = []
    for group in (0, 1):
        looks = _looks(ages, np.full(len(ages), group), draw)
        assert looks.childlike[ages == 8.0].mean() > 0.8
        assert looks.aged[ages == 70.0].mean() > 0.75
        mistakes.append(np.std(looks.childlike[ages == 8.0]))
    assert mistakes[1] > mistakes[0]


def test_age_shows_in_the_picture_and_shows_less_in_low_contrast() -> None:
    plain = drawn(one_look(aged=0.0))
    lined, faint = (drawn(one_look(aged=0.9, contrast=contrast)) for contrast in (1.0, 0.5))
    faces = np.s_[:, :, 10:24, 10:22]
    clear, dull = (np.abs(picture - plain)[faces].mean() for picture in (lined, faint))
    assert clear > dull > 0


def test_a_child_has_a_wider_head_and_larger_eyes() -> None:
    grown, child = (drawn(one_look(childlike=childlike), size=64)[0] for childlike in (0.0, 1.0))
    whites = [(picture[:, 20:].min(axis=0) > 225).sum() for picture in (grown, child)]
    assert whites[1] > whites[0] > 0
    background = grown[:, 32, 1][:, None]
    widths = [(np.abs(picture[:, 36, :] - background).max(axis=0) > 2).sum() for picture in (grown, child)]
    assert widths[1] > widths[0]


@pytest.mark.parametrize("extra", ["glasses", "beard"])
def test_glasses_and_beards_change_the_picture(extra: str) -> None:
    assert np.abs(drawn(one_look(**{extra: True})) - drawn(one_look())).max() > 50


def test_moving_a_head_moves_its_picture_and_leaves_its_shape() -> None:
    still, moved = (drawn(one_look(shift_x=shift))[0] for shift in (0.0, 4 / 32))
    rows = slice(4, 24)
    assert np.abs(moved[:, rows, 2:] - still[:, rows, :-2]).mean() < 1.0
    assert np.abs(moved - still).mean() > 5.0


def test_edges_are_smoothed() -> None:
    """A face is painted in 22 colours; without smoothing an evenly lit picture could show no others."""
    picture = drawn(one_look())[0]
    assert np.unique(picture.reshape(3, -1), axis=1).shape[1] > 22


def test_pictures_do_not_depend_on_how_many_are_drawn_together() -> None:
    looks = one_look(rows=130)
    pictures = drawn(looks)
    assert (pictures == pictures[0]).all()


def test_grain_and_exposure_reach_the_picture() -> None:
    grainy = drawn(one_look(rows=2, grain=10.0))
    assert np.abs(grainy[0] - grainy[1]).mean() > 5.0
    assert drawn(one_look(exposure=0.5)).mean() == pytest.approx(drawn(one_look()).mean() / 2, rel=0.02)


def pixels(examples: Examples) -> Tensor:
    """Pictures at half the size as rows of numbers, with a one for the intercept."""
    small = torch.nn.functional.avg_pool2d(examples.x.double() / 255, 2).flatten(1)
    return torch.nn.functional.pad(small, (0, 1), value=1.0)


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """Least squares with a penalty: weak, but it needs no training loop."""
    gram = x.T @ x + 75.0 * torch.eye(x.shape[1], dtype=x.dtype)
    weight: Tensor = torch.linalg.solve(gram, x.T @ (2 * y - 1).to(x.dtype))
    return weight


def test_even_a_linear_reader_finds_age_and_finds_it_better_in_lighter_faces() -> None:
    dataset = Faces(rows=3_000).load()
    test = dataset.test
    scores = pixels(test) @ ridge(pixels(dataset.train), dataset.train.y)
    auc = []
    for group in (0, 1):
        young, old = (scores[(test.group == group) & (test.y == label)] for label in (1, 0))
        auc.append((young[:, None] > old[None, :]).double().mean().item())
    assert auc[0] > 0.8
    assert auc[0] > auc[1] + 0.03


def test_six_thousand_faces_take_a_few_seconds_at_most() -> None:
    start = time.process_time()
    Faces(rows=600).load()
    assert (time.process_time() - start) * 10 < 8.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"rows": 99}, "100 or more"), ({"size": 48}, "32, 64"), ({"data_seed": -1}, "0 or more")],
)
def test_settings_that_cannot_work_are_refused_in_one_sentence(settings: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        source("faces", **settings)

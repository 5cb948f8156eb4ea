"""Model cards say what is stored, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffalm.fairness import Tally
from ffalm.report.model_card import ModelUse, card
from ffalm.trained_models.model_facts import ModelFacts

COUNTS = [[[30, 10], [10, 5]], [[10, 20], [50, 65]]]  # by prediction, label and group
FACTS = ModelFacts(
    title="FFALM on loans",
    algorithm="FFALM",
    seed=3,
    rounds=7,
    task={"data": "loans", "label": "paid", "favourable": "yes", "groups": "sex: female, male"},
    group_names=("female", "male"),
    favourable=1,
    clients=4,
    training_rows=1234,
    counts=COUNTS,
    target="dpd <= 0.05",
    verdict="not met",
    ends={"dpd": 0.31},
    notes=("5 rows were left out.",),
    settings={"training: rounds": "7"},
    versions={"ffalm": "1"},
    command="ffalm run --target 'dpd <= 0.05'",
)
USE = ModelUse("a table with the columns age, sex", "its thresholds", "sex", True, {"name": "mlp", "hidden": [8]}, None)


def test_every_part_is_there_with_the_stored_numbers() -> None:
    text = card(FACTS, USE)
    parts = ("Use", "Training data", "Metrics", "Fairness target", "Privacy", "Limits", "How it was made")
    assert [f"## {part}" in text for part in parts] == [True] * len(parts)
    tally = Tally.of_counts(COUNTS)
    low, high = tally.interval("dpd")
    dpd = f"{100 * tally.dpd():.1f} points | {100 * low:.1f} to {100 * high:.1f}"
    assert f"| Demographic parity difference (DPD) | {dpd} |" in text
    assert "| female | 100 | 60.0 [50.2, 69.1] |" in text
    assert "dpd <= 0.05: not met. One-sided 95 % confidence bounds: dpd 0.310." in text
    assert (
        "Predictions need each row's sex" in text and "1,234 training rows" in text and "5 rows were left out" in text
    )
    assert "\nffalm run --target 'dpd <= 0.05'\n" in text
    assert "without differential privacy" in text and "The fairness target is not met" in text


def test_a_model_of_images_is_not_told_of_tables() -> None:
    assert "`ffalm predict FOLDER new.csv`" in card(FACTS, USE) and "`--group COLUMN`" in card(FACTS, USE)
    images = card(FACTS, replace(USE, takes="images", images=True))
    assert "`ffalm predict FOLDER IMAGES`" in images and "`group=[...]`" in images
    assert "new.csv" not in images and "--group COLUMN" not in images


def test_what_is_not_known_is_not_claimed() -> None:
    bare = replace(
        FACTS, counts=None, target=None, verdict=None, ends={}, clients=None, training_rows=None, settings={}
    )
    text = card(bare, replace(USE, by_group=False, guarantee="differential privacy, epsilon 3"))
    assert "No rows were scored" in text and "None was set." in text
    assert "is a feature" not in text
    seen = card(bare, replace(USE, by_group=False, seen="sex"))
    assert "The group (sex) is a feature, so predictions need it." in seen and "do not need" not in seen
    assert "The group (sex) is a feature of the model, which some uses forbid by law." in seen
    assert "Predictions do not need the group" in text and "Trained with differential privacy, epsilon 3." in text
    assert "clients" not in text and "| Setting |" not in text


@pytest.mark.parametrize(
    ("part", "words"), [("test", "the rows are too few"), ("validation", "no test rows confirm it")]
)
def test_what_is_met_in_the_sample_says_what_is_missing(part: Any, words: str) -> None:
    assert words in card(replace(FACTS, verdict="met in the sample", part=part), USE)


def test_noisy_counts_have_no_intervals() -> None:
    text = card(replace(FACTS, epsilon=2.0), USE)
    assert "| Accuracy | 77.5 % |  |" in text


def test_names_from_files_are_shown_and_never_markup() -> None:
    assert "&lt;b\\>" in card(replace(FACTS, title="<b>"), USE)

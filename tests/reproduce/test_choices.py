"""Open questions: each has a name, a default and a sentence in every report."""

from __future__ import annotations

import pytest

from ffalm.errors import UserError
from ffalm.reproduce.choices import CHOICES, answered, answers, statements


def test_every_question_is_answered_by_its_first_option_unless_said() -> None:
    chosen = answered({"partition": "plain"})
    assert chosen["partition"] == "plain"
    assert chosen["schedule"] == "paper"
    assert set(chosen) == {choice.name for choice in CHOICES}


def test_several_schedules_may_be_given_at_once() -> None:
    assert answered({"schedule": "paper,safe"})["schedule"] == "paper,safe"
    assert answers("paper, safe,paper") == ["paper", "safe"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"partition": "balnced"}, "did you mean 'balanced'"),
        ({"schedule": "paper,sfae"}, "did you mean 'safe'"),
        ({"schedule": ","}, "--schedule needs an answer"),
        ({"image-size": "big"}, "no answer to --image-size 'big'"),
        ({"partitoin": "plain"}, "did you mean 'partition'"),
        ({"head": "fairalm"}, "--head fairalm needs --image-size 128"),
    ],
)
def test_a_wrong_answer_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        answered(given)


def test_sizes_may_be_any_number() -> None:
    assert answered({"image-size": "96", "dual-bound": "2.5"})["image-size"] == "96"


def test_every_question_of_a_data_set_has_its_sentence() -> None:
    told = [str(one) for one in statements(answered({"schedule": "paper,safe", "image-size": "96"}), "utkface")]
    assert len(told) == len(CHOICES)
    assert any(sentence.startswith("grouping") and "black_vs_rest" in sentence for sentence in told)
    assert any("paper (constant penalty 2" in sentence and "safe (" in sentence for sentence in told)
    assert any(sentence.startswith("image-size") and sentence.endswith(": 96.") for sentence in told)
    assert "grouping" not in [one.name for one in statements(answered({}), "celeba")]

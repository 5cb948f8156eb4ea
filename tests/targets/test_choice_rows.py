"""Which rows decide: held-out rows, with training rows where the models predict both alike."""

from __future__ import annotations

import pytest
import torch

from ffalm.fairness import ScoreHistogram
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.choice_rows import Parts, chi_square_tail, choice_rows
from ffalm.targets.target import Target

SHAPE = (2, 2)


def rows(number: int, seed: int, accuracy: float = 0.8, women: float = 0.4) -> ScoreHistogram:
    """Scores that are right for this share of the rows."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(number, generator=draw) < 0.5).long()
    groups = (torch.rand(number, generator=draw) < women).long()
    right = torch.rand(number, generator=draw) < accuracy
    signs = torch.where(right, 2 * labels - 1, 1 - 2 * labels)
    scores = signs * (0.1 + 2 * torch.rand(number, generator=draw))
    return ScoreHistogram.of(scores, torch.zeros(number, dtype=torch.long), labels, groups, SHAPE, 1)


def parts(**changed: ScoreHistogram) -> Parts:
    return {"training": rows(8000, 0), "validation": rows(1000, 1), "test": rows(2000, 2), **changed}


def test_training_rows_decide_too_where_both_parts_are_alike() -> None:
    run = parts()
    found = choice_rows([run, run])
    assert found.training and found.why == "the models are no more accurate on them than on held-out rows"
    assert found.parts[0].keys() == {"validation", "test"}
    assert torch.equal(found.parts[1]["validation"].counts, run["validation"].counts + run["training"].counts)
    assert found.parts[0]["test"] is run["test"]


def test_a_model_that_is_better_on_its_training_rows_is_judged_on_held_out_rows_alone() -> None:
    run = parts(training=rows(8000, 0, accuracy=0.9))
    found = choice_rows([run])
    assert not found.training
    assert found.why.startswith("the models are more accurate on training rows (90")
    assert found.parts[0]["validation"] is run["validation"] and "training" not in found.parts[0]


def test_a_little_optimism_is_better_than_a_group_of_few_held_out_rows() -> None:
    """Of 25 rows a share has a standard error of up to 10 points: 5 points beyond chance are let pass, 10 are not."""
    few = rows(1000, 1, women=0.03)
    women = int(few.counts[..., 1].sum())
    assert 20 <= women <= 35
    found = choice_rows([parts(training=rows(8000, 0, 0.85, women=0.03), validation=few)])
    assert found.training and found.why.endswith(f"but of the smallest group only {women} rows are held out")
    assert not choice_rows([parts(training=rows(8000, 0, 0.92, women=0.03), validation=few)]).training
    assert not choice_rows([parts(training=rows(8000, 0, 0.85))]).training  # 400 women are held out


def test_one_lucky_run_of_many_changes_nothing() -> None:
    found = choice_rows([*[parts()] * 9, parts(training=rows(8000, 0, accuracy=0.83))])
    assert found.training


def test_training_rows_of_other_people_are_left_out() -> None:
    found = choice_rows([parts(training=rows(8000, 0, women=0.2))])
    assert not found.training and found.why == "training rows have other shares of labels and groups"


@pytest.mark.parametrize("lacking", ["training", "test"])
def test_without_training_scores_or_test_rows_held_out_rows_decide(lacking: str) -> None:
    run = {name: one for name, one in parts().items() if name != lacking}
    found = choice_rows([run])
    assert not found.training and found.why == ""
    assert found.parts[0]["validation"] is run["validation"]


def test_the_tests_rarely_turn_down_rows_that_are_alike() -> None:
    """At 5 % and 1 % each by construction; with 60 draws more than 9 refusals have a chance below 1 %."""
    refused = sum(
        not choice_rows([parts(training=rows(2000, 2 * seed + 10), validation=rows(500, 2 * seed + 11))]).training
        for seed in range(60)
    )
    assert refused <= 9


def test_an_answer_says_which_rows_it_rests_on() -> None:
    names, target = ("men", "women"), Target.parse("eod <= 0.05")
    both = answer_of([FinishedRun("A", 0, None, "a", parts())], target, "groups", names)
    alone = answer_of(
        [FinishedRun("A", 0, None, "a", parts(training=rows(8000, 0, accuracy=0.9)))], target, "groups", names
    )
    assert both.training_rows and not alone.training_rows
    assert sum(group.rows for group in both.best.validation.groups) == 9000
    assert sum(group.rows for group in alone.best.validation.groups) == 1000
    assert any("Only held-out rows were used" in note for note in alone.notes)
    same = "Training rows were used too: the models are no more accurate on them than on held-out rows."
    assert same in both.notes
    assert both.best.test is not None and alone.best.test is not None
    assert sum(group.rows for group in both.best.test.groups) == sum(group.rows for group in alone.best.test.groups)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 1001])
@pytest.mark.parametrize("times", [0.0, 0.01, 0.7, 1.0, 1.6, 4.0])
def test_the_tail_of_chi_square_is_the_incomplete_gamma_function(freedom: int, times: float) -> None:
    half = torch.tensor([freedom / 2, freedom * times / 2], dtype=torch.float64)
    expected = float(torch.special.gammaincc(*half))
    assert chi_square_tail(freedom * times, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-300)

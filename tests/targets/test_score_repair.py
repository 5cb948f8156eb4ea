"""`ffalm.repair`: thresholds in the scores' own units, within the target, and what the result says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import demographic_parity_difference, equalized_odds_difference
from numpy.typing import NDArray

import ffalm
from ffalm.errors import UserError
from ffalm.targets.score_repair import RepairedScores, ScoredTable
from ffalm.targets.score_thresholds import ScoreThresholds

Rows = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.str_]]


def logits(rows: int = 4000, seed: int = 0, names: tuple[str, ...] = ("f", "m")) -> Rows:
    """Scores, labels and groups; later groups score higher, and a score is the logit of its label."""
    draws = np.random.default_rng(seed)
    group = draws.integers(0, len(names), rows)
    score = draws.normal(-1 + 0.8 * group, 1.5)
    return score, (draws.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int64), np.array(names)[group]


def probabilities(score: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-score))


@pytest.mark.parametrize("names", [("f", "m"), ("a", "b", "c")])
def test_predictions_keep_the_target_as_fairlearn_measures_it(names: tuple[str, ...]) -> None:
    score, y, group = logits(names=names)
    result = ffalm.repair(score, y, group, target="dpd <= 0.05", confidence=0.5)
    predicted = result.predict(score, group)
    gap = demographic_parity_difference(y, predicted, sensitive_features=group)
    assert gap == pytest.approx(result.calibration["dpd"], abs=1e-12) and gap <= 0.05 + 1e-9
    assert (predicted == y).mean() == pytest.approx(result.calibration["accuracy"], abs=1e-12)
    assert result.verdict == "met in the sample" and result.test == {} and result.judged_on == "calibration"


def test_the_answer_of_a_repair_says_what_the_repair_says() -> None:
    """The bound at the confidence of the choice is within the target; at 95 % it is not."""
    for rows in (400, 100_000):
        result = ffalm.repair(*logits(rows), target="dpd <= 0.05", confidence=0.5)
        assert result.answer.verdict == result.verdict == "met in the sample"
        assert result.answer.scored == result.scored and result.scored.level == 0.95


@pytest.mark.parametrize(
    "change",
    [probabilities, lambda score: 600 + 40 * score, lambda score: np.exp(3 * score), lambda score: 1e-9 * score],
)
def test_a_scale_that_keeps_the_order_changes_no_prediction(change: Any) -> None:
    score, y, group = logits(1500)
    own, other = (
        ffalm.repair(score, y, group, decision=0.0),
        ffalm.repair(change(score), y, group, decision=float(change(np.zeros(1))[0])),
    )
    assert (own.predict(score, group) == other.predict(change(score), group)).all()


def test_test_rows_are_judged_and_the_verdict_is_theirs() -> None:
    train, test = logits(seed=1), logits(2000, seed=2)
    result = ffalm.repair(*train, target="eod <= 0.1", test=test)
    predicted = result.predict(test[0], test[2])
    assert (predicted == test[1]).mean() == pytest.approx(result.test["accuracy"], abs=1e-12)
    assert result.judged_on == "test" and result.verdict in ("met with confidence", "met in the sample")
    assert result.before.metrics["eod"] > result.scored.metrics["eod"]


def test_a_share_of_the_rows_can_be_held_back_as_test_rows() -> None:
    result = ffalm.repair(*logits(1000), test_share=0.3)
    assert [int(part.counts.sum()) for part in result.parts.values()] == [700, 300]


def test_thresholds_and_baselines_are_there() -> None:
    score, y, group = logits()
    result = ffalm.repair(probabilities(score), y, group)
    assert list(result.thresholds.groups) == ["f", "m"]
    assert 0 < result.thresholds["f"] < result.thresholds.single < result.thresholds["m"] < 1
    assert [one.kind for one in result.answer.candidates] == ["none", "accurate", "single", "groups"]
    assert list(result.group_auc) == ["f", "m"] and max(result.calibration_error.values()) < 0.1


def test_randomised_thresholds_meet_equalised_odds_and_depend_on_the_row_alone() -> None:
    score, _, group = logits(6000)
    slope = np.where(group == "f", 0.4, 2.0)  # the score says less about one group: no pair of thresholds is enough
    y = (np.random.default_rng(3).random(6000) < probabilities(slope * score)).astype(np.int64)
    asked: dict[str, Any] = {"target": "equalized_odds <= 0.01", "repair": "randomised", "confidence": 0.5}
    result = ffalm.repair(score, y, group, **asked)
    ids = np.arange(len(y))
    predicted = result.predict(score, group, ids)
    assert result.thresholds.randomised and result.calibration["equalized_odds"] <= 0.01 + 1e-9
    assert equalized_odds_difference(y, predicted, sensitive_features=group) < 0.04  # the draws have a spread
    order = np.random.default_rng(0).permutation(len(y))
    assert (result.predict(score[order], group[order], ids[order]) == predicted[order]).all()
    assert (result.predict(score, group) == result.predict(score, group)).all()
    with pytest.raises(UserError, match="1 of 6000 rows have no id"):
        result.predict(score, group, [None, *ids[1:]])


def test_tied_scores_get_the_promised_rates_without_ids() -> None:
    """With one draw for all rows of a score and group, equalised odds were up to 0.46."""
    for seed in range(5):
        draws = np.random.default_rng(seed)
        group = np.where(draws.random(6000) < 0.5, "f", "m")
        score = draws.integers(1, 6, 6000) / 6
        y = (draws.random(6000) < np.where(group == "f", 0.3 + 0.3 * score, score)).astype(np.int64)
        result = ffalm.repair(
            score, y, group, target="equalized_odds <= 0.05", repair="randomised", confidence=0.5, seed=seed
        )
        assert result.thresholds.randomised
        predicted = result.predict(score, group)
        found = equalized_odds_difference(y, predicted, sensitive_features=group)
        assert found == pytest.approx(result.calibration["equalized_odds"], abs=0.05)
        assert (result.predict(score, group) == predicted).all()


@pytest.mark.parametrize("held_back", [None, 0.5])
def test_the_calibration_error_of_few_distinct_scores_is_that_of_an_audit(held_back: float | None) -> None:
    """The middle of a bin of such scores may be far from every one of them."""
    draws = np.random.default_rng(0)
    score, group = draws.choice([0.03, 0.21, 0.48, 0.77], 8000), np.where(draws.random(8000) < 0.5, "f", "m")
    label = (draws.random(8000) < score).astype(np.int64)
    result = ffalm.repair(score, label, group, test_share=held_back)
    rows = np.ones(8000, dtype=bool)
    if held_back is not None:
        _, test = ScoredTable.of(score, label, group).split(held_back, 0)
        rows = np.isin(np.arange(8000), test)
    own = ffalm.audit(label=label[rows], score=score[rows], group=group[rows]).groupings[0].groups
    expected = {one.name: one.metrics["calibration_error"].value for one in own}
    assert result.calibration_error == pytest.approx(expected) and max(expected.values()) < 0.03


@pytest.mark.parametrize("unit", [1e-3, 1e6, 1e308])
def test_the_unit_of_costs_changes_no_threshold(unit: float) -> None:
    score, y, group = logits()
    plain = ffalm.repair(score, y, group, cost_false_favourable=1.5)
    scaled = ffalm.repair(score, y, group, cost_false_favourable=1.5 * unit, cost_false_unfavourable=unit)
    assert scaled.answer.chosen.kind == plain.answer.chosen.kind == "groups"
    assert scaled.thresholds == plain.thresholds
    assert scaled.calibration["cost"] / unit == pytest.approx(plain.calibration["cost"])


def test_costs_move_the_thresholds_and_choose_the_result() -> None:
    score, y, group = logits()
    plain = ffalm.repair(score, y, group)
    costly = ffalm.repair(score, y, group, cost_false_unfavourable=5)
    assert costly.predict(score, group).mean() > plain.predict(score, group).mean() + 0.1
    wrong = costly.predict(score, group) - y
    assert costly.calibration["cost"] == pytest.approx(((wrong == 1) + 5 * (wrong == -1)).mean(), abs=1e-12)
    assert costly.calibration["cost"] < 5 * (plain.predict(score, group) < y).mean()


def test_a_row_without_a_known_group_gets_the_single_threshold() -> None:
    score, y, group = logits(800)
    missing = pd.Series(group, dtype=object)
    missing[:50] = None
    result = ffalm.repair(score, y, missing)
    assert int(result.parts["calibration"].counts.sum()) == 750
    expected = (score >= result.thresholds.single).astype(int)
    assert (result.predict(score) == expected).all()
    assert (result.predict(score, np.full(800, "new")) == expected).all()
    assert (result.predict(score, missing)[:50] == expected[:50]).all()


def test_scores_without_a_decision_of_their_own_have_no_candidate_as_trained() -> None:
    score, y, group = logits(800)
    result = ffalm.repair(600 + 40 * score, y, group)
    assert "none" not in [one.kind for one in result.answer.candidates]
    assert "--decision" in result.notes[0] and result.calibration_error == {}


def test_labels_of_any_number_and_names_are_favourable_or_not() -> None:
    score, y, group = logits(900)
    three = np.where(y == 1, "paid", np.where(np.arange(900) % 2 == 0, "late", "never"))
    two = ffalm.repair(score, y, group)
    result = ffalm.repair(score, three, group, favourable="paid")
    assert (result.predict(score, group) == two.predict(score, group)).all()


def test_few_distinct_scores_keep_each_of_them_apart() -> None:
    score, y, group = logits(3000)
    deciles = np.clip(np.floor(5 + 2 * score), 1, 10)
    result = ffalm.repair(deciles, y, group, target="dpd <= 0.1", confidence=0.5)
    predicted = result.predict(deciles, group)
    assert demographic_parity_difference(y, predicted, sensitive_features=group) == pytest.approx(
        result.calibration["dpd"], abs=1e-12
    )
    for name in ("f", "m"):
        by_score = pd.Series(predicted[group == name]).groupby(deciles[group == name])
        assert by_score.nunique().max() == 1


def test_thresholds_survive_a_file(tmp_path: Any) -> None:
    from ffalm.report.repair_report import to_plain
    from ffalm.system.files import json_text

    score, y, group = logits(800)
    result = ffalm.repair(score, y, group)
    path = tmp_path / "repair.json"
    path.write_text(json_text(to_plain(result)))
    assert ffalm.ScoreThresholds.load(path) == result.thresholds
    everybody = ffalm.ScoreThresholds("groups", {"f": ((-math.inf, 1.0),), "m": ((math.inf, 1.0),)}, 0.0)
    assert ffalm.ScoreThresholds.from_plain(everybody.to_plain()) == everybody
    path.write_text("{}")
    with pytest.raises(UserError, match="run the repair again"):
        ffalm.ScoreThresholds.load(path)
    with pytest.raises(UserError, match="is not a file"):  # it never ends
        ffalm.ScoreThresholds.load("/dev/zero")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [0.5] * 40}, "All scores are equal"),
        ({"scores": [math.nan, *[0.2] * 39]}, "1 missing or infinite"),
        ({"scores": ["a"] * 40}, "must hold numbers only"),
        ({"groups": ["a"] * 40}, "one group only"),
        ({"groups": [None] * 40}, "No group is known"),
        ({"scores": [0.1] * 300, "labels": [0, 1] * 150, "groups": range(300)}, "too many to be groups"),
        ({"labels": [2, 3] * 20}, "favourable"),
        ({"labels": [1, 0]}, "one entry per row"),
        ({"target": "loss <= 0.1"}, "metric of a target"),
        ({"repair": "none"}, "There is no repair 'none'"),
        ({"repair": np.zeros(3)}, "There is no repair"),
        ({"confidence": 0.2}, "from 0.5"),
        ({"cost_false_favourable": -1}, "0 or more"),
        ({"test_share": 1.0}, "between 0 and 1"),
        ({"test_share": 0.5, "test": ([], [], [])}, "exclude each other"),
        ({"test": ([0.1], [7], ["a"])}, "There is no label"),
        ({"test": ([0.1], [1], ["z"])}, "No group of"),
    ],
)
def test_a_mistake_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {
        "scores": np.linspace(0, 1, 40),
        "labels": np.tile([0, 1], 20),
        "groups": np.repeat(["a", "b"], 20),
    }
    given = {**usual, **changes}
    with pytest.raises(UserError, match=message):
        ffalm.repair(given.pop("scores"), given.pop("labels"), given.pop("groups"), **given)


def test_the_result_says_what_it_is() -> None:
    result = ffalm.repair(*logits(400))
    assert isinstance(result, RepairedScores) and "dpd <= 0.05: met" in repr(result)


def test_rows_without_a_score_get_no_prediction() -> None:
    thresholds = ScoreThresholds("groups", {"m": ((0.5, 1.0),)}, 0.5)
    assert thresholds.predict([0.2, np.inf], ["m", "f"]).tolist() == [0, 1]
    for scores in ([0.2, np.nan], [None, 0.3], ["a", "b"], 3, [[0.1, 0.2], [0.3, 0.4]]):
        with pytest.raises(UserError):
            thresholds.predict(scores)


@pytest.mark.parametrize(
    "mix",
    [
        [],
        [{"threshold": "nan", "probability": 1}],
        [{"threshold": 0.5, "probability": 0.4}],
        [{"threshold": 10**400, "probability": 1}],
        [3],
        None,
    ],
)
def test_thresholds_that_make_no_sense_are_refused(mix: object) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        ScoreThresholds.from_plain({"kind": "groups", "single": 0.5, "groups": {"m": mix}})


@pytest.mark.parametrize("name", ["decision", "confidence", "cost_false_favourable", "test", "test_share"])
def test_settings_of_a_repair_of_another_type_are_refused(name: str) -> None:
    rows = np.arange(40)
    with pytest.raises(UserError):
        ffalm.repair(rows % 7 / 7, rows % 3 % 2, np.where(rows % 2, "m", "f"), **{name: "x"})  # type: ignore[arg-type]


def test_columns_without_a_name_are_called_by_their_roles() -> None:
    score, y, group = map(pd.Series, logits(400))
    assert "'labels' = 1 was taken as the favourable outcome; favourable changes it." in (
        ffalm.repair(score, y, group).notes
    )


def test_scores_in_an_array_of_objects_are_numbers() -> None:
    score, y, group = logits(400)
    result, objects = ffalm.repair(score, y, group), pd.Series(score, dtype=object)
    assert ffalm.repair(objects, y, group).thresholds == result.thresholds
    assert (result.predict(objects, group) == result.predict(score, group)).all()


def test_rows_without_a_score_are_to_be_left_out_and_not_their_column() -> None:
    score, y, group = logits(400)
    with pytest.raises(UserError, match=r"has 1 missing or infinite value, .* or leave those rows out"):
        ffalm.repair(np.append(np.nan, score[1:]), y, group)


def test_columns_whose_indexes_have_the_rows_in_different_orders_are_noted() -> None:
    score, label, group = (pd.Series(one) for one in logits(seed=1))
    own, apart = (score, label, group), (score, label, group.sample(frac=1, random_state=0))
    told = "hold the same rows in different orders"
    assert not any(told in note for note in ffalm.repair(*own, test=own).notes)
    assert any(f"scores and groups {told}" in note for note in ffalm.repair(*apart, test=own).notes)
    assert any(f"test scores and test groups {told}" in note for note in ffalm.repair(*own, test=apart).notes)

"""`ffalm.audit` against fairlearn, by hand, and where groups are small or not known."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    demographic_parity_ratio,
    equal_opportunity_difference,
    equalized_odds_difference,
    false_positive_rate,
    selection_rate,
    true_positive_rate,
)
from sklearn.metrics import accuracy_score, precision_score, roc_auc_score

import ffalm
from ffalm.auditing.fairness_audit import Audit
from ffalm.errors import UserError
from ffalm.report.audit_report import sentences


def scored(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Loans with a score, a decision and two group columns."""
    draw = np.random.default_rng(seed)
    sex, race = draw.choice(["female", "male"], rows), draw.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2])
    paid = np.where(draw.random(rows) < 0.4 + 0.2 * (sex == "male"), "yes", "no")
    score = np.clip(draw.normal(0.4 + 0.2 * (paid == "yes") + 0.1 * (race == "a"), 0.2), 0, 1)
    said = np.where(score >= 0.5, "yes", "no")
    return pd.DataFrame({"paid": paid, "said": said, "score": score, "sex": sex, "race": race})


def audited(frame: pd.DataFrame, **settings: Any) -> Audit:
    own = {"label": "paid", "prediction": "said", "group": "race", "favourable": "yes"}
    return ffalm.audit(frame, **{**own, **settings})


def audit_of_scores(scores: Any, label: Any, group: Any) -> Audit:
    frame = pd.DataFrame({"score": scores, "label": label, "group": group})
    return ffalm.audit(frame, label="label", score="score", group="group", decision=0.5, min_group=1)


def test_the_sweep_of_a_score_is_said_to_merge_the_other_labels() -> None:
    frame = scored()
    frame.loc[::5, ["paid", "said"]] = "late"
    assert any("all labels but 'yes' count as one" in note for note in audited(frame, score="score").notes)
    assert not any("count as one" in note for note in audited(frame).notes)


def test_rates_and_gaps_agree_with_fairlearn() -> None:
    frame = scored()
    found = audited(frame)
    truth, said = (frame[name] == "yes" for name in ("paid", "said"))
    metrics = {
        "selection_rate": selection_rate,
        "true_positive_rate": true_positive_rate,
        "false_positive_rate": false_positive_rate,
        "precision": precision_score,
        "accuracy": accuracy_score,
    }
    frames = MetricFrame(metrics=metrics, y_true=truth, y_pred=said, sensitive_features=frame["race"])
    pd.testing.assert_frame_equal(found.by_group()[list(metrics)], frames.by_group, check_names=False)
    by = {"y_true": truth, "y_pred": said, "sensitive_features": frame["race"]}
    assert found.metrics["dpd"] == pytest.approx(demographic_parity_difference(**by))
    assert found.metrics["impact_ratio"] == pytest.approx(demographic_parity_ratio(**by))
    assert found.metrics["equalized_odds"] == pytest.approx(equalized_odds_difference(**by))
    assert found.metrics["eod"] == pytest.approx(equal_opportunity_difference(**by))
    assert found.metrics["accuracy_parity"] == pytest.approx(frames.difference()["accuracy"])
    assert found.metrics["predictive_parity"] == pytest.approx(frames.difference()["precision"])
    assert found.metrics["worst_group_accuracy"] == pytest.approx(frames.group_min()["accuracy"])
    for group in found.groupings[0].groups:
        for name in metrics:
            assert group.metrics[name].low <= group.metrics[name].value <= group.metrics[name].high


def test_without_true_outcomes_selection_rates_alone_are_compared() -> None:
    frame = scored()
    known, found = audited(frame), audited(frame, label=None)
    assert found.metrics == {name: known.metrics[name] for name in ("dpd", "impact_ratio")}
    assert list(found.by_group()) == ["rows", "selection_rate", "impact_ratio"]
    assert found.by_group()["selection_rate"].equals(known.by_group()["selection_rate"])
    assert found.label == "said" and "True outcomes were not given" in found.notes[-1]
    scores = {"prediction": None, "score": "score", "decision": 0.5}
    swept = audited(frame, label=None, **scores)
    assert swept.metrics == found.metrics  # said is score >= 0.5
    assert set(swept.groupings[0].sweep[0].metrics) == {"dpd", "impact_ratio"}
    assert not any(one.calibration for one in swept.groupings[0].groups)
    with pytest.raises(UserError, match="There is no metric of this audit 'eod'"):
        found.failures(["eod > 0.1"])


def test_columns_are_crossed_and_the_worst_pair_is_named() -> None:
    frame = scored()
    found = audited(frame, group=["sex", "race"])
    assert [one.name for one in found.groupings] == ["sex", "race", "sex, race"]
    crossed = MetricFrame(
        metrics=selection_rate,
        y_true=frame["paid"] == "yes",
        y_pred=frame["said"] == "yes",
        sensitive_features=frame[["sex", "race"]],
    )
    assert found["sex, race"].metrics["dpd"].value == pytest.approx(crossed.difference())
    pair = found["sex, race"].pairs["dpd"]
    assert (pair.high, pair.low) == (", ".join(crossed.by_group.idxmax()), ", ".join(crossed.by_group.idxmin()))
    assert pair.difference.low < pair.difference.value < pair.difference.high
    with pytest.raises(UserError, match="no grouping of this audit 'age'"):
        found["age"]


@pytest.mark.parametrize("groups", [2, 4, 12])
def test_the_interval_of_the_auc_difference_counts_that_its_groups_were_chosen(groups: int) -> None:
    """Equal areas: the interval of two groups alone excluded 0 in 6, 20 and 65 % of draws."""
    names, apart, farthest = np.array([f"g{place:02}" for place in range(groups)]), 0, 0
    for seed in range(40):
        draws = np.random.default_rng(seed)
        group, label = names[np.arange(groups * 80) % groups], draws.integers(0, 2, groups * 80)
        found = audit_of_scores(draws.normal(label), label, group)
        gap = found.groupings[0].metrics["auc_gap"]
        assert 0 <= gap.low <= gap.value <= gap.high
        apart += gap.low > 0
        farthest += found.groupings[0].pairs["dpd"].difference.low > 0
    assert apart <= 6 and farthest <= 6


def test_a_group_with_one_favourable_row_leaves_the_auc_difference_without_an_interval() -> None:
    label, group = np.array([0, 1] * 30 + [0] * 29 + [1]), np.array(["a"] * 60 + ["b"] * 30)
    found = audit_of_scores(np.random.default_rng(0).normal(label), label, group).groupings[0]
    assert found.metrics["auc_gap"].value > 0
    assert math.isnan(found.metrics["auc_gap"].low) and math.isnan(found.metrics["auc_gap"].high)
    assert math.isnan(found.groups[1].metrics["auc"].low)


def test_scores_are_ranked_and_calibrated_by_group() -> None:
    frame = scored()
    found = audited(frame, prediction=None, score="score")
    assert found.threshold == 0.5
    assert found.metrics["dpd"] == pytest.approx(audited(frame).metrics["dpd"])  # the same decision
    for group in found.groupings[0].groups:
        own = frame[frame["race"] == group.name]
        expected = roc_auc_score(own["paid"] == "yes", own["score"])
        assert group.metrics["auc"].value == pytest.approx(expected)
        assert group.metrics["auc"].low < expected < group.metrics["auc"].high
        assert sum(one.rows for one in group.calibration) == group.rows
        excess = own["score"].mean() - (own["paid"] == "yes").mean()
        assert group.metrics["mean_score_excess"].value == pytest.approx(excess)
    swept = {one.threshold: one.metrics["dpd"] for one in found.groupings[0].sweep}
    assert swept[0.5] == pytest.approx(found.metrics["dpd"])


def test_a_calibrated_score_has_a_small_error_and_an_overconfident_one_a_large() -> None:
    draw = np.random.default_rng(0)
    score = draw.random(4000)
    label, group = (draw.random(4000) < score).astype(int), draw.integers(0, 2, 4000)
    good = ffalm.audit(label=label, score=score, group=group)
    bad = ffalm.audit(label=label, score=np.where(score > 0.5, 0.99, 0.01), group=group)
    assert good.metrics["calibration_error"] < 0.05 < 0.2 < bad.metrics["calibration_error"]


def test_bounds_hold_for_every_assignment_of_missing_groups_and_are_reached() -> None:
    """By brute force over all assignments of three rows to two groups."""
    draw = np.random.default_rng(3)
    label, said = draw.integers(0, 2, 24), draw.integers(0, 2, 24)
    group = np.array(["a"] * 10 + ["b"] * 11 + [None] * 3, dtype=object)
    found = ffalm.audit(label=label, prediction=said, group=group, min_group=0).groupings[0]
    assert found.unknown_rows == 3 and found.bounds is not None
    tried: dict[str, list[float]] = {name: [] for name in found.bounds}
    for own in itertools.product("ab", repeat=3):
        filled = np.concatenate([group[:21], own])
        for name, value in ffalm.audit(label=label, prediction=said, group=filled, min_group=0).metrics.items():
            if name in tried:
                tried[name].append(value)
    for name, (low, high) in found.bounds.items():
        assert low <= min(tried[name]) + 1e-12 and max(tried[name]) <= high + 1e-12, name
    assert found.bounds["dpd"][1] == pytest.approx(max(tried["dpd"]))
    assert found.bounds["accuracy_parity"][1] == pytest.approx(max(tried["accuracy_parity"]))
    assert found.bounds["impact_ratio"][0] == pytest.approx(min(tried["impact_ratio"]))


def test_small_groups_are_flagged_and_not_compared() -> None:
    frame = scored()
    frame.loc[:4, "race"] = "d"
    found = audited(frame).groupings[0]
    assert [(one.name, one.small) for one in found.groups if not one.compared] == [("d", True)]
    assert found.metrics["dpd"].value == pytest.approx(audited(frame[5:]).metrics["dpd"])
    everyone = audited(frame, min_group=0).groupings[0]
    assert all(one.compared for one in everyone.groups)
    few = audited(frame, min_group=10_000).groupings[0]  # nobody would be left
    assert all(one.compared and one.small for one in few.groups)


def test_a_decision_that_no_score_reaches_is_told() -> None:
    """Nobody is selected then, so that all gaps are 0, as where 50 stands for 50 percent."""
    found = audited(scored(), prediction=None, score="score", decision=50)
    assert found.metrics["dpd"] == 0
    assert any(note.endswith(", so that every row is predicted unfavourable.") for note in found.notes)
    found = audited(scored(), prediction=None, score="score", decision=0.5)
    assert not any("every row" in note for note in found.notes)


def test_scores_that_are_text_in_a_data_frame_are_to_be_made_numbers() -> None:
    """There a decimal mark cannot be set."""
    frame = scored()
    with pytest.raises(UserError, match=r"for a text file, else convert it to numbers\.$"):
        audited(frame.assign(score=frame["score"].astype(str)), prediction=None, score="score")


def test_conditions_name_a_metric_of_the_audit() -> None:
    found = audited(scored())
    assert found.failures(["dpd > 0", "accuracy < 1 %"])[0].condition == "dpd > 0"
    assert len(found.failures(["dpd > 0", "accuracy < 1 %"])) == 1
    assert found.failures("dpd > 0") == found.failures(["dpd > 0"])
    with pytest.raises(UserError, match="Give conditions"):
        found.failures(True)  # type: ignore[arg-type]
    for wrong in ("dpd", "dpd == 1", "dpd > x", "dpd > ."):
        with pytest.raises(UserError):
            found.failures([wrong])
    with pytest.raises(UserError, match="did you mean 'dpd'"):
        found.failures(["dpdd > 1"])


def test_an_undefined_metric_fails_a_condition() -> None:
    found = ffalm.audit(label=[0, 1, 0, 1], prediction=[0, 0, 0, 0], group=["a", "a", "b", "b"], min_group=0)
    assert math.isnan(found.metrics["predictive_parity"])
    assert [one.metric for one in found.failures(["predictive_parity > 0.5"])] == ["predictive_parity"]
    assert "dpd" not in found.groupings[0].pairs  # nobody is selected in either group


def test_more_labels_than_two_are_audited_by_the_favourable_one() -> None:
    draw = np.random.default_rng(0)
    label, said, group = (draw.choice(values, 300) for values in (["x", "y", "z"], ["x", "y", "z"], ["a", "b"]))
    found = ffalm.audit(label=label, prediction=said, group=group, favourable="z")
    expected = MetricFrame(metrics=selection_rate, y_true=label == "z", y_pred=said == "z", sensitive_features=group)
    assert found.metrics["dpd"] == pytest.approx(expected.difference())
    assert found.metrics["accuracy"] == pytest.approx(float((label == said).mean()))
    by_score = ffalm.audit(label=label, score=draw.random(300), group=group, favourable="z")
    assert any("count as unfavourable" in note for note in by_score.notes)


def test_what_cannot_be_audited_is_told() -> None:
    frame = scored(60)
    with pytest.raises(UserError, match="decision is made from scores"):
        ffalm.audit(frame, label="paid", prediction="said", group="sex", decision=0.3)
    with pytest.raises(UserError, match="there are neither"):
        audited(frame, prediction=None)
    with pytest.raises(UserError, match="did you mean 'race'"):
        audited(frame, group="rase")
    with pytest.raises(UserError, match="no label in the predictions"):
        audited(frame.assign(said="maybe"))
    with pytest.raises(UserError, match="one entry per row"):
        ffalm.audit(label=[0, 1], prediction=[1], group=[0, 1])
    with pytest.raises(UserError, match="--decision"):
        audited(frame.assign(score=frame["score"] + 3), prediction=None, score="score")
    with pytest.raises(UserError, match="Give a table"):
        ffalm.audit(3, label="a", prediction="b", group="c")
    with pytest.raises(UserError, match="at most 4"):
        audited(frame, group=list("abcde"))


def test_several_group_columns_are_given_as_a_list_or_with_commas() -> None:
    frame = scored()
    names = [[one.name for one in audited(frame, group=group).groupings] for group in (["sex", "race"], "sex, race")]
    assert names == [["sex", "race", "sex, race"]] * 2
    crossed = [audited(frame, group=group)["sex, race"] for group in (["sex,race", "sex"], "sex,race")]
    assert repr(crossed[0]) == repr(crossed[1])  # by what they say: a missing number (NaN) equals no other
    arrays = ffalm.audit(label=frame["paid"], prediction=frame["said"], group=frame[["sex", "race"]], favourable="yes")
    assert arrays["sex, race"].metrics == audited(frame, group="sex,race")["sex, race"].metrics
    named = frame.rename(columns={"race": "race, as told"})
    assert [one.name for one in audited(named, group="race, as told").groupings] == ["race, as told"]


def test_groups_that_differ_in_spelling_alone_are_noted() -> None:
    frame = scored()
    frame.loc[::4, "sex"] = frame["sex"].str.title()
    notes = audited(frame, group=["sex", "race"]).notes
    assert [note for note in notes if "'Female', 'female', 'Male', 'male' differ in spelling alone" in note] == [
        notes[-1]
    ]


def test_a_condition_that_can_never_hold_is_refused() -> None:
    found = audited(scored())
    for condition in ("dpd > 1e999", "dpd > 1e400 %", "dpd > .", "dpd > 10", "impact_ratio < 80", "dpd > -0.1", 3):
        with pytest.raises(UserError):
            found.failures([condition])  # type: ignore[list-item]


def test_masked_groups_are_unknown_and_columns_that_do_not_fit_are_refused() -> None:
    frame = scored()
    label, said = frame["paid"] == "yes", (frame["said"] == "yes").to_numpy()
    group = np.ma.masked_array(np.arange(600) % 2, mask=np.arange(600) < 100)
    found = ffalm.audit(label=label.astype(int), prediction=said.astype(int), group=group)
    missing = pd.Series(group.data).where(~group.mask)
    assert found.metrics == ffalm.audit(label=label.astype(int), prediction=said.astype(int), group=missing).metrics
    for strange in ({"prediction": said.reshape(2, 300)}, {"level": None}, {"group": 3}, {"min_group": "x"}):
        with pytest.raises(UserError):
            ffalm.audit(**{"label": label.astype(int), "prediction": said.astype(int), "group": group, **strange})


def audit_of_selected(*chosen: int) -> Audit:
    """Of groups of 100 rows each, of which so many are selected."""
    said = np.concatenate([np.arange(100) < many for many in chosen]).astype(int)
    return ffalm.audit(prediction=said, group=np.repeat([f"group {place}" for place in range(len(chosen))], 100))


@pytest.mark.parametrize("chosen", [(40, 30), (70, 60), (80, 70)])
def test_a_gap_that_equals_the_bound_is_not_above_it_whatever_its_last_bit(chosen: tuple[int, int]) -> None:
    found = audit_of_selected(*chosen)  # 0.4 - 0.3 > 0.1 and 0.7 - 0.6 < 0.1 in floating point
    holding = found.failures(["dpd > 0.1", "dpd >= 0.1", "dpd < 0.1", "dpd <= 0.1"])
    assert [one.condition for one in holding] == ["dpd >= 0.1", "dpd <= 0.1"]


@pytest.mark.parametrize(("chosen", "below"), [((80, 64), False), ((70, 56), False), ((80, 63), True)])
def test_an_impact_ratio_of_four_fifths_is_not_below_it(chosen: tuple[int, int], below: bool) -> None:
    found = audit_of_selected(*chosen)  # 0.64 / 0.8 < 0.8 in floating point
    assert bool(found.failures("impact_ratio < 0.8")) is below
    assert any("four-fifths" in sentence for sentence in sentences(found)) is below


def test_scores_in_an_array_of_objects_are_numbers() -> None:
    frame = scored()
    given = {"label": frame["paid"], "group": frame["sex"], "favourable": "yes"}
    objects = frame["score"].to_numpy(dtype=object)
    assert ffalm.audit(score=objects, **given).metrics == ffalm.audit(score=frame["score"], **given).metrics


def test_groups_of_another_length_or_of_one_name_are_refused() -> None:
    """A shorter column was filled with unknown groups, and of two of one name the first was lost."""
    frame = scored()
    columns = {"label": frame["paid"], "prediction": frame["said"], "favourable": "yes"}
    with pytest.raises(UserError, match=r"one entry per row; got \[550, 600\]"):
        ffalm.audit(**columns, group={"sex": frame["sex"], "race": frame["race"][:550]})
    for twice in (frame[["sex", "race"]].set_axis(["who", "who"], axis=1), {1: frame["sex"], "1": frame["race"]}):
        with pytest.raises(UserError, match="Several groups have the same name"):
            ffalm.audit(**columns, group=twice)


def test_a_series_without_a_name_is_called_by_its_role() -> None:
    truth, said = (scored()[name].eq("yes").astype(int).rename(None) for name in ("paid", "said"))
    found = ffalm.audit(label=truth, prediction=said, group=scored()["sex"])
    assert found.label == "label"
    assert found.notes == ("'label' = 1 was taken as the favourable outcome; favourable changes it.",)


def test_columns_whose_indexes_have_the_rows_in_different_orders_are_noted() -> None:
    frame = scored().sample(frac=1, random_state=0)

    def notes(**changed: Any) -> tuple[str, ...]:
        columns = {"label": frame["paid"], "prediction": frame["said"], "group": frame["sex"], **changed}
        return ffalm.audit(**columns, favourable="yes").notes

    assert (
        notes() == notes(group=frame["sex"].to_numpy()) == notes(prediction=frame["said"].set_axis(range(9, 609))) == ()
    )
    for apart in ({"prediction": frame["said"].sort_index()}, {"group": frame[["sex", "race"]].sort_index()}):
        (note,) = notes(**apart)
        assert f"The indexes of label and {next(iter(apart))} hold the same rows in different orders" in note

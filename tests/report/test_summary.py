from __future__ import annotations

import math

import pytest
from tests.report.makers import run, study

from ffalm.report.summary import baseline_label, changes, metric_names, more_is_better, summarise, t_quantile


def test_mean_and_sample_standard_deviation_are_those_worked_by_hand() -> None:
    row = summarise(study(run("FedAvg", 0, 0.80), run("FedAvg", 1, 0.84), run("FedAvg", 2, 0.88)))[0]
    assert row.cells["accuracy"].mean == pytest.approx(0.84)
    assert row.cells["accuracy"].std == pytest.approx(0.04)
    assert (row.runs, row.diverged, row.cells["accuracy"].n) == (3, 0, 3)


def test_one_seed_has_its_test_interval_and_no_spread() -> None:
    cell = summarise(study(run("FedAvg", 0, 0.8, intervals={"accuracy": (0.77, 0.83)})))[0].cells["accuracy"]
    assert cell.std is None
    assert cell.interval == (0.77, 0.83)


def test_several_seeds_show_no_interval_of_a_single_run() -> None:
    runs = [run("FedAvg", seed, 0.8, intervals={"accuracy": (0.77, 0.83)}) for seed in range(2)]
    assert summarise(study(*runs))[0].cells["accuracy"].interval is None


def test_an_interval_that_is_not_finite_is_no_interval() -> None:
    outcome = run("FedAvg", 0, 0.8, intervals={"accuracy": (math.nan, 0.83)})
    assert summarise(study(outcome))[0].cells["accuracy"].interval is None


def test_a_diverged_run_is_counted_but_not_averaged_even_if_it_left_numbers() -> None:
    row = summarise(study(run("FFALM", 0, 0.8), run("FFALM", 1, 0.1, diverged="the dual passed its bound")))[0]
    assert row.cells["accuracy"].mean == pytest.approx(0.8)
    assert (row.runs, row.diverged, row.finished) == (2, 1, 1)


def test_an_undefined_metric_has_no_mean_and_is_counted() -> None:
    rows = summarise(study(run("FedAvg", 0, 0.8, 0.1, math.nan), run("FedAvg", 1, 0.8, 0.1, math.nan)))
    assert math.isnan(rows[0].cells["eod"].mean)
    assert (rows[0].cells["eod"].n, rows[0].cells["eod"].undefined) == (0, 2)


def test_accuracy_is_best_when_highest_and_gaps_when_lowest() -> None:
    fedavg, ffalm = summarise(study(run("FedAvg", 0, 0.82, 0.20, 0.10), run("FFALM", 0, 0.80, 0.12, 0.15)))
    assert [cell.best for cell in fedavg.cells.values()] == [True, False, True]
    assert [cell.best for cell in ffalm.cells.values()] == [False, True, False]


def test_means_that_print_alike_share_the_first_place() -> None:
    rows = summarise(study(run("A", 0, 0.80001), run("B", 0, 0.80004), run("C", 0, 0.79)))
    assert [row.cells["accuracy"].best for row in rows] == [True, True, False]


def test_an_undefined_mean_is_never_best() -> None:
    rows = summarise(study(run("A", 0, 0.8, math.nan), run("B", 0, 0.8, 0.3), run("C", 0, diverged="stopped")))
    assert [row.cells["dpd"].best for row in rows] == [False, True, False]
    assert not any(row.cells["eod"].best for row in rows)


def test_a_single_algorithm_is_best_at_nothing() -> None:
    assert not any(cell.best for cell in summarise(study(run("A", 0, 0.8, 0.1, 0.1)))[0].cells.values())


def test_the_best_is_chosen_for_each_skew_by_itself() -> None:
    rows = summarise(
        study(run("A", 0, 0.9), run("B", 0, 0.8), run("A", 0, 0.6, alpha=5.0), run("B", 0, 0.7, alpha=5.0))
    )
    assert [(row.alpha, row.label) for row in rows if row.cells["accuracy"].best] == [(0.3, "A"), (5.0, "B")]


def test_changes_are_paired_by_seed_with_a_t_interval_worked_by_hand() -> None:
    runs = [run("FedAvg", seed, dpd=value) for seed, value in enumerate((0.20, 0.30, 0.40))]
    runs += [run("FFALM", seed, dpd=value) for seed, value in ((2, 0.29), (0, 0.12), (1, 0.19))]
    change = next(change for change in changes(study(*runs)) if change.metric == "dpd")
    # differences -0.08, -0.11, -0.11: mean -0.10, standard deviation 0.01 * sqrt(3), margin 4.302653 * 0.01
    assert change.n == 3
    assert change.mean == pytest.approx(-0.10)
    assert change.interval == pytest.approx((-0.10 - 0.04302653, -0.10 + 0.04302653))
    assert change.clear


@pytest.mark.parametrize(("seeds", "clear"), [(2, False), (5, False), (6, True)])
def test_equal_differences_have_no_interval_and_are_judged_by_the_sign_test(seeds: int, clear: bool) -> None:
    """One row more of a thousand in each of two seeds is no evidence: p = 1/2. In six p is 1/32."""
    runs = [run("FedAvg", seed, 0.8 + 0.01 * seed, dpd=0.1) for seed in range(seeds)]
    runs += [run("FFALM", seed, 0.801 + 0.01 * seed, dpd=0.1) for seed in range(seeds)]
    found = {change.metric: change for change in changes(study(*runs))}
    accuracy, gap = found["accuracy"], found["dpd"]
    assert (accuracy.interval, accuracy.even, accuracy.clear) == (None, True, clear)
    assert accuracy.mean == pytest.approx(0.001)
    assert (gap.interval, gap.even, gap.clear) == (None, True, False)  # no difference at all


def test_a_seed_that_one_of_the_two_did_not_finish_is_no_pair() -> None:
    runs = [
        run("FedAvg", 0, 0.8),
        run("FedAvg", 1, diverged="stopped"),
        run("FFALM", 0, 0.7),
        run("FFALM", 1, 0.9),
    ]
    change = next(change for change in changes(study(*runs)) if change.metric == "accuracy")
    assert (change.n, change.interval, change.clear) == (1, None, False)
    assert change.mean == pytest.approx(-0.1)


def test_fedavg_is_the_baseline_wherever_it_stands_and_else_the_first() -> None:
    assert baseline_label(study(run("FFALM"), run("FedAvg"))) == "FedAvg"
    assert baseline_label(study(run("FPFL"), run("FFALM"))) == "FPFL"


def test_every_metric_that_was_measured_is_named_once() -> None:
    found = metric_names(study(run("A", others={"loss_gap": 0.1}), run("B", others={"loss_gap": 0.2})))
    assert found == ["accuracy", "dpd", "eod", "loss_gap"]


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (4, 2.776), (9, 2.262), (30, 2.042), (60, 2.000), (120, 1.980)]
)
def test_t_quantiles_are_those_of_printed_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=6e-4)


def counts(*by_prediction: tuple[int, int]) -> list[list[list[float]]]:
    """Rows by prediction and label, halved over two groups."""
    return [[[rows / 2, rows / 2] for rows in labels] for labels in by_prediction]


COLLAPSED = counts((80, 20), (0, 0))  # everybody gets label 0, whose share is 80 %
BELOW = counts((40, 10), (40, 10))  # half of the rows are right
SOUND = counts((75, 5), (5, 15))


@pytest.mark.parametrize(
    ("confusion", "reason"), [(COLLAPSED, "one label is predicted"), (BELOW, "majority share (80.0 %)")]
)
def test_a_degenerate_model_is_flagged_and_never_best(confusion: list[list[list[float]]], reason: str) -> None:
    accuracy = 0.8 if confusion is COLLAPSED else 0.5
    sound, lost = summarise(
        study(
            run("FedAvg", 0, 0.9, 0.2, 0.2, confusion=SOUND),
            run("FFALM", 0, accuracy, 0.0, 0.0, confusion=confusion),
        )
    )
    assert reason in lost.degenerate
    assert f"degenerate: {lost.degenerate}" in lost.note
    assert not any(cell.best for cell in lost.cells.values())
    assert all(cell.best for cell in sound.cells.values())
    assert sound.note == ""


def test_one_collapsed_run_of_several_is_enough_and_is_counted() -> None:
    runs = [run("A", 0, 0.9, 0.1, confusion=SOUND), run("A", 1, 0.8, 0.0, confusion=COLLAPSED)]
    (row,) = summarise(study(*runs))
    assert row.degenerate == "in 1 of 2 runs one label is predicted for over 99 % of the test rows"


def test_without_counts_nobody_can_be_called_degenerate() -> None:
    assert summarise(study(run("A", 0, 0.1, 0.0, 0.0), run("B", 0, 0.9, 0.2, 0.2)))[0].cells["dpd"].best


def test_accuracies_should_be_high_and_gaps_low_also_the_gap_between_accuracies() -> None:
    metrics = ("accuracy", "worst_group_accuracy", "impact_ratio", "accuracy_parity", "dpd", "equalized_odds", "loss")
    assert [metric for metric in metrics if more_is_better(metric)] == list(metrics[:3])


def test_a_dual_that_ran_away_is_degenerate_by_the_round_whose_model_was_scored() -> None:
    history = [{"round": 1, "dual": 3.0}, {"round": 2, "duals": {"a": [2e6], "b": [-1.0]}}]
    last, early = run("A", 0, 0.9, history=history), run("A", 0, 0.9, history=history, kept=1)
    assert last.degenerate == "a dual ran away (beyond 100)"
    assert early.degenerate == ""
    assert summarise(study(last))[0].degenerate == last.degenerate
    assert run("A", 0, history=history, diverged="stopped").degenerate == ""


def test_single_runs_below_the_majority_are_counted_where_the_mean_is_above() -> None:
    runs = [run("A", seed, 0.9, confusion=SOUND) for seed in range(4)] + [run("A", 4, 0.5, confusion=BELOW)]
    (row,) = summarise(study(*runs))
    assert row.degenerate == ""
    assert row.note == "accuracy below the majority share in 1 of 5"

from __future__ import annotations

import math
from typing import Any

from tests.report.makers import run, study

from ffalm.outcome import Outcome
from ffalm.report.summary_text import summary_text

Values = tuple[float, float, float]


def both(fedavg: list[Values], ffalm: list[Values], **more: Any) -> list[Outcome]:
    """Runs of FedAvg and FFALM from (accuracy, dpd, eod) a seed."""
    runs = [run("FedAvg", seed, *values, **more) for seed, values in enumerate(fedavg)]
    return [*runs, *[run("FFALM", seed, *values, **more) for seed, values in enumerate(ffalm)]]


def test_a_clear_win_names_the_gap_the_baseline_the_cost_and_the_interval() -> None:
    fedavg = [(0.850, 0.19, 0.10), (0.852, 0.20, 0.10), (0.851, 0.18, 0.10)]
    ffalm = [(0.842, 0.12, 0.10), (0.844, 0.13, 0.10), (0.844, 0.109, 0.10)]
    answer = summary_text(study(*both(fedavg, ffalm)))[0].answer[0]
    assert answer.startswith(
        "FFALM has the smallest demographic parity difference (DPD): 12.0 against FedAvg's 19.0, at a cost of 0.8 "
        "points of accuracy."
    )
    # differences -0.07, -0.07, -0.071: standard deviation 0.001 / sqrt(3), margin 4.302653 * 0.001 / 3
    assert answer.endswith("DPD fell by 6.89 to 7.18 points (95 %, paired by seed).")


def test_the_same_difference_in_two_seeds_is_not_clear() -> None:
    reading = summary_text(study(*both([(0.85, 0.19, 0.10)] * 2, [(0.84, 0.12, 0.20)] * 2)))[0]
    assert reading.answer[0].endswith(
        "at a cost of 1.0 points of accuracy (the same in 2 seeds, too few to be sure). But DPD fell by the same "
        "amount in all 2 seeds, which leaves no spread to judge it by: run more seeds before relying on it."
    )
    assert "clearly" not in reading.details[0]
    assert "better by the same amount in 2 seeds, too few to be sure, in DPD (7.0 points lower)" in reading.details[0]
    often = summary_text(study(*both([(0.85, 0.19, 0.10)] * 6, [(0.84, 0.12, 0.20)] * 6)))[0]
    assert often.answer[0].endswith("DPD fell by the same amount in all 6 seeds.")
    assert "clearly better in DPD (7.0 points lower)" in often.details[0]


def test_a_difference_within_the_spread_is_said_to_be_so() -> None:
    fedavg = [(0.85, 0.10, 0.1), (0.85, 0.20, 0.1), (0.85, 0.18, 0.1)]
    ffalm = [(0.84, 0.18, 0.1), (0.86, 0.10, 0.1), (0.85, 0.17, 0.1)]
    reading = summary_text(study(*both(fedavg, ffalm)))[0]
    assert "within the spread of the seeds" in reading.answer[0]
    assert "includes zero" in reading.answer[0]
    assert reading.details[0].startswith("FFALM: within the spread of the seeds in DPD (1.0 points lower)")


def test_it_is_said_plainly_when_the_fair_algorithm_loses() -> None:
    fedavg = [(0.85, 0.10, 0.10), (0.86, 0.11, 0.10)]
    ffalm = [(0.80, 0.20, 0.10), (0.8102, 0.2102, 0.10)]
    reading = summary_text(study(*both(fedavg, ffalm)))[0]
    assert (
        reading.answer[0]
        == "FedAvg has the smallest demographic parity difference (DPD): 10.5. No other algorithm improved on it."
    )
    assert "clearly worse in DPD (10.0 points higher) and accuracy (5.0 points lower)" in reading.details[0]


def test_a_winner_with_diverged_runs_is_not_praised_without_them() -> None:
    runs = both([(0.85, 0.19, 0.1)] * 2, [(0.85, 0.12, 0.1)])
    reading = summary_text(study(*runs, run("FFALM", 1, diverged="x")))[0]
    assert "this leaves out 1 of its 2 runs, which diverged" in reading.answer[0]


def test_one_seed_speaks_through_its_test_intervals() -> None:
    def answer(dpd: float, intervals: dict[str, tuple[float, float]]) -> str:
        runs = [
            run("FedAvg", 0, 0.8, 0.19, 0.1, intervals={"dpd": (0.17, 0.21)}),
            run("FFALM", 0, 0.8, dpd, 0.1, intervals=intervals),
        ]
        return summary_text(study(*runs))[0].answer[0]

    assert "test intervals overlap" in answer(0.16, {"dpd": (0.14, 0.18)})
    assert "do not overlap, but it is one seed" in answer(0.12, {"dpd": (0.10, 0.14)})
    assert "the spread is unknown" in answer(0.12, {})


def test_a_lone_run_is_read_by_itself() -> None:
    outcome = run("FFALM", 0, 0.8, 0.1, math.nan, intervals={"accuracy": (0.77, 0.83)})
    reading = summary_text(study(outcome))[0]
    assert reading.answer == ["FFALM: Accuracy 80.0 (95 % test interval 77.0 to 83.0), DPD 10.0, EOD undefined."]
    assert reading.details == []


def test_a_lone_run_that_diverged_has_nothing_to_read() -> None:
    assert summary_text(study(run("FFALM", 0, diverged="x")))[0].answer == [
        "FFALM diverged in its only run: there is no result."
    ]


def test_means_that_differ_in_the_second_decimal_are_not_printed_alike() -> None:
    runs = both([(0.8, 0.1203, 0.1)], [(0.8, 0.1201, 0.1)])
    assert "12.01 against FedAvg's 12.03" in summary_text(study(*runs))[0].answer[0]


def test_a_gap_undefined_for_everyone_crowns_nobody() -> None:
    runs = both([(0.8, 0.1, math.nan)], [(0.8, 0.2, math.nan)])
    assert "every algorithm is without a value" in summary_text(study(*runs))[0].answer[1]


def test_each_skew_is_read_by_itself() -> None:
    runs = both([(0.8, 0.1, 0.1)], [(0.8, 0.2, 0.1)]) + both([(0.8, 0.2, 0.1)], [(0.8, 0.1, 0.1)], alpha=5.0)
    readings = summary_text(study(*runs))
    assert [reading.alpha for reading in readings] == [0.3, 5.0]
    assert [reading.answer[0].split(" has ")[0] for reading in readings] == ["FedAvg", "FFALM"]


def test_the_answer_says_which_other_gap_grew() -> None:
    runs = [run("FedAvg", seed, 0.8, 0.2, 0.05 + seed / 1000) for seed in (0, 1, 2)]
    runs += [run("FFALM", seed, 0.8, 0.1, 0.10 + seed / 1100) for seed in (0, 1, 2)]
    assert "at no cost in accuracy, and with EOD 5.0 points higher." in summary_text(study(*runs))[0].answer[0]


def test_a_degenerate_model_is_not_called_the_fairest() -> None:
    everybody = [[[40.0, 40.0], [10.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]]
    runs = both([(0.9, 0.2, 0.1)], [(0.9, 0.1, 0.1)])
    text = summary_text(study(*runs, run("FairFed", 0, 0.8, 0.0, 0.0, confusion=everybody)))[0]
    assert text.answer[0].startswith("FFALM has the smallest")
    assert text.details[1] == (
        "FairFed is degenerate, so its gaps are no result: one label is predicted for over 99 % of the test rows."
    )
    (alone,) = summary_text(study(run("FairFed", 0, 0.8, 0.0, 0.0, confusion=everybody)))[0].answer
    assert "Its model is degenerate: one label is predicted" in alone


def test_a_change_that_rounds_to_nothing_is_called_the_same_and_not_worse() -> None:
    runs = both([(0.8, 0.2, 0.2), (0.81, 0.21, 0.2)], [(0.7998, 0.1, 0.1), (0.8098, 0.11, 0.1)])
    said = " ".join(sentence for reading in summary_text(study(*runs)) for sentence in reading.details)
    assert "the same, to a tenth of a point, in accuracy" in said
    assert "worse" not in said

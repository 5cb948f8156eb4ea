from __future__ import annotations

import math

from tests.report.makers import run, study
from tests.report.test_page import Page

from ffalm.report.page import render
from ffalm.report.rendering import to_markdown
from ffalm.report.study_tables import group_rates, results

#: By prediction, label and group: women 10 rows, 4 of them deserving, 3 chosen, 2 rightly; men 10, 5, 6 and 5.
COUNTS = [[[5, 4], [2, 0]], [[1, 1], [2, 5]]]
NAMES = ("women", "men")


def test_each_group_is_shown_with_its_rows_and_its_own_rates() -> None:
    women, men = group_rates(study(run("FedAvg", confusion=COUNTS), group_names=NAMES), 0.3, "FedAvg")
    assert women == ("women", 10, [0.4, 0.3, 0.5, 0.7])
    assert men == ("men", 10, [0.5, 0.6, 1.0, 0.9])


def test_rates_follow_the_favourable_label() -> None:
    found = study(run("FedAvg", confusion=COUNTS), group_names=NAMES, favourable=0)
    _, _, rates = group_rates(found, 0.3, "FedAvg")[0]
    assert rates == [0.6, 0.7, 5 / 6, 0.7]


def test_groups_are_means_over_the_runs_that_finished() -> None:
    other = [[[6, 4], [2, 0]], [[0, 1], [2, 5]]]
    runs = [run("FedAvg", 0, confusion=COUNTS), run("FedAvg", 1, confusion=other)]
    lost = run("FedAvg", 2, confusion=[[[0, 0], [0, 0]], [[9, 9], [9, 9]]], diverged="its loss was NaN")
    _, _, rates = group_rates(study(*runs, lost, group_names=NAMES), 0.3, "FedAvg")[0]
    assert math.isclose(rates[1], 0.25)


def test_a_group_without_the_rows_a_rate_needs_says_undefined() -> None:
    counts = [[[5, 4], [0, 0]], [[1, 1], [0, 5]]]
    words = Page(render(study(run("FedAvg", confusion=counts), group_names=NAMES))).words
    assert "women60.016.7undefined83.3" in words.replace(" ", "")


def test_the_page_names_whom_a_gap_favours() -> None:
    words = Page(render(study(run("FedAvg", confusion=COUNTS), group_names=NAMES))).words
    assert "Group by group" in words
    assert "women1040.030.050.070.0" in words.replace(" ", "")


def test_of_many_groups_the_page_and_the_table_say_that_a_gap_is_the_largest_difference_between_two() -> None:
    counts = [[[*cells, 3] for cells in labels] for labels in COUNTS]
    three = study(run("FedAvg", 0, 0.8, 0.1, 0.2, confusion=counts), group_names=(*NAMES, "others"))
    words = Page(render(three)).words
    assert "the largest difference between two of the 3 groups in how often" in words
    assert "A small group can differ widely by chance alone" in words
    assert "each the largest difference between two of 3 groups" in to_markdown(results(three))
    two = study(run("FedAvg", 0, 0.8, 0.1, 0.2, confusion=COUNTS), group_names=NAMES)
    assert "largest difference" not in to_markdown(results(two))
    assert "the gap between groups in how often" in Page(render(two)).words


def test_runs_that_kept_no_counts_make_no_table_of_groups() -> None:
    assert "Group by group" not in render(study(run("FedAvg"), group_names=NAMES))


def test_the_page_says_that_test_rows_are_chance_too_where_the_table_shows_seeds_alone() -> None:
    runs = [run("FedAvg", seed, 0.8, 0.1, 0.2, intervals={"dpd": (0.05, 0.15), "eod": (0.1, 0.4)}) for seed in (0, 1)]
    words = Page(render(study(*runs))).words
    assert "this many points to either side: DPD 5.0, EOD 15.0." in words
    assert "to either side" not in Page(render(study(runs[0]))).words

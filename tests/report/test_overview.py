from __future__ import annotations

import pytest
from tests.report.makers import run, study

from ffalm.report.overview import MAJORITY, overview

#: By prediction, label and group: 20 rows, 9 of them favourable; 9 selected, 7 rightly.
COUNTS = [[[5, 4], [2, 0]], [[1, 1], [2, 5]]]


def test_rates_beyond_the_metrics_come_from_the_counts() -> None:
    table = overview(study(run("A", confusion=COUNTS, others={"equalized_odds": 0.2}), group_names=("w", "m")))
    values = dict(zip([column.head for column in table.columns], table.rows[0].cells, strict=True))
    assert values["Balanced acc. ↑"].value == pytest.approx((9 / 11 + 7 / 9) / 2)
    assert values["Selected"].value == pytest.approx(9 / 20)
    assert values["Eq. odds ↓"].value == 0.2


def test_the_majority_baseline_closes_each_skew() -> None:
    runs = [run(name, 0, 0.8, 0.1, 0.1, confusion=COUNTS, alpha=alpha) for name in "AB" for alpha in (0.3, 5.0)]
    table = overview(study(*runs, group_names=("w", "m")))
    assert [section.rows[-1].cells[0].value for section in table.sections] == [MAJORITY] * 2
    last = dict(zip([column.head for column in table.columns], table.rows[-1].cells, strict=True))
    assert last["Acc. ↑"].value == pytest.approx(11 / 20)
    assert last["Selected"].value == 0.0
    assert last["Balanced acc. ↑"].value == 0.5
    assert not any(cell.bold for cell in table.rows[-1].cells)


def test_selecting_more_or_fewer_is_never_bold() -> None:
    other = [[[6, 5], [2, 0]], [[0, 0], [2, 5]]]
    table = overview(study(run("A", 0, 0.8, confusion=COUNTS), run("B", 0, 0.9, confusion=other)))
    selected = next(place for place, column in enumerate(table.columns) if column.head == "Selected")
    assert not any(one.cells[selected].bold for one in table.rows)
    assert any(cell.bold for cell in table.rows[1].cells)


def test_runs_that_kept_no_counts_have_the_metrics_of_the_paper_alone() -> None:
    table = overview(study(run("A", 0, 0.8, 0.1, 0.1)))
    assert [column.head for column in table.columns] == ["Algorithm", "Acc. ↑", "DPD ↓", "EOD ↓", "Seeds"]
    assert len(table.rows) == 1

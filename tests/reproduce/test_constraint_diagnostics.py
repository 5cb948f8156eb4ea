"""The largest dual and the largest negative share, and when they deserve a warning."""

from __future__ import annotations

from tests.reproduce.conftest import outcome

from ffalm.reproduce.constraint_diagnostics import diagnose, table, warning

CALM = [{"round": 1, "dual": -0.5, "negative_weight_share": 0.1}, {"round": 2, "dual": 0.2}]
WILD = [{"round": 1, "dual": 0.5}, {"round": 2, "dual": -17.6, "negative_weight_share": 1.0}]


def test_the_largest_dual_is_found_with_its_seed_and_round() -> None:
    found = diagnose([outcome(seed=0, history=CALM), outcome(seed=7, history=WILD)])
    assert (found.dual, found.dual_seed, found.dual_round) == (17.6, 7, 2)
    assert (found.past, found.runs, found.negative) == (1, 2, 1.0)
    shown = table({"": [("FFALM", found)]})
    texts = [column.text(cell) for column, cell in zip(shown.columns, shown.rows[0].cells, strict=True)]
    assert texts == ["FFALM", "17.6", "7", "2", "1 of 2", "100 %"]


def test_several_duals_count_by_the_largest() -> None:
    assert diagnose([outcome(history=[{"round": 1, "duals": [0.3, -0.9]}])]).dual == 0.9


def test_an_algorithm_without_a_dual_has_none() -> None:
    found = diagnose([outcome(history=[{"round": 1, "accuracy": 0.5}])])
    assert found.dual is None
    assert table({"": [("FedAvg", found)]}).rows[0].cells[1].value == "none"
    assert warning("FedAvg", found) is None


def test_a_dual_past_every_share_of_a_batch_is_warned_of() -> None:
    told = warning("FFALM (paper)", diagnose([outcome(seed=0, history=CALM), outcome(seed=7, history=WILD)]))
    assert told is not None
    assert "1 of 2 runs" in told
    assert "17.6, seed 7, round 2" in told
    assert warning("FFALM (safe)", diagnose([outcome(history=CALM)])) is None

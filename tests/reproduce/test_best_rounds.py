"""The last round and the best one, worked by hand."""

from __future__ import annotations

import math
from typing import Any

from tests.reproduce.conftest import outcome, study

from ffalm.report.rendering import to_csv, to_markdown
from ffalm.reproduce import best_rounds


def history(*figures: tuple[float, float, float]) -> list[dict[str, Any]]:
    names = ("accuracy", "dpd", "eod")
    return [{"round": number, **dict(zip(names, one, strict=True))} for number, one in enumerate(figures, 1)]


RISING = history((0.5, 0.3, 0.2), (0.75, 0.2, 0.1))
FALLING = history((0.75, 0.1, 0.3), (0.75, 0.4, 0.1), (0.25, 0.0, 0.0))


def test_the_best_round_is_the_first_of_the_most_accurate() -> None:
    run = outcome("FedAvg", history=FALLING)
    assert best_rounds.best_round(run) == FALLING[0]
    assert best_rounds.best_round(outcome("FedAvg", history=[{"round": 1}])) is None
    undefined = {"round": 1, "accuracy": math.nan}
    assert best_rounds.best_round(outcome("FedAvg", history=[undefined])) is None
    assert best_rounds.best_round(outcome("FedAvg", history=[undefined, *RISING])) == RISING[1]


def test_last_and_best_are_means_over_seeds() -> None:
    runs = study(outcome("FedAvg", seed=0, history=RISING), outcome("FedAvg", seed=1, history=FALLING))
    (found,) = best_rounds.last_and_best({"utkface": runs})
    assert found.last == {"accuracy": 0.5, "dpd": 0.1, "eod": 0.05}
    assert found.best == {"accuracy": 0.75, "dpd": 0.15000000000000002, "eod": 0.2}
    assert found.rounds == [2, 1]
    text = to_markdown(best_rounds.table([found], "title"))
    assert "| FedAvg | 50.00 | 75.00 | 10.00 | 15.00 | 5.00 | 20.00 | 1 to 2 |" in text
    assert "UTKFace" in text
    lines = to_csv(best_rounds.tidy([found])).splitlines()
    assert lines[:2] == ["data,algorithm,seeds,metric,last,best", "utkface,FedAvg,2,accuracy,50.0,75.0"]


def test_a_run_that_diverged_is_left_out_and_one_without_measurements_leaves_no_row() -> None:
    runs = study(outcome("FFALM", seed=0, history=RISING), outcome("FFALM", seed=1, history=FALLING, diverged="lost"))
    (found,) = best_rounds.last_and_best({"utkface": runs})
    assert (found.seeds, found.last["accuracy"]) == (1, 0.75)
    assert best_rounds.last_and_best({"utkface": study(outcome("FedAvg", history=[]))}) == []


def test_a_metric_that_was_not_measured_is_nan_and_never_zero() -> None:
    runs = study(outcome("FedAvg", history=[{"round": 1, "accuracy": 0.5, "dpd": None}]))
    (found,) = best_rounds.last_and_best({"utkface": runs})
    assert math.isnan(found.best["dpd"])
    assert math.isnan(found.last["eod"])
    assert "| undefined | undefined |" in to_markdown(best_rounds.table([found], "title"))
    assert "utkface,FedAvg,1,dpd,,\n" in to_csv(best_rounds.tidy([found]))


def test_machines_get_percent_in_json_as_in_the_csv() -> None:
    (found,) = best_rounds.last_and_best({"utkface": study(outcome("FedAvg", history=FALLING))})
    assert best_rounds.record(found) == {
        "data": "utkface",
        "label": "FedAvg",
        "last": {"accuracy": 25.0, "dpd": 0.0, "eod": 0.0},
        "best": {"accuracy": 75.0, "dpd": 10.0, "eod": 30.0},
        "rounds": [1],
        "seeds": 1,
    }

"""`Study`: the table, the data frame and the best algorithm of the runs in a folder."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffalm.errors import UserError
from ffalm.outcome import Outcome, StudyRecord
from ffalm.studies.results import Study


def run(label: str, seed: int, accuracy: float, dpd: float, alpha: float = 5.0, diverged: str | None = None) -> Outcome:
    test = {"accuracy": accuracy, "dpd": dpd, "eod": 0.1, "accuracy_parity": 0.02}
    return Outcome(label, label.lower(), seed, alpha, test, {}, [{"round": 1}], 1.5, diverged)


def study(*runs: Outcome) -> Study:
    return Study(StudyRecord("A / B on arrays", {}, {}, [], []), list(runs), Path("results"))


TWO = study(
    run("A", 0, 0.90, 0.20), run("A", 1, 0.92, 0.22), run("B", 0, 0.85, 0.04), run("B", 1, 0.87, 0.06)
)  # fmt: skip


def test_the_best_is_the_most_accurate_whose_mean_gap_is_within_the_bound() -> None:
    assert TWO.best().label == "A"
    best = TWO.best(subject_to={"dpd": 0.05})
    assert best.label == "B"
    assert best.means["accuracy"] == pytest.approx(0.86)
    assert [one.seed for one in best.runs] == [0, 1]
    assert TWO.best("dpd").label == "B"
    assert TWO.best("dpd", subject_to={"accuracy": 0.9}).label == "A"
    with pytest.raises(UserError, match=r"No algorithm meets dpd <= 0\.01"):
        TWO.best(subject_to={"dpd": 0.01})
    with pytest.raises(UserError, match="no test metric 'dp'"):
        TWO.best(subject_to={"dp": 0.01})


def test_of_the_gap_of_losses_the_size_counts_and_the_mean_keeps_its_sign() -> None:
    gaps = {"A": (-0.3, -0.1), "B": (0.1, -0.06)}
    found = study(
        *(
            replace(one, test={**one.test, "loss_gap": gap})
            for label, of_seed in gaps.items()
            for one, gap in ((run(label, seed, 0.9, 0.1), gap) for seed, gap in enumerate(of_seed))
        )
    )
    assert found.best("loss_gap").label == "B"
    assert found.best("loss_gap").means["loss_gap"] == pytest.approx(0.02)
    assert found.best(subject_to={"loss_gap": 0.09}).label == "B"
    with pytest.raises(UserError, match=r"No algorithm meets loss_gap <= 0\.05"):
        found.best(subject_to={"loss_gap": 0.05})


def test_an_algorithm_with_a_run_that_diverged_is_never_the_best() -> None:
    lost = study(*TWO.results, run("C", 0, 0.99, 0.0), run("C", 1, math.nan, math.nan, diverged="It diverged."))
    assert lost.best().label == "A"
    assert "1 diverged" in repr(lost)


def test_a_degenerate_algorithm_is_never_the_best_and_the_data_frame_says_why() -> None:
    everybody = [[[40.0, 40.0], [10.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]]
    collapsed = [replace(run("C", seed, 0.99, 0.0), confusion=everybody) for seed in (0, 1)]
    both = study(*TWO.results, *collapsed)
    assert both.best("dpd").label == "B"
    assert list(both.to_dataframe()["degenerate"])[-1] == "one label is predicted for over 99 % of the test rows"
    with pytest.raises(UserError, match="finished and sound"):
        study(*collapsed).best()


def test_a_study_of_several_skews_is_asked_at_one() -> None:
    several = study(*TWO.results, run("A", 0, 0.7, 0.1, alpha=1.0))
    with pytest.raises(UserError, match="several skews"):
        several.best()
    assert several.best(alpha=1.0).means["accuracy"] == 0.7
    with pytest.raises(UserError, match=r"has no alpha 7: its own are 5\.0, 1\.0"):
        several.best(alpha=7)


def test_the_table_is_that_of_the_report_in_every_form() -> None:
    assert "91.00" in TWO.table()
    assert "91.00" in TWO.table("markdown")
    assert r"\toprule" in TWO.table("latex")
    assert TWO.table("csv").startswith("alpha,algorithm,metric")


def test_a_data_frame_has_one_row_per_run() -> None:
    frame = TWO.to_dataframe()
    assert list(frame["label"]) == ["A", "A", "B", "B"]
    assert frame["accuracy"].mean() == pytest.approx(0.885)
    assert frame["diverged"].isna().all()


def test_a_study_is_shown_in_a_few_words() -> None:
    assert repr(TWO) == "Study(A / B on arrays: 4 runs, folder='results')"


def test_a_run_is_shown_without_its_history() -> None:
    """A notebook shows what `Study.best` gives, runs included."""
    assert repr(run("A", 3, 0.9, 0.2)) == "Outcome(A, alpha=5, seed=3, accuracy=0.9000, dpd=0.2000, eod=0.1000)"
    assert repr(run("A", 3, math.nan, 0.2, diverged="lost")).endswith("eod=0.1000, diverged)")
    assert "history" not in repr(TWO.best())


@pytest.mark.parametrize("run", [0, "fedavg", None])
def test_what_is_no_run_of_a_study_is_refused(run: Any) -> None:
    for asked in (study().scores, study().client_scores, study().blind_model):
        with pytest.raises(UserError, match=r"Give a run of this study"):
            asked(run)


def test_unknown_settings_of_an_answer_are_refused_and_not_taken_for_none() -> None:
    with pytest.raises(UserError, match="There is no repair 3"):
        study().answer(repair=3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="There is no scope of a target ''"):
        study().answer(scope="")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="The target '' is not understood"):
        study().answer("")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda: TWO.table("html"), "no style of a table 'html'"),  # type: ignore[arg-type]
        (lambda: TWO.table(width="x"), "width of a table is a number"),  # type: ignore[arg-type]
        (lambda: TWO.best(np.array([1, 2])), "no test metric array"),  # type: ignore[arg-type]
        (lambda: TWO.best(subject_to=3), "bounds are a dict"),  # type: ignore[arg-type]
        (lambda: TWO.best(subject_to={"dpd": "x"}), "bound of dpd must be a number"),  # type: ignore[dict-item]
        (lambda: TWO.best(alpha=np.array([1, 2])), "alpha must be a number"),  # type: ignore[arg-type]
        (lambda: TWO.plot(None), "no test metric None"),  # type: ignore[arg-type]
        (lambda: TWO.write_report("/dev/full"), "is a file: name a folder"),
        (lambda: Study.load("x" * 5000), "cannot be used: file name too long"),
    ],
)
def test_what_a_study_cannot_be_asked_is_refused(asked: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        asked()

"""The learning rate of a user's own table is chosen on held-out rows, and nowhere else."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffalm
from ffalm.fairness import ScoreHistogram
from ffalm.run_settings import Privacy, RunSettings, Training
from ffalm.studies import learning_rate
from ffalm.studies.learning_rate import choose_rate
from ffalm.studies.results import Study

COLUMNS: dict[str, Any] = {"label": "paid", "group": "sex", "favourable": "yes"}


def many_codes(rows: int = 2000) -> pd.DataFrame:
    """Outcomes that depend on sixty rare codes, which few small steps do not learn."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 60, rows)
    good = rng.random(rows) < np.where(np.random.default_rng(1).random(60) < 0.5, 0.15, 0.85)[code]
    sex = np.where(rng.random(rows) < 0.5, "f", "m")
    return pd.DataFrame({"code": [f"c{one}" for one in code], "sex": sex, "paid": np.where(good, "yes", "no")})


def one_number(rows: int = 2000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    good = rng.random(rows) < 1 / (1 + np.exp(-2 * x))
    return pd.DataFrame(
        {"x": x, "sex": np.where(rng.random(rows) < 0.5, "f", "m"), "paid": np.where(good, "yes", "no")}
    )


def settings(**training: Any) -> RunSettings:
    return RunSettings(training=Training(rounds=10, **training))


def test_a_table_that_the_usual_rate_does_not_learn_gets_a_larger_one() -> None:
    federation = ffalm.load(many_codes(), **COLUMNS)
    found = choose_rate(federation, settings(), 0)
    assert found.lr > 0.05
    assert found.auc[found.lr] > found.auc[0.05] + 0.02
    assert f"The learning rate {found.lr:g} was chosen" in found.note


def test_a_table_that_it_learns_keeps_it() -> None:
    found = choose_rate(ffalm.load(one_number(), **COLUMNS), settings(), 0)
    assert found.lr == 0.05
    assert list(found.auc) == [0.05, 0.2]  # a rate that does not help ends the trial
    assert "0.05 was chosen, the smallest that ranks held-out rows about as well as the best" in found.note


@pytest.mark.parametrize(
    "shared",
    [settings(optimizer="adam"), RunSettings(privacy=Privacy(noise=1.0))],
    ids=["another optimizer", "a privacy budget"],
)
def test_nothing_is_tried_where_a_trial_costs_or_means_something_else(shared: RunSettings) -> None:
    found = choose_rate(ffalm.load(many_codes(400), **COLUMNS), shared, 0)
    assert (found.lr, found.auc, found.note) == (0.05, {}, "")


def test_pictures_are_not_tried() -> None:
    rng = np.random.default_rng(0)
    part = (rng.random((40, 1, 4, 4)).astype("float32"), rng.integers(0, 2, 40), rng.integers(0, 2, 40))
    federation = ffalm.Federation.from_arrays([part], validation=part, test=part)
    assert choose_rate(federation, settings(), 0).auc == {}


def test_a_rate_at_which_training_diverges_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = learning_rate._held_out_scores

    def diverging(federation: object, shared: object, seed: int, rate: float) -> ScoreHistogram | None:
        return usual(federation, shared, seed, rate) if rate < 0.5 else None  # type: ignore[arg-type]

    monkeypatch.setattr(learning_rate, "_held_out_scores", diverging)
    found = choose_rate(ffalm.load(many_codes(), **COLUMNS), settings(), 0)
    assert (found.lr, list(found.auc)) == (0.2, [0.05, 0.2])


def test_the_standard_error_is_that_of_hanley_and_mcneil() -> None:
    counts = torch.zeros(512, 1, 2, 1, dtype=torch.int64)
    counts[100, 0, 0, 0], counts[200, 0, 1, 0] = 2, 1  # below: two unfavourable rows, one favourable
    counts[50, 0, 1, 0], counts[300, 0, 0, 0] = 1, 0
    scores = ScoreHistogram(counts)
    assert scores.auc() == 0.5
    # A = 1/2: q1 = A / (2 - A) = 1/3, q2 = 2 A^2 / (1 + A) = 1/3; n+ = n- = 2:
    # (1/4 + (1/3 - 1/4) + (1/3 - 1/4)) / 4 = 5/48
    assert learning_rate._standard_error(scores) == pytest.approx((5 / 48) ** 0.5)


def test_compare_chooses_for_tables_without_lr_and_says_so() -> None:
    candidates = {"fedavg": "fedavg"}
    study = ffalm.compare(many_codes(), candidates, seeds=1, rounds=10, **COLUMNS)
    lr = float(study.outcome.choices["training: lr"])
    assert lr > 0.05
    assert any(f"The learning rate {lr:g} was chosen" in note for note in study.answer().notes)
    stated = ffalm.compare(many_codes(), candidates, seeds=1, rounds=10, lr=0.05, **COLUMNS)
    assert stated.outcome.choices["training: lr"] == "0.05"
    untargeted = ffalm.compare(many_codes(), candidates, seeds=1, rounds=10, target=None, **COLUMNS)
    assert untargeted.outcome.choices["training: lr"] == "0.05"


def test_named_data_and_federations_keep_the_papers_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.studies.study.choose_rate", None)  # a call would raise
    federation = ffalm.load(many_codes(400), **COLUMNS)
    for data in ("census", federation):
        study = ffalm.compare(data, ["fedavg"], seeds=1, rounds=1)
        assert study.outcome.choices["training: lr"] == "0.05"


def test_fair_chooses_and_says_so() -> None:
    federation = ffalm.load(many_codes(), **COLUMNS)
    answer = ffalm.fair(federation, algorithms=["fedavg"], rounds=10)
    assert any("The learning rate" in note for note in answer.notes)
    stated = ffalm.fair(federation, algorithms=["fedavg"], rounds=10, lr=0.05)
    assert not any("The learning rate" in note for note in stated.notes)
    assert answer.test["accuracy"] > stated.test["accuracy"] + 0.02


def test_a_resumed_study_keeps_the_rate_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many_codes().to_csv(tmp_path / "loans.csv", index=False)

    def compared(resume: bool) -> Study:
        table, out = tmp_path / "loans.csv", tmp_path / "study"
        return ffalm.compare(table, ["fedavg"], seeds=1, rounds=10, out=out, resume=resume, **COLUMNS)

    before = compared(False)
    assert before.outcome.choices["training: lr"] != "0.05"
    monkeypatch.setattr("ffalm.studies.study.choose_rate", None)  # a second trial would raise
    after = compared(True)
    assert after.record.answer_notes == before.record.answer_notes != ()
    assert after.outcome.choices["training: lr"] == before.outcome.choices["training: lr"]

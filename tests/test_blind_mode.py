"""`ffalm.blind`: a model repaired without the group at prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffalm
from ffalm import blind_mode
from ffalm.blind_mode import GroupModel
from ffalm.errors import UserError
from ffalm.models.mlp import MLP

SETTINGS: dict[str, Any] = {"rounds": 4, "engine": "stacked", "device": "cpu", "lr": 0.2}
IGNORED = pytest.mark.filterwarnings("ignore:Accuracy falls")
Trained = tuple[ffalm.Federation, ffalm.Result, GroupModel]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """The census without sex among its features: a model, and a model of the groups."""
    federation = ffalm.load("census", rows=4000, use_group_as_feature=False, clients=2)
    result = ffalm.simulate("fedavg", federation, **SETTINGS)
    return federation, result, ffalm.group_model(federation, **SETTINGS)


@IGNORED
def test_demographic_parity_improves_and_both_scores_are_told(trained: Trained) -> None:
    federation, result, groups = trained
    answer = ffalm.blind(result, federation, "dpd <= 0.05", groups=groups, confidence=0.5, **SETTINGS)
    assert answer.before["dpd"] == pytest.approx(result.test["dpd"])
    assert answer.before["accuracy"] == pytest.approx(result.test["accuracy"])
    assert answer.held_out.metrics["dpd"] <= 0.05
    assert answer.after["dpd"] < answer.before["dpd"] - 0.03
    assert answer.cost == answer.before["accuracy"] - answer.after["accuracy"]
    assert answer.verdict in ("met with confidence", "met in the sample", "not met")
    assert "dpd 0." in repr(answer)
    told = answer.explain()
    assert told.startswith("dpd <= 0.05: ")
    before, after = (100 * scores["accuracy"] for scores in (answer.before, answer.after))
    assert f"On test rows accuracy {before:.1f} -> {after:.1f} %" in told


@IGNORED
def test_without_test_rows_a_blind_rule_is_never_met_with_confidence(trained: Trained) -> None:
    federation, result, groups = trained
    untested = replace(federation, test=None)
    answer = ffalm.blind(result, untested, "dpd <= 0.9", groups=groups, confidence=0.5, **SETTINGS)
    assert answer.after_scores.ends["dpd"] < 0.9
    assert answer.verdict == "met in the sample"
    run = answer.candidate_run(0, ".")
    assert run.test is None and run.scored == answer.after_scores


@IGNORED
def test_predictions_are_those_that_were_scored_and_need_no_group(trained: Trained) -> None:
    federation, result, groups = trained
    answer = ffalm.blind(result, federation, "eod <= 0.05", groups=groups, **SETTINGS)
    test = federation.test
    assert test is not None
    predicted = answer.decide(test.x.numpy())
    assert answer.predict(test.x).tolist() == [federation.task.label_names[code] for code in predicted.tolist()]
    assert ffalm.metrics.tally(test.y, predicted, test.group).eod() == pytest.approx(answer.after["eod"])
    from_weights = ffalm.blind(result.state_dict, federation, "eod <= 0.05", groups=groups, **SETTINGS)
    assert torch.equal(from_weights.decide(test.x), predicted)
    moved = replace(federation, test=replace(test, group=1 - test.group))
    other = ffalm.blind(result, moved, "eod <= 0.05", groups=groups, **SETTINGS)
    assert torch.equal(other.decide(test.x), predicted)
    with pytest.raises(UserError, match="takes rows of shape"):
        answer.predict(np.zeros((2, 3)))


@IGNORED
def test_the_groups_are_told_by_features_in_part(trained: Trained) -> None:
    federation, result, groups = trained
    assert 0.6 < groups.accuracy < 0.99
    assert federation.test is not None
    cells = groups.cells(federation.test.x)
    assert cells.shape == (len(federation.test), 2, 2)
    assert torch.allclose(cells.sum((1, 2)), torch.ones(len(cells), dtype=torch.float64))
    notes = ffalm.blind(result, federation, groups=groups, **SETTINGS).notes
    assert notes == (f"The features reveal the group of {100 * groups.accuracy:.0f} % of the held-out rows.",)


def test_features_that_tell_the_group_are_named() -> None:
    draws = np.random.default_rng(0)

    def arrays(rows: int) -> tuple[Any, Any, Any]:
        group = draws.integers(0, 2, rows)
        y = (draws.random(rows) < 0.2 + 0.6 * group).astype(int)
        return np.stack([4.0 * group - 2, draws.normal(size=rows)], 1), y, group

    federation = ffalm.Federation.from_arrays([arrays(300), arrays(300)], validation=arrays(300), test=arrays(300))
    result = ffalm.simulate("fedavg", federation, **SETTINGS)
    with pytest.warns(UserWarning, match="Accuracy falls by"):
        answer = ffalm.blind(result, federation, "dpd <= 0.02", **SETTINGS)
    assert "use_group_as_feature=False" in " ".join(answer.notes)
    assert answer.warning.startswith("Accuracy falls by")
    assert answer.after["dpd"] < 0.2 < answer.before["dpd"]


def test_what_cannot_be_repaired_is_refused(trained: Trained) -> None:
    federation, result, groups = trained
    with pytest.raises(UserError, match="held-out rows"):
        ffalm.blind(result, replace(federation, validation=None), groups=groups, **SETTINGS)
    with pytest.raises(UserError, match="with which it was trained"):
        ffalm.blind(result, federation, groups=groups, **{**SETTINGS, "model": MLP(hidden=(8,))})


@IGNORED
def test_a_federation_without_test_rows_is_judged_on_held_out_rows(trained: Trained) -> None:
    federation, result, groups = trained
    answer = ffalm.blind(result, replace(federation, test=None), groups=groups, confidence=0.5, **SETTINGS)
    assert answer.after == pytest.approx(answer.held_out.metrics, nan_ok=True)
    assert "On held-out rows accuracy" in answer.explain()


@IGNORED
def test_a_studys_run_is_repaired_with_its_own_settings(trained: Trained, tmp_path: Path) -> None:
    federation, _, groups = trained
    study = ffalm.compare(federation, "fedavg", seeds=1, out=tmp_path / "study", target="eod <= 0.05", **SETTINGS)
    answer = study.blind(study.results[0], groups=groups, federation=federation)
    assert str(answer.target) == "eod <= 0.05"
    assert answer.before["accuracy"] == pytest.approx(study.results[0].test["accuracy"])
    with pytest.raises(UserError, match="data"):
        study.blind(study.results[0], groups=groups)


def test_blind_answers_are_of_the_federation_that_trained_all_runs(trained: Trained, tmp_path: Path) -> None:
    federation = trained[0]
    other = replace(federation, validation=federation.test, test=federation.validation)
    settings = {**SETTINGS, "rounds": 1, "target": "eod <= 0.05", "repair": "blind", "out": tmp_path / "study"}
    study = ffalm.compare([federation, other], "fedavg", seeds=2, **settings)
    for one in (federation, other):
        with pytest.raises(UserError, match="not all computed on the federation given"):
            study.answer(federation=one)


@IGNORED
def test_a_run_is_repaired_on_its_own_federation_alone(trained: Trained, tmp_path: Path) -> None:
    federation, _, groups = trained
    other = replace(federation, validation=federation.test, test=federation.validation)
    settings = {**SETTINGS, "rounds": 1, "target": "eod <= 0.05"}
    alone = ffalm.compare(federation, "fedavg", seeds=1, out=tmp_path / "alone", **settings)
    with pytest.raises(UserError, match="not the one on which this run was computed"):
        alone.blind(alone.results[0], groups=groups, federation=other)
    several = ffalm.compare([federation, other], "fedavg", seeds=2, out=tmp_path / "several", **settings)
    models = [several.blind_model(several.results[1], one) for one in (federation, other, other)]
    assert models[0].groups is not models[1].groups and models[1].groups is models[2].groups


@pytest.fixture(scope="module")
def fair_and_blind(trained: Trained) -> ffalm.FairAnswer:
    """FedAvg alone among the candidates: without thresholds by group its gap of 10 points stays."""
    return ffalm.fair(trained[0], "dpd <= 0.02", algorithms=["fedavg"], repair="blind", confidence=0.5, **SETTINGS)


def test_a_blind_rule_is_a_candidate_of_the_answer(fair_and_blind: ffalm.FairAnswer) -> None:
    assert [one.kind for one in fair_and_blind.candidates] == ["none", "accurate", "single", "blind"]
    assert fair_and_blind.chosen.kind == "blind"
    assert fair_and_blind.best.validation.metrics["dpd"] <= 0.02
    told = fair_and_blind.explain()
    assert "FedAvg, blind rule: accuracy" in told
    assert "Blind rule on FedAvg, seed 0: dpd <= 0.02: " in told
    assert "The features reveal the group of" in told


def test_a_chosen_blind_rule_predicts_what_was_scored(trained: Trained, fair_and_blind: ffalm.FairAnswer) -> None:
    test = trained[0].test
    assert test is not None
    predicted = fair_and_blind.decide(test.x)
    assert ffalm.metrics.tally(test.y, predicted, test.group).dpd() == pytest.approx(fair_and_blind.test["dpd"])
    assert torch.equal(fair_and_blind.decide(test.x, 1 - test.group), predicted)


def test_a_chosen_blind_rule_is_saved_with_the_model_of_the_groups(
    trained: Trained, fair_and_blind: ffalm.FairAnswer, tmp_path: Path
) -> None:
    test = trained[0].test
    assert test is not None
    saved = ffalm.load_model(fair_and_blind.save(tmp_path / "model"))
    assert torch.equal(saved.decide(test.x.numpy()), fair_and_blind.decide(test.x))
    assert saved.facts is not None and saved.facts.verdict == fair_and_blind.verdict
    assert saved.facts.part == "test"


@IGNORED
def test_a_study_on_disk_answers_blindly_and_trains_one_model_of_the_groups_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_for = []
    original = blind_mode.group_model

    def counted(federation: ffalm.Federation, **settings: Any) -> GroupModel:
        trained_for.append(settings["seed"])
        return original(federation, **settings)

    monkeypatch.setattr(blind_mode, "group_model", counted)
    data = {"rows": 1000, "use_group_as_feature": False}
    study = ffalm.compare("census", ["fedavg", "fpfl"], seeds=2, clients=2, data_settings=data, out=tmp_path / "study",
                          target="eod <= 0.03", repair="blind", **{**SETTINGS, "rounds": 2})  # fmt: skip
    (answer,) = study.outcome.answers
    assert sorted(trained_for) == [0, 1]
    assert sum(one.kind == "blind" for one in answer.candidates) == 2
    assert any(note.startswith("Blind rule on ") for note in answer.notes)
    with pytest.raises(UserError, match="blind rule applies to all sites alike"):
        study.answer(scope="sites")


def test_a_rule_that_reaches_nothing_is_told(trained: Trained) -> None:
    federation, result, groups = trained
    with pytest.warns(UserWarning, match="No rule is within dpd <= 0.0001"):
        answer = ffalm.blind(result, federation, "dpd <= 0.0001", groups=groups, confidence=0.99, **SETTINGS)
    assert answer.warning in answer.explain()


def test_a_model_function_of_ones_own_needs_one_for_the_groups(trained: Trained) -> None:
    federation, result, _ = trained
    width = federation.first_rows(1).x.shape[1]
    own: dict[str, Any] = {**SETTINGS, "rounds": 1, "model": lambda: MLP().build((width,), 2)}
    with pytest.raises(UserError, match="one logit per label"):
        ffalm.group_model(federation, **own)
    groups = ffalm.group_model(federation, **{**own, "model": lambda: MLP(hidden=()).build((width,), 4)})
    answer = ffalm.blind(result, federation, "dpd <= 0.5", groups=groups, **own)
    assert answer.before["accuracy"] == pytest.approx(result.test["accuracy"])


@IGNORED
def test_rows_of_unknown_group_are_scored_and_not_compared() -> None:
    draws = np.random.default_rng(1)

    def arrays(rows: int) -> tuple[Any, Any, Any]:
        group = draws.integers(0, 2, rows)
        y = (draws.random(rows) < 0.3 + 0.3 * group).astype(int)
        x = np.stack([y + draws.normal(size=rows), group + draws.normal(size=rows)], 1)
        return x, y, np.where(draws.random(rows) < 0.2, -1, group)

    federation = ffalm.Federation.from_arrays([arrays(400)] * 2, arrays(400), arrays(400), unknown=-1)
    result = ffalm.simulate("fedavg", federation, **SETTINGS)
    answer = ffalm.blind(result, federation, "dpd <= 0.05", confidence=0.5, **SETTINGS)
    for name in ("accuracy", "dpd", "eod"):
        assert answer.before[name] == pytest.approx(result.test[name])
    assert answer.held_out.metrics["dpd"] <= 0.05
    assert bool((answer.rule.weights[:, 2] == 0).all())
    test = federation.test
    assert test is not None
    predicted, known = answer.decide(test.x), test.group < 2
    assert float((predicted == test.y).double().mean()) == pytest.approx(answer.after["accuracy"])
    of_known = ffalm.metrics.tally(test.y[known], predicted[known], test.group[known])
    assert of_known.dpd() == pytest.approx(answer.after["dpd"])
    assert answer.group_model.accuracy > 0.55  # of rows whose group is known


def test_what_is_no_federation_or_model_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="Give a Federation"):
        ffalm.group_model([1])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Give a Result or the weights"):
        ffalm.blind(3, trained[0])  # type: ignore[arg-type]

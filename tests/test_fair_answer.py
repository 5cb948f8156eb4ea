"""`ffalm.fair` and a study's answer, end to end on generated rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ffalm
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.metrics import tally


@pytest.fixture(scope="module")
def federation() -> Federation:
    return ffalm.load("census", clients=3, alpha=1.0, seed=0, rows=6000)


@pytest.fixture(scope="module")
def answer(federation: Federation) -> ffalm.FairAnswer:
    return ffalm.fair(federation, "dpd <= 0.1", seed=0, rounds=4, algorithms=["fedavg", "lagrangian"])


def test_predict_gives_the_test_metrics(federation: Federation, answer: ffalm.FairAnswer) -> None:
    assert federation.test is not None
    predicted = answer.decide(federation.test.x, federation.test.group)
    found = tally(federation.test.y, predicted, federation.test.group).metrics()
    assert {name: found[name] for name in ("accuracy", "dpd", "eod")} == pytest.approx(
        {name: answer.test[name] for name in ("accuracy", "dpd", "eod")}
    )
    names = [federation.task.label_names[code] for code in predicted.tolist()]
    assert answer.predict(federation.test.x, federation.test.group).tolist() == names
    assert answer.verdict in ("met with confidence", "met in the sample", "not met")
    assert {one.label for one in answer.candidates} == {"FedAvg", "Lagrangian"}


def test_without_test_rows_answer_and_card_claim_no_confidence(federation: Federation) -> None:
    """A target that any model meets: only test rows are missing."""
    untested = replace(federation, test=None)
    answer = ffalm.fair(untested, "dpd <= 0.9", seed=0, rounds=1, algorithms=["fedavg"], confidence=0.5)
    assert answer.scored.ends["dpd"] < 0.9 and answer.test == answer.bounds == {}
    facts = answer.model.facts
    assert facts is not None and facts.part == "validation"
    assert answer.verdict == facts.verdict == "met in the sample"
    assert "There are no test rows" in answer.explain() and "met with confidence." in answer.explain()


def test_groups_may_be_given_by_name_and_unknown_ones_get_the_single_threshold(
    federation: Federation, answer: ffalm.FairAnswer
) -> None:
    assert federation.test is not None
    rows = federation.test.take(torch.arange(200))
    names = [federation.task.group_names[group] for group in rows.group.tolist()]
    assert torch.equal(answer.decide(rows.x, names), answer.decide(rows.x, rows.group))
    assert torch.equal(answer.decide(rows.x, ["?", *names[1:]])[:1], answer.decide(rows.x)[:1])
    with pytest.raises(UserError, match="none is a group of this model"):
        answer.decide(rows.x, ["?"] * 200)
    with pytest.raises(UserError, match="one group per row"):
        answer.predict(rows.x, names[:3])


def test_new_rows_must_be_like_those_trained_on(federation: Federation, answer: ffalm.FairAnswer) -> None:
    """A table's bytes are numbers: as pixels they would be divided by 255."""
    assert federation.test is not None
    whole = federation.test.x[:50].round().clamp(0, 9)
    assert torch.equal(answer.decide(whole.to(torch.uint8)), answer.decide(whole))
    with pytest.raises(UserError, match="takes rows of shape"):
        answer.predict(whole[:, 1:])


def test_the_answer_is_told_in_sentences(answer: ffalm.FairAnswer) -> None:
    assert repr(answer).startswith("FairAnswer(dpd <= 0.1: ") and "accuracy=0." in repr(answer)
    untested = replace(answer, best=replace(answer.best, test=None))
    assert repr(untested).endswith(f", {answer.chosen.label}, {answer.chosen.kind})")
    assert answer.explain().splitlines()[0].startswith(answer.chosen.label)


def test_a_federation_without_held_out_rows_is_refused() -> None:
    part = (torch.randn(20, 2), torch.arange(20) % 2, torch.arange(20) // 2 % 2)
    with pytest.raises(UserError, match="give it a validation part"):
        ffalm.fair(Federation.from_arrays([part, part], test=part))
    with pytest.raises(UserError, match="Give a Federation"):
        ffalm.fair("census")  # type: ignore[arg-type]


def test_no_algorithms_are_not_the_usual_ones(federation: Federation) -> None:
    with pytest.raises(UserError, match="at least one algorithm"):
        ffalm.fair(federation, "dpd <= 0.1", algorithms=[], rounds=1, lr=0.5)


def test_any_target_can_be_asked_of_a_finished_study(federation: Federation, tmp_path: Path) -> None:
    study = ffalm.compare(federation, ["fedavg"], seeds=2, rounds=3, out=tmp_path / "study", target="eod <= 0.2")
    assert study.outcome.answers[0].target == ffalm.Target.parse("eod <= 0.2")
    loose, strict = study.answer("dpd <= 0.9", repair="none"), study.answer("dpd <= 0.01", repair="groups")
    assert loose.chosen.kind == "none"
    assert strict.chosen.kind == "groups"
    study.write_report()
    written = json.loads((tmp_path / "study" / "answer.json").read_text(encoding="utf-8"))["answers"][0]
    assert written["target"] == "eod <= 0.2"
    assert (tmp_path / "study" / written["run"] / "model.safetensors").exists()
    assert "The answer" in (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="no margin"):
        study.answer(confidence=1.5)


def test_the_target_changes_no_run(federation: Federation, tmp_path: Path) -> None:
    study = ffalm.compare(federation, ["fedavg"], seeds=1, rounds=2, out=tmp_path / "study", target=None)
    assert study.outcome.answers == []
    assert not (tmp_path / "study" / "answer.json").exists()

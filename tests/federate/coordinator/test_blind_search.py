"""A blind rule over real sites: the simulation's, from sums of counts, open and secure."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.federate.makers import (
    NAMES,
    Killed,
    Simulated,
    World,
    config,
    exchange_keys,
    people,
    site_folder,
)

from ffalm import load_model
from ffalm.blind_mode import BlindAnswer, BlindModel, group_model
from ffalm.engines.remote.message import Fact, Failure, Kind, Message
from ffalm.errors import PublicError, UserError
from ffalm.federate.answer_ledger import AnswerLedger
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federated_audit import AuditRequest, audit_config
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.site.answering import answer
from ffalm.federation import Federation
from ffalm.report.answer_report import sentences
from ffalm.simulation import RunKeywords, rebuilt, simulate
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder
from ffalm.targets.blind import directions, fine_steps
from ffalm.targets.target import Target

TARGET = "dpd <= 0.1"
ROWS = (200, 150, 180)
SETTINGS: RunKeywords = {"rounds": 1, "batch_size": 16, "lr": 0.5, "engine": "loop", "device": "cpu"}


def plan(**sections: Any) -> FederationConfig:
    base = {
        "target": TARGET, "repair": "blind", "confidence": 0.5, "algorithm": {"name": "fedavg"},
        "training": {"rounds": 1, "lr": 0.5}, "model": {"name": "linear"}, "data": {"use_group_as_feature": False},
    }  # fmt: skip
    return config(**{**base, **sections})


def sites_of(root: Path, rows: tuple[int, ...] = ROWS) -> Counted:
    folders = {
        name: site_folder(root / "sites", name, telling(people(size, seed)))
        for seed, (name, size) in enumerate(zip(NAMES, rows, strict=False))
    }
    exchange_keys(folders)
    return Counted(folders)


def telling(frame: pd.DataFrame) -> pd.DataFrame:
    """People of whom a feature tells the group."""
    male = frame["sex"] == "male"
    frame["hours"] += 12.0 * male
    frame.loc[male & (frame["age"] > 30), "loan"] = "yes"
    return frame


class Counted(World):
    """A world that keeps what sites answer to the questions of a search, and in which one may be lost there."""

    def __init__(self, folders: dict[str, Path]) -> None:
        super().__init__(folders)
        self.seen: list[tuple[str, Message, Message]] = []
        self.trained: list[Message] = []  # answers to rounds of the model of the groups
        self.lost: tuple[str, int] | None = None  # a site, from which of its counts on

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        searching = kind == "score" and message.facts.get("of") == "groups"
        if searching and self.lost is not None and name == self.lost[0]:
            self.lost = (name, self.lost[1] - 1)
            if self.lost[1] < 0:
                return Failure("lost", "The site's connection was lost.")
        found = super()._answer(kind, name, message)
        if searching and isinstance(found, Message):
            self.seen.append((name, message, found))
        if kind == "train" and "of" in message.facts and isinstance(found, Message):
            self.trained.append(found)
        return found


def led(asked: FederationConfig, run: Path, sites: World) -> Path:
    coordinate(asked, run, sites, pause=0.001)
    return run


def rules(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "blind.json").read_text())["rules"]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counted, FederationConfig]:
    root, asked = tmp_path_factory.mktemp("blind"), plan()
    sites = sites_of(root)
    return led(asked, root / "run", sites), sites, asked


def simulated(asked: FederationConfig, sites: World, run: Path, names: tuple[str, ...] = NAMES[:3]) -> Federation:
    """The federation of the same rows; held-out rows of the named sites alone."""
    same = Simulated(asked, sites.folders, run)
    clients = tuple(own["train"] for own in same.parts)
    chosen = [asked.sites.index(name) for name in names]
    return Federation(clients, same.pooled("validation", chosen), same.pooled("test", chosen), same.agreement.task)


@pytest.fixture(scope="module")
def expected(finished: tuple[Path, Counted, FederationConfig]) -> BlindAnswer:
    run, sites, asked = finished
    federation = simulated(asked, sites, run)
    return fitted(federation, asked)


def fitted(federation: Federation, asked: FederationConfig) -> BlindAnswer:
    settings: RunKeywords = {**SETTINGS, "model": asked.model}
    result = simulate("fedavg", federation, seed=asked.seed, **settings)
    groups = group_model(federation, seed=asked.seed, **settings)
    network = rebuilt(result.state_dict, federation, settings)
    return BlindModel(network, groups, federation).fit(Target.parse(TARGET), 0.5)


def test_the_rule_is_that_of_a_simulation_over_the_same_rows(
    finished: tuple[Path, Counted, FederationConfig], expected: BlindAnswer
) -> None:
    run, _, _ = finished
    found = RunFolder(run).blind_rules().judged(Target.parse(TARGET), 0.5)
    assert torch.equal(found.rule.weights, expected.rule.weights) and bool(found.rule.weights.any())
    assert found.rule.offset == expected.rule.offset
    for name in ("before_scores", "after_scores", "held_out"):
        assert repr(getattr(found, name)) == repr(getattr(expected, name))  # NaN equals itself
    assert (found.warning, found.notes) == (expected.warning, expected.notes)


def test_a_secure_federation_waits_for_a_site_that_leaves_the_search_and_finds_the_open_ones_rule(
    finished: tuple[Path, Counted, FederationConfig], tmp_path: Path
) -> None:
    sites, asked = Counted(finished[1].folders), plan(rules={"secure": True})
    sites.lost = ("west", 1)
    with pytest.raises(UserError, match="Only 2 of the 3 sites"):
        led(asked, tmp_path / "run", sites)
    sites.lost = None
    assert rules(led(asked, tmp_path / "run", sites)) == rules(finished[0])
    assert sites.seen and all(answered.tensors.keys() == {"masked"} for _, _, answered in sites.seen)
    assert not any((folder / ".secure").exists() for folder in sites.folders.values())


def test_the_answer_tells_the_rules_figures_and_what_speaks_against_it(
    finished: tuple[Path, Counted, FederationConfig], expected: BlindAnswer
) -> None:
    run, _, _ = finished
    told = Study.load(run).answer()
    assert {one.kind for one in told.candidates} == {"none", "accurate", "single", "blind"}
    assert any(expected.figures() in note for note in told.notes)
    assert expected.notes[0] in " ".join(sentences(told))
    assert expected.figures() in (run / "report.md").read_text()


def test_the_folders_model_predicts_by_the_rule_and_can_be_saved(
    finished: tuple[Path, Counted, FederationConfig], tmp_path: Path, expected: BlindAnswer
) -> None:
    run, sites, asked = finished
    study = Study.load(run)
    assert study.answer().chosen.kind == "blind"
    study._write_repairs()  # as `ffalm report` does
    found = load_model(run)
    test = simulated(asked, sites, run).test
    assert test is not None and found.rule is not None
    assert torch.equal(found.decide(test.x.numpy()), expected.decide(test.x))
    assert found.facts is not None and found.facts.counts == rules(run)[0]["test"]
    again = load_model(found.save(tmp_path / "saved"))
    assert torch.equal(again.decide(test.x.numpy()), expected.decide(test.x)) and "blind rule" in again.card()
    with pytest.raises(UserError, match="takes two models"):
        again.to_onnx(tmp_path / "model.onnx")
    with pytest.raises(UserError, match="audit that column"):
        audit_config(asked, AuditRequest(model=str(run)), found)


def test_where_no_test_row_is_told_the_rule_is_judged_on_the_rows_of_its_fit_without_confidence(
    finished: tuple[Path, Counted, FederationConfig],
) -> None:
    stored = RunFolder(finished[0]).blind_rules()
    untested = replace(stored, rules=tuple(replace(one, test=None) for one in stored.rules))
    fitted = stored.rules[0].fitted
    found, told = stored.tally(fitted.rule), untested.tally(fitted.rule)
    assert found is not None and told is not None
    assert found[0] == "test" and told == ("validation", fitted.tally)
    loose = replace(untested.judged(stored.target, fitted.level), target=Target.parse("dpd <= 0.9"))
    assert loose.part == "validation" and loose.verdict == "met in the sample"


def test_only_its_own_target_and_confidence_have_a_rule(finished: tuple[Path, Counted, FederationConfig]) -> None:
    study = Study.load(finished[0])
    assert study.answer("eod <= 0.2", repair="single").candidates
    for other in ({"target": "eod <= 0.2"}, {"confidence": 0.9}):
        with pytest.raises(UserError, match=r"within dpd <= 0.1, at the confidence of its federation.toml"):
            study.answer(**other)
    with pytest.raises(UserError, match="stay at its sites"):
        study.blind(study.results[0])


def test_small_cells_are_in_no_count_and_a_site_without_histograms_counts_nothing(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    file = sites.folders["south"] / "site.toml"
    replace(SiteConfig.read(file), histograms=False).write(file)
    sites.mishaps = {("south", 1): "late"}
    run = led(plan(rules={"min_group": 3}), tmp_path / "run", sites)
    assert {name for name, _, _ in sites.seen} == {"north", "west"}
    missed = "Training of the model of the groups: The site 'south' missed 1 round of 1: 1."
    assert missed in (run / "report.md").read_text()
    told = {site["name"]: site for site in json.loads((run / "sites.json").read_text())["sites"]}
    hidden = 0
    for name, asked, answered in sites.seen:
        part = str(asked.facts.get("part", "validation"))
        small = torch.tensor(told[name]["rows"][f"{part}.withheld"])
        assert not bool(answered.tensors["counts"]["rows"][..., small].any())
        hidden += int(small.sum())
    assert hidden
    rows = [torch.tensor(told[name]["rows"]["validation"]).sum() for name in ("north", "west")]
    assert torch.tensor(rules(run)[0]["validation"]).sum() == sum(rows)


def test_the_rounds_of_the_model_of_the_groups_tell_of_no_held_out_row(
    finished: tuple[Path, Counted, FederationConfig],
) -> None:
    assert len(finished[1].trained) == 3
    for one in finished[1].trained:
        assert one.tensors.keys() == {"model", "validation"}
        assert bool(one.tensors["validation"]["withheld"].all())
        assert not any(bool(one.tensors["validation"][name].any()) for name in ("confusion", "loss"))


def test_a_coordinator_that_was_killed_comes_to_the_same_rule(
    finished: tuple[Path, Counted, FederationConfig], tmp_path: Path
) -> None:
    sites = Counted(finished[1].folders)
    sites.kill = ("after", len(finished[1].asked) - 2)  # at a question of the search
    with pytest.raises(Killed):
        led(finished[2], tmp_path / "run", sites)
    sites.kill = None
    run = led(finished[2], tmp_path / "run", sites)
    for name in ("blind.json", "answer.json"):
        assert (run / name).read_bytes() == (finished[0] / name).read_bytes()


def test_a_site_that_leaves_the_search_is_left_out_of_the_answer(
    finished: tuple[Path, Counted, FederationConfig], tmp_path: Path
) -> None:
    sites, asked = Counted(finished[1].folders), finished[2]
    sites.lost = ("west", 2)
    run = led(asked, tmp_path / "run", sites)
    two = simulated(asked, sites, run, ("north", "south"))
    same = fitted(two, asked)
    found = RunFolder(run).blind_rules().judged(Target.parse(TARGET), 0.5)
    assert torch.equal(found.rule.weights, same.rule.weights) and repr(found.after) == repr(same.after)
    assert any("'west' are not in this answer (lost" in note for note in Study.load(run).answer().notes)


def test_a_site_answers_no_question_that_the_search_does_not_ask(
    finished: tuple[Path, Counted, FederationConfig],
) -> None:
    run, sites, plan_ = finished
    folder, own = sites.folders["north"], [message for name, message, _ in sites.seen if name == "north"]
    first, asked = (next(one for one in own if one.facts["stage"] == stage) for stage in ("predict", "count"))
    terms = Agreement.load(run / "encoding.json").terms("north", plan_, (run / "run_id").read_text())
    (folder / "agreed.json").write_text(terms.to_text())
    rule = asked.tensors["rule"]
    node: dict[str, Fact] = {"site": str(folder)}
    answer("score", first, node)
    assert answer("score", asked, node).tensors["counts"]["rows"].shape[0] == 257
    other_line = {**rule, "line": rule["line"] * 2}
    finer = {**rule, "steps": rule["steps"][:10] / 1000}
    for tensors in (other_line, finer, {**rule, "weights": rule["weights"] * torch.nan}, {}):
        with pytest.raises(PublicError):
            answer("score", Message({"rule": tensors}, asked.facts), node)
    with pytest.raises(PublicError, match="test rows while it searches"):
        answer("score", Message(asked.tensors, {**asked.facts, "part": "test"}), node)
    moved = {name: value + 1 for name, value in first.tensors["groups"].items()}
    with pytest.raises(PublicError, match="for another model"):
        answer("score", Message({**first.tensors, "groups": moved}, first.facts), node)
    other = {name: value + 1 for name, value in first.tensors["model"].items()}
    with pytest.raises(PublicError, match="the final model of the run"):
        answer("score", Message({**first.tensors, "model": other}, first.facts), node)
    places = iter(range(100))
    fine = (Message({"rule": {**rule, "steps": fine_steps(one)}}, asked.facts) for one in places)
    with pytest.raises(PublicError, match="as many questions of this kind as a run may ask"):
        [answer("score", one, node) for one in fine]
    assert next(places) < 40


def test_counts_are_of_one_projection_of_the_rows_not_of_many(finished: tuple[Path, Counted, FederationConfig]) -> None:
    """With weights and offsets of its choice the coordinator would see the rows from as many sides as it may ask."""
    run, sites, plan_ = finished
    folder, own = sites.folders["west"], [message for name, message, _ in sites.seen if name == "west"]
    first, asked = (next(one for one in own if one.facts["stage"] == stage) for stage in ("predict", "count"))
    terms = Agreement.load(run / "encoding.json").terms("west", plan_, (run / "run_id").read_text())
    (folder / "agreed.json").write_text(terms.to_text())
    rule, node = asked.tensors["rule"], dict[str, Fact](site=str(folder))
    answer("score", first, node)
    aside = torch.zeros_like(rule["weights"])
    aside[0, 0] = 0.5
    single = {"line": torch.zeros_like(aside), "steps": torch.zeros(1, dtype=torch.float64)}
    changes = ({"weights": aside}, {"weights": rule["line"]}, {**single, "weights": aside},
               {**single, "weights": 1000 * rule["line"]})  # fmt: skip
    for change in changes:
        with pytest.raises(PublicError, match="the search for a blind rule does not need"):
            answer("score", Message({"rule": {**rule, **change}}, asked.facts), node)
    answer("score", Message({"rule": {**rule, **single, "weights": rule["line"]}}, asked.facts), node)
    with pytest.raises(PublicError, match="does not need"):
        answer("score", Message(asked.tensors, {**asked.facts, "offset": 0.01}), node)
    for target, known in (("eod <= 0.1", True), ("accuracy_parity <= 0.1", False)):
        other = replace(terms, target=target)
        (folder / "agreed.json").write_text(other.to_text())
        line = directions(Target.parse(target), first.tensors["rule"]["shares"])[0]
        along = Message({"rule": {**rule, "line": line}}, {**asked.facts, "terms": other.key})
        with nullcontext() if known else pytest.raises(PublicError, match="as many questions of this kind"):
            answer("score", along, node)
    (folder / "agreed.json").write_text(terms.to_text())
    answer("score", Message(asked.tensors, {**asked.facts, "offset": 0.5}), node)
    with pytest.raises(PublicError, match="as many questions of this kind"):
        answer("score", Message(asked.tensors, {**asked.facts, "offset": 0.25}), node)


def test_a_site_reveals_no_count_over_other_sites_than_its_histograms(
    finished: tuple[Path, Counted, FederationConfig], tmp_path: Path
) -> None:
    terms = Agreement.load(finished[0] / "encoding.json").terms("north", finished[2], "run")
    first, second = (AnswerLedger(tmp_path, one) for one in (terms, terms.of_groups))
    first.summed("score", [0, 1, 2])
    second.summed("train 1", [0, 1])
    second.summed("count 1", [2, 1, 0])
    with pytest.raises(PublicError, match="'count 2' of this run over other sites"):
        second.summed("count 2", [1, 2])


def test_a_federation_without_a_blind_rule_asks_for_no_model_of_the_groups(tmp_path: Path) -> None:
    sites = sites_of(tmp_path, (90, 70))
    asked = plan(sites=NAMES[:2], repair="single", training={"rounds": 1})
    run = led(asked, tmp_path / "run", sites)
    assert not sites.seen and not (run / "groups").exists()
    with pytest.raises(UserError, match="has no blind rules"):
        Study.load(run).answer(repair="blind")
    terms = json.loads((sites.folders["north"] / "agreed.json").read_text())
    assert terms["blind"] is False
    key = Agreement.load(run / "encoding.json").terms("north", asked, (run / "run_id").read_text()).key
    with pytest.raises(PublicError, match="did not agree on a model of the groups"):
        answer("train", Message(facts={"terms": key, "of": "groups"}), {"site": str(sites.folders["north"])})

"""A federation's answer to its fairness target: the simulation's, whoever is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federate.makers import NAMES, Killed, Simulated, World, config, exchange_keys, people, site_folder, world

from ffalm import load_model
from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.coordinator.federation_answer import each_site, site_facts
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.coordinator.run_log import RunLog
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federation import Federation
from ffalm.report.answer_report import sentences
from ffalm.simulation import simulate
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder
from ffalm.targets import site_answers, site_thresholds
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.repair import Repair
from ffalm.targets.site_answers import with_sites
from ffalm.targets.target import Scope, Target

TARGET = "dpd <= 0.1"
_FITTING = dict(site_thresholds.fit_sites.__kwdefaults__ or {})
ROWS = (200, 150, 180)


def plan(**sections: Any) -> FederationConfig:
    """A federation with a target that is answered without a search for a margin, which takes longest."""
    base = {"target": TARGET, "confidence": 0.5, "training": {"rounds": 1}, "algorithm": {"name": "fedavg"}}
    return config(**{**base, **sections})


def led(asked: FederationConfig, run: Path, sites: World) -> Path:
    coordinate(asked, run, sites, pause=0.001)
    return run


def facts(run: Path) -> dict[str, dict[str, Any]]:
    """What sites.json says, by site."""
    return {site["name"]: site for site in json.loads((run / "sites.json").read_text())["sites"]}


def thresholds(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "repair.json").read_text())
    assert found.pop("checksum")
    return found


def set_in_site(sites: World, name: str, **settings: Any) -> None:
    file = sites.folders[name] / "site.toml"
    replace(SiteConfig.read(file), **settings).write(file)


class Scoring(World):
    """A world in which something befalls sites when they score the final model; what they answer there is kept."""

    def __init__(self, sites: World) -> None:
        super().__init__(sites.folders)
        self.lost: set[str] = set()
        self.histograms: dict[str, torch.Tensor] = {}  # put in the place of the right ones
        self.scores: dict[str, Message] = {}

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        if kind == "score" and name in self.lost:
            return Failure("lost", "The site's connection was lost.")
        found = super()._answer(kind, name, message)
        if kind == "score" and isinstance(found, Message):
            if name in self.histograms:
                found.tensors["scores"]["histograms"] = self.histograms[name]
            self.scores[name] = found
        return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scoring, FederationConfig]:
    """A finished run of three sites, with all that they told."""
    root, asked = tmp_path_factory.mktemp("finished"), plan()
    sites = Scoring(world(root, ROWS))
    return led(asked, root / "run", sites), sites, asked


def test_the_answer_and_its_thresholds_are_those_of_a_simulation_over_the_same_rows(
    finished: tuple[Path, Scoring, FederationConfig],
) -> None:
    run, sites, asked = finished
    simulated = Simulated(asked, sites.folders, run)
    clients = tuple(own["train"] for own in simulated.parts)
    held_out = simulated.pooled("validation"), simulated.pooled("test")
    federation = Federation(clients, *held_out, simulated.agreement.task)
    result = simulate(
        "fedavg", federation, seed=asked.seed, model=asked.model, engine="loop", device="cpu",
        rounds=1, batch_size=16, lr=0.2,
    )  # fmt: skip
    stored = RunFolder(run).scores(1)
    assert stored.keys() == result.scores.keys() == {"training", "validation", "test"}
    for part, histogram in result.scores.items():
        assert np.array_equal(stored[part].counts, histogram.counts)
    expected = answer_of(
        [FinishedRun("FedAvg", asked.seed, None, ".", result.scores)],
        Target.parse(TARGET),
        group_names=("female", "male"),
        confidence=0.5,
    )
    assert thresholds(run) == expected.best.repair
    found = Study.load(run).answer()
    assert found.test == pytest.approx(expected.test, rel=0, abs=0, nan_ok=True)
    assert (found.verdict, found.bounds) == (expected.verdict, expected.bounds)


def test_the_folder_answers_as_a_studys_does(finished: tuple[Path, Scoring, FederationConfig]) -> None:
    run, _, _ = finished
    [written] = json.loads((run / "answer.json").read_text())["answers"]
    assert written["target"] == TARGET and written["repair"] == thresholds(run)
    assert f"## Answer to {TARGET}" in (run / "report.md").read_text()
    other = Study.load(run).answer("eod <= 0.2", repair="single")
    assert str(other.target) == "eod <= 0.2" and other.chosen.kind in ("none", "accurate", "single")
    answer = Study.load(run).outcome.answers[0]
    assert answer.best.repair == thresholds(run) and not any("not in this answer" in note for note in answer.notes)


def test_an_answer_of_thresholds_by_group_advises_what_a_federation_can_do(
    finished: tuple[Path, Scoring, FederationConfig],
) -> None:
    answer = Study.load(finished[0]).answer()
    advice = " ".join(sentences(replace(answer, chosen=replace(answer.chosen, kind="groups"))))
    assert 'repair = "single" or "blind" in federation.toml' in advice and "--repair" not in advice


@pytest.mark.parametrize("scope", ["sites", "both"])
def test_a_target_at_every_site_gives_the_thresholds_that_a_simulation_gives(
    scope: Scope, finished: tuple[Path, Scoring, FederationConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_answers, "ENOUGH_ROWS", 3)
    monkeypatch.setattr(site_thresholds.fit_sites, "__kwdefaults__", {**_FITTING, "enough": 3})
    asked = replace(finished[2], scope=scope)
    run = led(asked, tmp_path / "run", World(finished[1].folders))
    simulated = Simulated(asked, finished[1].folders, run)
    model = RunFolder(run).model()
    parts = {"training": "train", "validation": "validation", "test": "test"}
    own = {
        name: {part: simulated._learner.histogram(model, rows[short]) for part, short in parts.items()}
        for name, rows in zip(asked.sites, simulated.parts, strict=True)
    }
    together = FinishedRun("FedAvg", asked.seed, None, ".", RunFolder(run).scores(1))
    answer = answer_of([together], Target.parse(TARGET), group_names=("female", "male"), confidence=0.5)
    expected = with_sites(answer, own, scope, "groups", ("female", "male"))
    found = Study.load(run).answer()
    assert [(one.site, one.own, one.repair) for one in found.sites] == [
        (one.site, one.own, one.repair) for one in expected.sites
    ]
    assert any(one.own for one in found.sites) and found.scope == scope
    [written] = json.loads((run / "answer.json").read_text())["answers"]
    assert [site["repair"] for site in written["sites"]] == [one.repair for one in expected.sites]
    assert facts(run)["north"]["repaired"]["dpd"] == found.sites[0].after.metrics["dpd"]


def test_a_site_without_histograms_keeps_the_federations_thresholds(
    finished: tuple[Path, Scoring, FederationConfig], tmp_path: Path
) -> None:
    sites = Scoring(World(finished[1].folders))
    sites.lost = {"south"}
    run = led(replace(finished[2], scope="sites"), tmp_path / "run", sites)
    found = {one.site: one for one in Study.load(run).answer().sites}
    assert found.keys() == set(finished[2].sites) and not found["south"].own
    assert found["south"].verdict(Target.parse(TARGET)) is None


def test_thresholds_fitted_together_are_refused_where_single_answers_are_hidden() -> None:
    with pytest.raises(UserError, match="each step from every site's score histogram"):
        plan(scope="both", rules={"secure": True})
    with pytest.raises(UserError, match="must agree on the confidence before"):
        plan(scope="sites", rules={"secure": True}, confidence="none")


def test_each_site_is_told_before_and_after(finished: tuple[Path, Scoring, FederationConfig]) -> None:
    run, _, _ = finished
    sites = facts(run)
    assert all(site["repaired"].keys() == site["test"].keys() for site in sites.values())
    assert "Each site before and after" in (run / "report.md").read_text()


def test_a_gap_that_is_undefined_at_a_site_is_left_open(finished: tuple[Path, Scoring, FederationConfig]) -> None:
    site = facts(finished[0])["north"]
    table = each_site([{**site, "repaired": {**site["repaired"], "eod": None}}])
    assert table is not None
    assert math.isnan(table.sections[0].rows[0].cells[-1].value)  # type: ignore[arg-type]


def test_without_a_target_no_histogram_leaves_a_site(tmp_path: Path) -> None:
    sites = Scoring(world(tmp_path))
    run = led(plan(target="none"), tmp_path / "run", sites)
    for answer in sites.scores.values():
        assert "scores" not in answer.tensors
    assert RunFolder(run).scores(1) == {} and not (run / "answer.json").exists() and not (run / "repair.json").exists()


def test_small_cells_are_in_no_histogram(tmp_path: Path) -> None:
    sites = Scoring(world(tmp_path, ROWS))
    run = led(plan(rules={"min_group": 5}), tmp_path / "run", sites)
    counts = [torch.tensor(site["rows"]["validation"]) for site in facts(run).values()]
    assert any(bool((one == 0).any()) for one in counts)  # withheld
    assert np.array_equal(RunFolder(run).scores(1)["validation"].counts.sum((0, 1)), torch.stack(counts).sum(0))
    notes = " ".join(Study.load(run).answer().notes)
    assert "withholds cells of its held-out rows that are too small" in notes


def test_a_site_that_drops_out_at_the_scoring_and_one_that_refuses_are_left_out_of_the_answer_by_name(
    tmp_path: Path,
) -> None:
    sites = Scoring(world(tmp_path, (*ROWS, 160)))
    sites.lost = {"west"}
    set_in_site(sites, "south", histograms=False)
    run = led(plan(sites=list(NAMES)), tmp_path / "run", sites)
    told = facts(run)
    assert told["west"]["no_histograms"] == "lost: The site's connection was lost."
    assert "scores" not in sites.scores["south"].tensors
    assert told["south"]["test"] is not None and "repaired" not in told["south"]  # its scores count all the same
    rows = torch.tensor([told[name]["rows"]["test"] for name in ("north", "east")]).sum(0)
    assert np.array_equal(RunFolder(run).scores(1)["test"].counts.sum((0, 1)), rows)
    page, answer = (run / "report.md").read_text(), Study.load(run).answer()
    for why in (
        "'west' are not in this answer (lost: The site's",
        "'south' are not in this answer (its site.toml says",
    ):
        assert any(f"The scores of the site {why}" in note for note in answer.notes) and why in page


def test_where_all_refuse_there_is_no_answer_and_the_report_says_so(tmp_path: Path) -> None:
    sites = world(tmp_path)
    for name in NAMES[:3]:
        set_in_site(sites, name, histograms=False)
    run = led(plan(), tmp_path / "run", sites)
    notes = Study.load(run).outcome.notes
    assert any(note.startswith(f"The target {TARGET} has no answer") for note in notes)
    assert sum("not in this answer" in note for note in notes) == 3
    assert f"- The target {TARGET} has no answer" in (run / "report.md").read_text()


def test_a_part_of_which_no_row_is_told_leaves_no_answer(finished: tuple[Path, Scoring, FederationConfig]) -> None:
    nobody = ScoreHistogram.zeros((2, 2), 1)
    counts = {name: replace(one, told=dict.fromkeys(one.told, torch.zeros(2, 2, dtype=torch.int64)))
              for name, one in rows_log(finished[0]).items()}  # fmt: skip
    summed = HistogramSum.of_sums({"validation": nobody, "test": nobody}, counts)
    assert summed.parts == {} and summed.missing == {}
    asked, task = finished[2], Agreement.load(finished[0] / "encoding.json").task
    assert site_facts(asked, task, replace(summed, own={"north": {"test": nobody}}), {}) == {}


MALFORMED = {"no bytes of ours": torch.tensor([1, 2, 3], dtype=torch.uint8), "other type": torch.zeros(2048)}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_histogram_does_not_count(kind: str, finished: tuple[Path, Scoring, FederationConfig]) -> None:
    run, sites, _ = finished
    answer = sites.scores["north"]
    wrong = Message({**answer.tensors, "scores": {"histograms": MALFORMED[kind]}})
    found = histogram_sum(run, {"north": wrong, "west": sites.scores["west"]})
    assert found.own.keys() == {"west"}
    assert found.missing == {"north": "its score histograms are malformed"}


def test_a_histogram_of_other_rows_than_agreed_does_not_count(
    finished: tuple[Path, Scoring, FederationConfig],
) -> None:
    run, sites, _ = finished
    found = histogram_sum(run, {"north": sites.scores["west"]})
    assert found.parts == {} and found.missing["north"].startswith("the score histogram counts other training rows")
    log, zeros = rows_log(run), ScoreHistogram.zeros((2, 2), 1)
    summed = HistogramSum.of_sums({"validation": zeros, "test": zeros}, log)
    assert summed.parts == {} and summed.missing.keys() == log.keys()


def test_of_training_rows_a_site_tells_the_histogram_of_the_agreed_cells_and_nothing_else(
    finished: tuple[Path, Scoring, FederationConfig],
) -> None:
    run, sites, _ = finished
    for site, counts in rows_log(run).items():
        assert sites.scores[site].tensors.keys() == {"validation", "test", "scores"}
        found = histogram_sum(run, {site: sites.scores[site]}).parts["training"]
        assert torch.equal(found.counts.sum((0, 1)), counts.told["train"])


def rows_log(run: Path) -> dict[str, Counts]:
    task = Agreement.load(run / "encoding.json").task
    return RunLog(RunFolder(run), NAMES[:3]).counts(task)


def histogram_sum(run: Path, answers: dict[str, Message]) -> HistogramSum:
    return HistogramSum.of(answers, rows_log(run), Agreement.load(run / "encoding.json").task)


def test_a_coordinator_that_was_killed_at_the_scoring_comes_to_the_same_answer(
    tmp_path: Path, finished: tuple[Path, Scoring, FederationConfig]
) -> None:
    whole, reference, _ = finished
    sites = world(tmp_path, ROWS)
    sites.kill = ("after", [kind for kind, _ in reference.asked].index("score"))
    with pytest.raises(Killed):
        led(plan(), tmp_path / "run", sites)
    sites.kill = None
    run = led(plan(), tmp_path / "run", sites)
    for name in ("scores.safetensors", "repair.json", "answer.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_the_target_may_change_between_two_starts(tmp_path: Path) -> None:
    sites = world(tmp_path)
    sites.kill = ("after", 3)
    with pytest.raises(Killed):
        led(plan(target="none"), tmp_path / "run", sites)
    sites.kill = None
    run = led(plan(target="eod <= 0.3"), tmp_path / "run", sites)
    assert json.loads((run / "answer.json").read_text())["answers"][0]["target"] == "eod <= 0.3"
    led(plan(target="none"), run, sites)
    assert not (run / "answer.json").exists() and not (run / "repair.json").exists()


def test_rows_without_a_group_are_in_the_answer_and_in_no_gap_of_it(tmp_path: Path) -> None:
    frames = {name: people(rows, seed) for seed, (name, rows) in enumerate(zip(NAMES, ROWS, strict=False))}
    frames["north"].loc[frames["north"].index % 5 == 0, "sex"] = None
    folders = {name: site_folder(tmp_path / "sites", name, frame) for name, frame in frames.items()}
    exchange_keys(folders)
    run = led(plan(), tmp_path / "run", World(folders))
    answer = Study.load(run).answer()
    assert [one.compared for one in answer.scored.groups] == [True, True, False]
    assert answer.scored.groups[2].rows > 0
    assert answer.best.validation.metrics["dpd"] <= 0.1
    stored = RunFolder(run).scores(1, excluded=1)["test"]
    assert answer.test["dpd"] == pytest.approx(Repair.from_plain(thresholds(run)).tally(stored).compared().dpd())
    own = [facts(run)[name]["repaired"]["accuracy"] for name in frames]
    assert all(math.isfinite(value) for value in own)
    hidden = led(plan(rules={"secure": True}), tmp_path / "secure", World(folders))
    assert thresholds(hidden) == thresholds(run)
    trained = load_model(run)
    single = thresholds(run)["single"]
    assert thresholds(run)["groups"]["unknown"] == [{"threshold": single, "probability": 1.0}]
    alike = trained.predict(frames["north"], group=["unknown"] * 200) == trained.predict(frames["north"])
    assert alike.all()

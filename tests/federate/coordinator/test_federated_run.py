"""The coordinator against sites that fail in every way, equal to a simulation of the same participation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tests.federate.makers import (
    NAMES,
    Killed,
    Mishap,
    Simulated,
    World,
    change_rows_in_training,
    config,
    people,
    site_folder,
    with_model,
    world,
)
from torch import Tensor

from ffalm.engines import Round
from ffalm.engines.remote.message import Failure, Kind, Message, printable
from ffalm.engines.sampling import participants
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate, lead
from ffalm.federate.federation_config import FederationConfig
from ffalm.outcome import Outcome
from ffalm.studies.store import RunFolder

PAUSE = 0.001
#: Algorithms that are tried with settings of their own, by what they are called here; others by their names.
WITH_SETTINGS: dict[str, dict[str, Any]] = {
    "fairalm of one label": {"name": "fairalm", "labels": "favourable"},
    "lagrangian of training rows": {"name": "lagrangian", "measured": "train"},
}


def settings_of(algorithm: str) -> dict[str, Any]:
    return WITH_SETTINGS.get(algorithm, {"name": algorithm})


def led(plan: FederationConfig, run: Path, sites: World) -> Outcome:
    return coordinate(plan, run, sites, pause=PAUSE)


def assert_equal(run: Path, outcome: Outcome, expected: list[Round]) -> None:
    """The same weights, duals and losses in every round, and the same final model, bit for bit."""
    assert len(outcome.history) == len(expected)
    for mine, theirs in zip(outcome.history, expected, strict=True):
        for name in ("round", "weights", "train_loss", "negative_weight_share", *theirs.snapshot.state):
            assert mine[name] == theirs.record[name], (mine["round"], name)
    final = load_file(run / "model.safetensors")
    assert final.keys() == expected[-1].snapshot.model.keys()
    assert all(torch.equal(final[name], value) for name, value in expected[-1].snapshot.model.items())


@pytest.mark.parametrize(
    "algorithm",
    [
        *("fedavg", "ffalm", "fairfed", "fpfl", "scaffold", "fedadam", "fcfl", "qffl", "fedfb", "fedgft"),
        "fairalm of one label",
    ],
)
def test_a_federation_of_three_sites_equals_the_simulation(tmp_path: Path, algorithm: str) -> None:
    plan, sites = config(algorithm=settings_of(algorithm), training={"rounds": 3}), world(tmp_path)
    outcome = led(plan, tmp_path / "run", sites)
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    expected = simulated.rounds(set())
    assert_equal(tmp_path / "run", outcome, expected)
    for record, done in zip(outcome.history, expected, strict=True):
        metrics = simulated.metrics(done.snapshot.model, "validation", [0, 1, 2])
        assert {name: record[name] for name in metrics} == metrics
    assert outcome.test == simulated.metrics(expected[-1].snapshot.model, "test", [0, 1, 2])
    assert [kind for kind, _ in sites.asked] == ["hello", "hello", "agree", *["train"] * 3, "score", "agree"]


@pytest.mark.parametrize("algorithm", ["ffalm", "fpfl", "fairalm of one label"])
def test_dual_steps_that_sites_take_themselves_are_the_servers_up_to_rounding(tmp_path: Path, algorithm: str) -> None:
    plan, sites = config(algorithm=settings_of(algorithm), training={"rounds": 3}), world(tmp_path)
    outcome = led(plan, tmp_path / "run", sites)
    expected = Simulated(plan, sites.folders, tmp_path / "run").rounds(set(), own_steps=False)
    for mine, theirs in zip(outcome.history, expected, strict=True):
        for name in ("weights", "train_loss", *theirs.snapshot.state):
            assert mine[name] == pytest.approx(theirs.record[name], rel=1e-9, abs=1e-9), (mine["round"], name)
    final = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in expected[-1].snapshot.model.items():
        torch.testing.assert_close(final[name], value, rtol=1e-9, atol=1e-9)


def test_a_federation_can_start_from_a_file_that_the_coordinator_alone_has(tmp_path: Path) -> None:
    first = led(config(training={"rounds": 2}), tmp_path / "first", world(tmp_path / "a"))
    start = tmp_path / "first" / "model.safetensors"
    plan, sites = config(model={"name": "mlp", "hidden": [4], "weights": str(start)}), world(tmp_path / "b")
    sites.kill = ("after", 4)
    with pytest.raises(Killed):
        led(plan, tmp_path / "run", sites)
    start.rename(tmp_path / "moved.safetensors")  # what was trained since lies in the run folder
    sites.kill = None
    outcome = led(plan, tmp_path / "run", sites)
    again = config(model={"name": "mlp", "hidden": [4], "weights": str(tmp_path / "moved.safetensors")})
    assert_equal(tmp_path / "run", outcome, Simulated(again, sites.folders, tmp_path / "run").rounds(set()))
    assert outcome.history[0]["train_loss"] < first.history[0]["train_loss"]
    assert "weights" not in json.loads((tmp_path / "run" / "encoding.json").read_text())["model"]
    with pytest.raises(UserError, match="There is no file of weights"):
        led(plan, tmp_path / "late", World(sites.folders))


def nan(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**model, "0.bias": model["0.bias"] * torch.nan}


def infinite(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**model, "0.bias": model["0.bias"] + torch.inf}


def transposed(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**model, "0.weight": model["0.weight"].T.contiguous()}


def double(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in model.items()}


def huge(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value + 1000 for name, value in model.items()}


def nameless(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in model.items() if name != "0.bias"}


MISHAPS: dict[str, tuple[Mishap, str, str]] = {
    "dead": ("dead", "missed", "lost: The site's connection was lost."),
    "late": ("late", "missed", "late: The site did not answer within 1 seconds."),
    "failed": ("failed", "missed", "failed: The disk is full."),
    "unreadable": ("unreadable", "quarantined", "its answer cannot be read (ValueError: It is cut short.)"),
    "gone": ("gone", "missed", "lost: The site is not connected."),
    "nan": (with_model(nan), "quarantined", "its answer holds numbers that are not finite"),
    "infinite": (with_model(infinite), "quarantined", "its answer holds numbers that are not finite"),
    "transposed": (with_model(transposed), "quarantined", "its '0.weight' has the shape 7x4 instead of 4x7"),
    "double": (with_model(double), "quarantined", "its '0.weight' is of type torch.float64 instead of torch.float32"),
    "nameless": (with_model(nameless), "quarantined", "its model lacks the entry '0.bias'"),
    "huge": (with_model(huge), "quarantined", "its update has the norm"),
}


@pytest.mark.parametrize("kind", MISHAPS)
def test_a_round_goes_on_without_a_site_and_equals_the_simulation_without_it(tmp_path: Path, kind: str) -> None:
    mishap, where, why = MISHAPS[kind]
    plan, sites = config(training={"rounds": 3}), world(tmp_path, mishaps={("south", 2): mishap})
    outcome = led(plan, tmp_path / "run", sites)
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    expected = simulated.rounds({(2, 1)})
    assert_equal(tmp_path / "run", outcome, expected)
    assert outcome.history[1]["answered"] == ["north", "west"]
    assert outcome.history[1][where]["south"].startswith(why)
    assert outcome.history[2]["answered"] == ["north", "south", "west"]
    first = simulated.metrics(expected[0].snapshot.model, "validation", [0, 2])
    assert outcome.history[0]["dpd"] == first["dpd"] and outcome.history[0]["scored"] == ["north", "west"]
    entry = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"][1]
    assert entry[where] == {"2": outcome.history[1][where]["south"]}


@pytest.mark.parametrize("kind", ["late", "gone", "nan", "transposed"])
def test_what_a_site_keeps_of_a_round_that_did_not_count_is_not_used(tmp_path: Path, kind: str) -> None:
    """SCAFFOLD's control variates, in the next round of the site: the server has not seen their change."""
    plan = config(algorithm={"name": "scaffold"}, training={"rounds": 4})
    sites = world(tmp_path, mishaps={("south", 2): MISHAPS[kind][0], ("south", 3): "gone"})
    outcome = led(plan, tmp_path / "run", sites)
    assert_equal(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds({(2, 1), (3, 1)}))


def test_what_a_site_keeps_from_round_to_round_is_in_no_message(tmp_path: Path) -> None:
    plan, sites = config(algorithm={"name": "scaffold"}), world(tmp_path)
    original, seen, kept = sites._answer, list[Tensor](), list[Tensor]()

    def watched(kind: Any, name: str, message: Any) -> Any:
        found = original(kind, name, message)
        for one in (message, found):
            assert isinstance(one, Message)
            seen.extend(value for record in one.tensors.values() for value in record.values())
        last = sorted((sites.folders[name] / ".cache").glob("client-*.vectors"))[-1:]
        if kind == "train" and message.facts["round"] > 0:  # from zeros, the first change is the control variate itself
            kept.extend(value for path in last for value in load_file(path).values())
        return found

    sites._answer = watched  # type: ignore[method-assign]
    led(plan, tmp_path / "run", sites)
    assert len(kept) == 3 * 4 * 4  # sites, rounds, parameters
    for value in kept:
        assert not any(other.shape == value.shape and torch.allclose(other.double(), value.double()) for other in seen)


def without_a_parameter(message: Message) -> Message:
    upload = dict(message.tensors["upload.control_change"])
    del upload["0.bias"]
    return Message({**message.tensors, "upload.control_change": upload}, message.facts)


def test_an_upload_that_lacks_a_parameter_does_not_count(tmp_path: Path) -> None:
    plan = config(algorithm={"name": "scaffold"}, training={"rounds": 3})
    sites = world(tmp_path, mishaps={("south", 2): without_a_parameter})
    outcome = led(plan, tmp_path / "run", sites)
    assert outcome.history[1]["quarantined"] == {"south": "an upload of its answer does not have the model's form"}
    assert_equal(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds({(2, 1)}))


def with_its_own_vectors(message: Message) -> Message:
    return Message({**message.tensors, "own.control": message.tensors["upload.control_change"]}, message.facts)


def test_the_coordinator_holds_no_vectors_of_sites_even_if_one_sends_them(tmp_path: Path) -> None:
    plan = config(algorithm={"name": "scaffold"}, training={"rounds": 2})
    sites = world(tmp_path, mishaps={("south", 1): with_its_own_vectors})
    led(plan, tmp_path / "run", sites)
    assert list((tmp_path / "run" / "checkpoint").rglob("vectors.safetensors"))
    assert not list((tmp_path / "run" / "checkpoint").rglob("client_vectors.safetensors"))


def test_a_site_gone_for_three_rounds_comes_back_by_another_node_and_takes_part_again(tmp_path: Path) -> None:
    plan = config(NAMES, training={"rounds": 6})
    sites = world(tmp_path, (90, 70, 80, 60), mishaps={("west", round): "gone" for round in (2, 3, 4)})
    present = sites.present

    def present_by_new_node() -> list[int]:
        found = present()
        if sites.nodes["west"] not in found:
            sites.nodes["west"] = 12345
        return present()

    sites.present = present_by_new_node  # type: ignore[method-assign]
    outcome = led(plan, tmp_path / "run", sites)
    expected = Simulated(plan, sites.folders, tmp_path / "run").rounds({(2, 2), (3, 2), (4, 2)})
    assert_equal(tmp_path / "run", outcome, expected)
    assert [len(record["answered"]) for record in outcome.history] == [4, 3, 3, 3, 4, 4]
    assert "The site 'west' missed 3 rounds of 6: 2-4." in (tmp_path / "run" / "report.md").read_text()


def test_with_partial_participation_only_the_chosen_are_asked_and_the_draw_is_the_simulations(tmp_path: Path) -> None:
    plan, sites = config(NAMES, training={"participation": 0.5}), world(tmp_path, (90, 70, 80, 60))
    outcome = led(plan, tmp_path / "run", sites)
    assert_equal(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()))
    assert all(len(names) == 2 for kind, names in sites.asked if kind == "train")


def test_where_too_few_of_the_chosen_answer_the_others_are_asked(tmp_path: Path) -> None:
    plan = config(NAMES, training={"participation": 0.5, "rounds": 1}, rules={"patience": 5.0})
    sites = world(tmp_path, (90, 70, 80, 60), mishaps={(name, 1): "dead" for name in ("north", "south")})
    outcome = led(plan, tmp_path / "run", sites)
    assert outcome.history[0]["answered"] == ["west", "east"]


def test_too_few_sites_stop_the_run_and_it_goes_on_when_they_are_back(tmp_path: Path) -> None:
    plan = config()
    sites = world(tmp_path, mishaps={(name, 3): "dead" for name in ("north", "south")})
    with pytest.raises(UserError, match=r"Only 1 of the 2 sites .* run again to go on"):
        led(plan, tmp_path / "run", sites)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "stopped" and status["round"] == 2
    sites.mishaps.clear()
    outcome = led(plan, tmp_path / "run", sites)
    assert_equal(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()))


def test_a_round_with_too_few_answers_is_asked_again_of_those_that_failed(tmp_path: Path) -> None:
    plan = config(rules={"patience": 5.0, "min_sites": 3})
    sites = world(tmp_path)
    failures = iter([True, True])
    answer = sites._answer

    def flaky(kind: Any, name: str, message: Any) -> Any:
        if kind == "train" and name == "west" and next(failures, False):
            return Failure("late", "Slow.")
        return answer(kind, name, message)

    sites._answer = flaky  # type: ignore[method-assign]
    outcome = led(plan, tmp_path / "run", sites)
    assert outcome.history[0]["answered"] == ["north", "south", "west"] and outcome.history[0]["missed"] == {}
    assert [names for kind, names in sites.asked if kind == "train"][:3] == [
        ("north", "south", "west"),
        ("west",),
        ("west",),
    ]


def test_a_site_cannot_fill_the_disk_of_the_coordinator_with_its_reasons(tmp_path: Path) -> None:
    sites = world(tmp_path)
    original, reason = sites._answer, "no " * 100_000

    def talkative(kind: Kind, name: str, message: Message) -> Message | Failure:
        told = Failure("failed", printable(reason))  # as `unpacked_answer` reads it
        return told if (kind, name) == ("train", "west") else original(kind, name, message)

    sites._answer = talkative  # type: ignore[method-assign]
    outcome = coordinate(config(training={"rounds": 2}), tmp_path / "run", sites, pause=PAUSE)
    assert outcome.history[-1]["missed"]["west"].startswith("failed: no no")
    assert sum(path.stat().st_size for path in (tmp_path / "run").glob("*.json*")) < len(reason) / 4


@pytest.mark.parametrize("all_lose", [False, True])
def test_one_site_that_was_chosen_alone_does_not_end_the_run(tmp_path: Path, all_lose: bool) -> None:
    plan = config(training={"rounds": 3, "participation": 0.3}, rules={"patience": 5.0})
    (alone,) = (NAMES[client] for client in participants(plan.seed, 2, 3, 0.3))
    lost = NAMES[:3] if all_lose else (alone,)
    sites = world(tmp_path, mishaps={(name, 2): with_model(nan) for name in lost})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    if all_lose:
        assert outcome.diverged is not None and "diverged in round 2" in outcome.diverged
    else:
        assert outcome.diverged is None and [record["round"] for record in outcome.history] == [1, 2, 3]
        assert outcome.history[1]["quarantined"] == {alone: "its answer holds numbers that are not finite"}
        assert set(outcome.history[1]["answered"]) == {*NAMES[:3]} - {alone}


def test_where_all_sites_lose_their_numbers_the_training_diverged(tmp_path: Path) -> None:
    plan, sites = config(), world(tmp_path, mishaps={(name, 2): with_model(nan) for name in NAMES[:3]})
    outcome = led(plan, tmp_path / "run", sites)
    assert outcome.diverged is not None and "diverged in round 2" in outcome.diverged
    assert "diverged in round 2" in (tmp_path / "run" / "report.md").read_text()


# The coordinator's death


def uninterrupted(plan: FederationConfig, folders: Mapping[str, Path], run: Path, mishaps: Any) -> Outcome:
    return led(plan, run, World(folders, mishaps))


def without_seconds(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


@pytest.mark.parametrize("algorithm", ["ffalm", "scaffold"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_question_it_comes_to_the_same_numbers(tmp_path: Path, moment: str, algorithm: str) -> None:
    plan, sites = config(training={"rounds": 3}, algorithm={"name": algorithm}), world(tmp_path)
    mishaps: dict[tuple[str, int], Mishap] = {("west", 2): "late", ("south", 3): with_model(nan)}
    expected = uninterrupted(plan, sites.folders, tmp_path / "whole", mishaps)
    for number in range(7):
        again = World(sites.folders, mishaps)
        again.kill = (moment, number)
        run = tmp_path / f"{moment}-{number}"
        with pytest.raises(Killed):
            led(plan, run, again)
        again.kill = None
        outcome = led(plan, run, again)
        assert without_seconds(outcome.history) == without_seconds(expected.history)
        assert outcome.test == expected.test
        for name in ("model.safetensors", "encoding.json", "sites.json", "report.md"):
            assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("at", ["save", "finish"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_a_checkpoint_or_the_result_it_comes_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, moment: str
) -> None:
    plan, sites = config(training={"rounds": 3}), world(tmp_path)
    expected = uninterrupted(plan, sites.folders, tmp_path / "whole", {})
    original: Callable[..., None] = getattr(RunFolder, at)
    left = iter([False, True] if at == "save" else [True])

    def deadly(self: RunFolder, *arguments: Any) -> None:
        now = next(left, False)
        if now and moment == "before":
            raise Killed
        original(self, *arguments)
        if now:
            raise Killed

    monkeypatch.setattr(RunFolder, at, deadly)
    with pytest.raises(Killed):
        led(plan, tmp_path / "run", sites)
    outcome = led(plan, tmp_path / "run", sites)
    assert without_seconds(outcome.history) == without_seconds(expected.history)
    for name in ("model.safetensors", "sites.json", "report.md"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_run_is_given_back_without_asking_anybody(tmp_path: Path) -> None:
    plan, sites = config(training={"rounds": 1}), world(tmp_path)
    first = led(plan, tmp_path / "run", sites)
    questions = len(sites.asked)
    assert led(plan, tmp_path / "run", sites).test == first.test
    assert len(sites.asked) == questions


def test_a_run_goes_on_only_with_what_it_began_with_but_rules_and_rounds_may_change(tmp_path: Path) -> None:
    sites = world(tmp_path, mishaps={(name, 2): "dead" for name in ("north", "south")})
    with pytest.raises(UserError, match="Only 1"):
        led(config(), tmp_path / "run", sites)
    with pytest.raises(UserError, match=r"'training' of federation\.toml has changed"):
        led(config(training={"lr": 0.1}), tmp_path / "run", sites)
    outcome = led(config(rules={"min_sites": 1}, training={"rounds": 2}), tmp_path / "run", sites)
    assert outcome.history[1]["answered"] == ["west"]


def test_what_sites_keep_outlives_a_change_of_rounds_and_rules(tmp_path: Path) -> None:
    sites = world(tmp_path, mishaps={(name, 3): "dead" for name in ("north", "south")})
    with pytest.raises(UserError, match="Only 1"):
        led(config(algorithm={"name": "scaffold"}), tmp_path / "run", sites)
    sites.mishaps.clear()
    plan = config(algorithm={"name": "scaffold"}, training={"rounds": 4}, rules={"min_group": 3})
    outcome = led(plan, tmp_path / "run", sites)
    assert_equal(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()))


# Sites that come later


def test_a_site_that_comes_later_joins_under_the_encoding_that_was_fixed(tmp_path: Path) -> None:
    plan, sites = config(NAMES), world(tmp_path, (90, 70, 80, 60))
    sites.away = {"east"}
    ask = sites.ask

    def until_round_two(kind: Any, messages: Any, deadline: float) -> Any:
        if kind == "train" and next(iter(messages.values())).facts["round"] == 1:
            sites.away = set()
        return ask(kind, messages, deadline)

    sites.ask = until_round_two  # type: ignore[method-assign]
    outcome = led(plan, tmp_path / "run", sites)
    assert [len(record["answered"]) for record in outcome.history] == [3, 3, 4, 4, 4]
    rows = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"][3]["rows"]
    assert sum(map(sum, rows["train"])) == 42
    assert outcome.history[1]["weights"][3] == 0.0 and outcome.history[2]["weights"][3] > 0.1


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    "algorithm",
    [
        *("fairfed", "afl", "fedfb", "fedgft", "fedminmax", "reweighing", "lagrangian of training rows", "scaffold"),
        "fairalm of one label",
    ],
)
def test_a_site_that_comes_later_counts_as_it_does_in_the_simulation(
    tmp_path: Path, algorithm: str, killed: bool
) -> None:
    plan = config(NAMES, algorithm=settings_of(algorithm), training={"rounds": 4})
    sites, run = world(tmp_path, (90, 70, 80, 60)), tmp_path / "run"
    sites.away = {"east"}
    ask, kills = sites.ask, ["once"] if killed else []

    def late(kind: Any, messages: Any, deadline: float) -> Any:
        round = int(next(iter(messages.values())).facts["round"]) + 1 if kind == "train" else 0
        if round == 2:
            sites.away = set()
        if round == 3 and kills:
            kills.clear()
            raise Killed  # when the site has introduced itself and agreed
        return ask(kind, messages, deadline)

    sites.ask = late  # type: ignore[method-assign]
    if killed:
        with pytest.raises(Killed):
            led(plan, run, sites)
    outcome = led(plan, run, sites)
    known = [[NAMES.index(site) for site in record["known"]] for record in outcome.history]
    assert known == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert_equal(run, outcome, Simulated(plan, sites.folders, run).rounds({(1, 3), (2, 3)}, known=known))


def test_a_site_whose_terms_are_lost_is_told_again(tmp_path: Path) -> None:
    plan, sites = config(), world(tmp_path)
    original = sites._answer

    def forgetful(kind: Any, name: str, message: Any) -> Any:
        if kind == "train" and name == "west" and message.facts["round"] == 1:
            (sites.folders["west"] / "agreed.json").unlink()
        return original(kind, name, message)

    sites._answer = forgetful  # type: ignore[method-assign]
    outcome = led(plan, tmp_path / "run", sites)
    assert "must agree first" in outcome.history[1]["missed"]["west"]
    assert [len(record["answered"]) for record in outcome.history] == [3, 2, 3, 3, 3]


def test_a_site_whose_rows_have_changed_since_the_agreement_no_longer_counts(tmp_path: Path) -> None:
    plan, sites = config(), world(tmp_path)
    change_rows_in_training(sites, "west", round=2)
    outcome = led(plan, tmp_path / "run", sites)
    assert "other rows than it agreed to train on" in outcome.history[1]["quarantined"]["west"]


def test_a_node_with_anothers_key_or_an_unknown_name_is_left_out_and_told(tmp_path: Path) -> None:
    plan, sites = config(NAMES[:2]), world(tmp_path)
    outcome = coordinate(plan, tmp_path / "run", sites, pause=PAUSE)
    assert outcome.history[0]["answered"] == ["north", "south"]
    assert "which federation.toml does not list" in sites.told["west"]
    thief = World({"south": site_folder(tmp_path / "thief", "north", people(50, 7)), **sites.folders})
    owners = {thief.nodes["south"]: "south"}
    with pytest.raises(UserError):
        coordinate(config(NAMES[:3]), tmp_path / "other", World({"south": thief.folders["south"]}), owners.get, PAUSE)


def test_a_second_coordinator_on_the_same_folder_waits_and_gives_what_the_first_came_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffalm.studies.store._LOCK_SECONDS", 0.0)
    plan, sites, idle = config(training={"rounds": 1}), world(tmp_path), World({})
    ask, waiting = sites.ask, list[Future[Outcome]]()

    with ThreadPoolExecutor(1) as second:

        def meanwhile(kind: Any, messages: Any, deadline: float) -> Any:
            if kind == "train":
                waiting.append(second.submit(led, plan, tmp_path / "run", idle))
                with pytest.raises(TimeoutError):
                    waiting[0].result(timeout=0.05)
            return ask(kind, messages, deadline)

        sites.ask = meanwhile  # type: ignore[method-assign]
        first = led(plan, tmp_path / "run", sites)
        assert waiting[0].result(timeout=30).test == first.test
    assert not idle.asked


def test_a_folder_is_led_by_its_federation_toml_and_a_key_is_no_other_sites(tmp_path: Path) -> None:
    sites = world(tmp_path)
    keys = {"north": {"node": sites.nodes["north"]}, "south": {"node": sites.nodes["west"]}, "west": {"node": None}}
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "coordinator" / "registered.json").write_text(json.dumps(keys))
    config(training={"rounds": 1}, rules={"patience": 0.0}).write(tmp_path / "federation.toml")
    lead(sites, {"folder": str(tmp_path)})
    assert RunFolder(tmp_path / "run").history()[0]["answered"] == ["north", "south"]
    assert "has the key of 'south'" in sites.told["west"]
    with pytest.raises(UserError, match="where the federation folder is"):
        lead(sites, {})


def test_a_federation_of_three_labels_that_federation_toml_lists_equals_the_simulation(tmp_path: Path) -> None:
    sites = world(tmp_path)
    for folder in sites.folders.values():
        frame = pd.read_csv(folder / "rows.csv")
        frame.loc[frame["age"] > 60, "loan"] = "later"
        frame.to_csv(folder / "rows.csv", index=False)
    plan = config(data={"label_values": ["no", "yes", "later"]}, algorithm={"name": "fedavg"}, training={"rounds": 2})
    outcome = led(plan, tmp_path / "run", sites)
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    assert simulated.agreement.task.label_names == ("no", "later", "yes") and simulated.agreement.task.favourable == 2
    assert_equal(tmp_path / "run", outcome, simulated.rounds(set()))


def with_gaps(rows: int, seed: int) -> pd.DataFrame:
    """People of two regions, some of whom do not say their sex."""
    frame = people(rows, seed)
    frame["region"] = ["hill" if age % 4 else "vale" for age in frame["age"]]
    frame.loc[frame.index % 9 == 0, "sex"] = None
    return frame


@pytest.mark.parametrize("algorithm", ["ffalm", "fairfed", "fairalm of one label"])
def test_rows_without_a_group_take_part_in_a_federation_and_are_not_compared(tmp_path: Path, algorithm: str) -> None:
    folders = {name: site_folder(tmp_path, name, with_gaps(120, seed)) for seed, name in enumerate(NAMES[:2])}
    folders["west"] = site_folder(tmp_path, "west", people(80, 7).assign(region="hill"))
    plan, sites = config(algorithm=settings_of(algorithm)), World(folders)
    outcome = led(plan, tmp_path / "run", sites)
    simulated = Simulated(plan, folders, tmp_path / "run")
    task = simulated.agreement.task
    assert task.group_names == ("female", "male", "unknown") and task.compared == 2
    expected = simulated.rounds(set())
    assert_equal(tmp_path / "run", outcome, expected)
    assert outcome.test == simulated.metrics(expected[-1].snapshot.model, "test", [0, 1, 2])


def test_crossed_groups_of_a_federation_leave_out_what_is_rare_anywhere_or_everywhere(tmp_path: Path) -> None:
    folders = {name: site_folder(tmp_path, name, with_gaps(220, seed)) for seed, name in enumerate(NAMES[:3])}
    plan = config(data={"group": ["sex", "region"], "min_group_size": 90}, rules={"patience": 0.05, "min_group": 3})
    outcome = led(plan, tmp_path / "run", World(folders))
    task = Simulated(plan, folders, tmp_path / "run").agreement.task
    assert task.group == "sex, region"
    assert task.group_names == ("female, hill", "male, hill", "female, vale", "male, vale", "other")
    assert task.compared == 2
    assert outcome.history[-1]["round"] == 5
    assert len(outcome.confusion[0][0]) == 5  # type: ignore[index]

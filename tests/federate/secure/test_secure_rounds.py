"""Whole federations under secure aggregation: equal to plain ones up to the stated rounding, whoever drops out."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federate.makers import (
    NAMES,
    UNREADABLE,
    Killed,
    Simulated,
    World,
    change_rows_in_training,
    config,
    exchange_keys,
    world,
)
from torch import Tensor

from ffalm.engines import Round
from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.secure import secure_site
from ffalm.federate.secure.payload import round_numbers
from ffalm.federate.site.answering import answer
from ffalm.outcome import Outcome

ROWS = (90, 70, 80, 60)


class Watched(World):
    """A world whose sites may drop out at a move of the protocol, and in which all that they answer is written down.

    As on a real wire, the tensors of a record arrive in any order.

    `drops` names (site, move, round); `spoils` changes an answer likewise. The scoring counts as the round after the
    last.
    """

    def __init__(self, folders: Mapping[str, Path], last: int = 5) -> None:
        super().__init__(folders)
        self.drops: set[tuple[str, str, int]] = set()
        self.spoils: dict[tuple[str, str, int], Callable[[Message], Message | Failure]] = {}
        self.seen: list[tuple[str, str, int, Message]] = []
        self._last, self._at = last, 0

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        move = str(message.facts.get("stage", kind))
        if kind in ("train", "score"):
            self._at = int(message.facts["round"]) + 1 if kind == "train" else self._last + 1
        moment = (name, move, self._at + (move in ("key", "offer")))
        if moment in self.drops:
            return Failure("lost", "The site's connection was lost.")
        order = random.Random(f"{moment}")
        found = super()._answer(
            kind, name, Message({key: shuffled(v, order) for key, v in message.tensors.items()}, message.facts)
        )
        if isinstance(found, Message) and moment in self.spoils:
            found = self.spoils[moment](found)
        if isinstance(found, Message):
            self.seen.append((*moment, found))
        return found


def shuffled(record: dict[str, Tensor], order: random.Random) -> dict[str, Tensor]:
    return {name: record[name] for name in order.sample(list(record), len(record))}


def secure(rounds: int = 5, sites: int = 3, **sections: Any) -> FederationConfig:
    rules = {"secure": True, **sections.pop("rules", {})}
    training = {"rounds": rounds, **sections.pop("training", {})}
    return config(NAMES[:sites], rules=rules, training=training, **sections)


def watched(root: Path, sites: int = 3, last: int = 5) -> Watched:
    return Watched(keyed(root, ROWS[:sites]).folders, last)


def keyed(root: Path, rows: tuple[int, ...] = ROWS[:3]) -> World:
    """Sites that know each other's keys, as `ffalm federate init` hands them out."""
    sites = world(root, rows)
    exchange_keys(sites.folders)
    return sites


def led(plan: FederationConfig, run: Path, sites: World) -> Outcome:
    return coordinate(plan, run, sites, pause=0.001)


def assert_close(run: Path, outcome: Outcome, expected: list[Round], within: float) -> None:
    """The same participation, and models, duals and losses of a simulation that masks nothing."""
    assert len(outcome.history) == len(expected)
    for mine, theirs in zip(outcome.history, expected, strict=True):
        assert mine["weights"] == pytest.approx(theirs.record["weights"], abs=1e-12)
        for name in ("train_loss", "negative_weight_share", *theirs.snapshot.state):
            message = f"{name} of round {mine['round']}"
            np.testing.assert_allclose(mine[name], theirs.record[name], rtol=0, atol=within, err_msg=message)
    final = load_file(run / "model.safetensors")
    for name, value in expected[-1].snapshot.model.items():
        torch.testing.assert_close(final[name], value, rtol=0, atol=within)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "ffalm": {"name": "ffalm"},
    "ffalm-bounded": {"name": "ffalm", "preset": "paper", "dual_bound": 0.1},
    "fpfl": {"name": "fpfl"},
    "scaffold": {"name": "scaffold"},
    "fedgft": {"name": "fedgft"},
    "reweighing": {"name": "reweighing", "scope": "local"},
    "fairalm of one label": {"name": "fairalm", "labels": "favourable"},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_secure_federation_equals_the_simulation_up_to_rounding(tmp_path: Path, algorithm: str) -> None:
    plan, sites = secure(3, algorithm=ALGORITHMS[algorithm]), watched(tmp_path)
    outcome = led(plan, tmp_path / "run", sites)
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    expected = simulated.rounds(set())
    assert_close(tmp_path / "run", outcome, expected, within=2e-6)
    if algorithm == "ffalm-bounded":
        assert [record["dual"] for record in outcome.history][-1] == 0.1
    model = load_file(tmp_path / "run" / "model.safetensors")
    test = simulated.metrics(model, "test", [0, 1, 2])
    assert outcome.test == pytest.approx(test, abs=1e-7)
    assert outcome.test["dpd"] == test["dpd"] and outcome.test["accuracy"] == test["accuracy"]
    assert all(record["scored"] == list(NAMES[:3]) for record in outcome.history)


@pytest.mark.parametrize(("bits", "rounding"), [(32, 5e-8), (64, 1e-15)])
def test_one_round_stays_within_the_rounding_that_its_record_states(tmp_path: Path, bits: int, rounding: float) -> None:
    plan = secure(1, secure={"bits": bits})
    sites = watched(tmp_path)
    outcome = led(plan, tmp_path / "run", sites)
    stated = outcome.history[0]["rounding"]
    assert 0 < stated < rounding
    expected = Simulated(plan, sites.folders, tmp_path / "run").rounds(set())[0].snapshot.model
    final = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in expected.items():
        single = torch.finfo(torch.float32).eps * value.abs().double()  # both ends round to float32 as well
        assert bool(((final[name].double() - value.double()).abs() <= stated + single).all())


def test_a_round_is_two_messages_and_the_first_two_more(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    led(secure(3), tmp_path / "run", sites)
    moves = list(dict.fromkeys((move, number) for _, move, number, _ in sites.seen))
    assert moves[2:] == [
        ("key", 1), ("offer", 1),
        ("train", 1), ("reveal", 1),
        ("train", 2), ("reveal", 2),
        ("train", 3), ("reveal", 3),
        ("score", 6), ("reveal", 6), ("agree", 6),
    ]  # fmt: skip


def test_a_round_in_which_somebody_comes_back_is_a_message_more(tmp_path: Path) -> None:
    sites = watched(tmp_path, 4)
    sites.mishaps = {("west", 2): "gone"}
    outcome = led(secure(4, 4), tmp_path / "run", sites)
    assert [len(record["answered"]) for record in outcome.history] == [4, 3, 4, 4]
    assert {(move, number) for _, move, number, _ in sites.seen if move == "offer"} == {("offer", n) for n in (1, 2, 3)}


# What leaves a site, and what stays


def test_nothing_but_masked_words_and_shares_leaves_a_site(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    led(secure(2), tmp_path / "run", sites)
    asked = dict[Any, set[Any]]()
    for _, move, number, message in sites.seen:
        if move in ("train", "score"):
            assert message.tensors.keys() == {"masked"} and message.facts.keys() == {"question"}
            asked.setdefault((move, number), set()).add(message.facts["question"])
        elif move in ("key", "offer", "reveal"):
            assert message.tensors == {} and message.facts.keys() <= {"key", "signature", "offer", "shares"}
    assert [len(prints) for prints in asked.values()] == [1, 1, 1]  # all sites are asked the same, and say so


def test_a_site_gives_no_answer_in_the_clear(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    plain: list[Failure | Message] = []
    ask = sites.ask

    def curious(kind: Any, messages: Any, deadline: float) -> Any:
        if kind in ("train", "score"):
            bare = {
                node: Message(one.tensors, {name: fact for name, fact in one.facts.items() if name != "secure"})
                for node, one in messages.items()
            }
            plain.extend(ask(kind, bare, deadline).values())
        return ask(kind, messages, deadline)

    sites.ask = curious  # type: ignore[method-assign]
    led(secure(1), tmp_path / "run", sites)
    assert len(plain) == 6
    assert all(isinstance(one, Failure) and "in no other way" in one.reason for one in plain)


def test_a_site_that_insists_on_secure_sums_takes_no_other_terms(tmp_path: Path) -> None:
    sites = keyed(tmp_path)
    file = sites.folders["south"] / "site.toml"
    file.write_text(file.read_text().replace("secure = false", "secure = true"))
    outcome = led(config(training={"rounds": 1}), tmp_path / "plain", sites)
    assert outcome.history[0]["answered"] == ["north", "west"]
    assert "secure sums only" in (tmp_path / "plain" / "report.md").read_text()
    assert led(secure(1), tmp_path / "run", sites).history[0]["answered"] == ["north", "south", "west"]


def test_secrets_are_a_sites_own_and_are_gone_after_the_run(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    modes: set[tuple[str, int]] = set()
    ask = sites.ask

    def looking(kind: Any, messages: Any, deadline: float) -> Any:
        found = ask(kind, messages, deadline)
        for folder in sites.folders.values():
            modes.update((path.name, path.stat().st_mode & 0o777) for path in folder.glob(".secure/*"))
            modes.update((path.name, path.stat().st_mode & 0o777) for path in folder.glob(".secure"))
        return found

    sites.ask = looking  # type: ignore[method-assign]
    led(secure(1), tmp_path / "run", sites)
    assert modes == {(".secure", 0o700), ("key", 0o600), ("attempt.json", 0o600)}
    assert not any((folder / ".secure").exists() for folder in sites.folders.values())


def test_a_site_that_missed_the_end_of_a_run_has_other_secrets_in_the_next(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    original, key = sites.ask, sites.folders["north"] / ".secure" / "key"

    def killed(kind: Any, messages: Any, deadline: float) -> Any:
        sites.away = {"north"} if kind == "score" else sites.away
        return original(kind, messages, deadline)

    sites.ask = killed  # type: ignore[method-assign]
    led(secure(1), tmp_path / "first", sites)
    old = key.read_bytes()
    sites.away, seen = set(), set[bytes]()

    def looking(kind: Any, messages: Any, deadline: float) -> Any:
        found = original(kind, messages, deadline)
        seen.update([key.read_bytes()] if key.exists() and kind not in ("hello", "agree") else [])
        return found

    sites.ask = looking  # type: ignore[method-assign]
    led(secure(1), tmp_path / "second", sites)
    assert len(seen) == 1 and old not in seen and not key.exists()


def test_the_report_says_that_single_sites_are_not_known(tmp_path: Path) -> None:
    led(secure(1), tmp_path / "run", watched(tmp_path))
    page = (tmp_path / "run" / "report.md").read_text()
    assert "saw sums over sites only" in page and "| north | 63 | - | - | - |" in page


def test_small_cells_stay_withheld_in_sums(tmp_path: Path) -> None:
    plan, sites = secure(1, rules={"min_group": 4}), watched(tmp_path)
    outcome = led(plan, tmp_path / "run", sites)
    plain = led(config(rules={"min_group": 4}, training={"rounds": 1}), tmp_path / "plain", world(tmp_path / "other"))
    assert outcome.test["accuracy"] == plain.test["accuracy"]
    assert "withholds" in (tmp_path / "run" / "report.md").read_text()


# Drop-outs


@pytest.mark.parametrize(("move", "round"), [("key", 1), ("offer", 1), ("train", 1), ("train", 2)])
def test_a_site_that_drops_out_before_it_has_masked_is_not_in_the_sum(tmp_path: Path, move: str, round: int) -> None:
    plan, sites = secure(2, 4), watched(tmp_path, 4)
    sites.drops = {("south", move, round)}
    outcome = led(plan, tmp_path / "run", sites)
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    assert_close(tmp_path / "run", outcome, simulated.rounds({(round, 1)}), within=2e-6)
    assert outcome.history[round - 1]["answered"] == ["north", "west", "east"]
    assert outcome.history[round - 1]["missed"] == {"south": "lost: The site's connection was lost."}


def test_what_a_site_keeps_of_a_round_in_which_it_was_not_summed_is_not_used(tmp_path: Path) -> None:
    plan, sites = secure(4, 4, algorithm={"name": "scaffold"}), watched(tmp_path, 4)
    sites.spoils[("south", "train", 2)] = lambda answer: Message()
    outcome = led(plan, tmp_path / "run", sites)
    assert_close(
        tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds({(2, 1)}), within=1e-5
    )


def test_a_site_that_drops_out_after_it_has_masked_is_in_the_sum(tmp_path: Path) -> None:
    plan, sites = secure(3, 4), watched(tmp_path, 4)
    sites.drops = {("south", "reveal", 2), ("south", "reveal", 6)}
    outcome = led(plan, tmp_path / "run", sites)
    assert_close(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()), within=2e-6)
    assert all(record["missed"] == {} and len(record["answered"]) == 4 for record in outcome.history)


@pytest.mark.parametrize("move", ["train", "reveal"])
def test_below_the_threshold_no_round_is_taken_and_it_goes_on_when_the_sites_are_back(
    tmp_path: Path, move: str
) -> None:
    plan, sites = secure(3, 4), watched(tmp_path, 4)
    sites.drops = {("south", move, 2), ("west", move, 2)}
    with pytest.raises(UserError, match=r"Only 2 of the 3 sites .* run again to go on"):
        led(plan, tmp_path / "run", sites)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "stopped" and status["round"] == 1
    sites.drops.clear()
    outcome = led(plan, tmp_path / "run", sites)
    assert_close(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()), within=2e-6)


def test_where_too_few_reveal_the_round_is_asked_for_again(tmp_path: Path) -> None:
    plan, sites = secure(2, rules={"patience": 5.0}), watched(tmp_path)
    failing = iter([("north", "reveal", 1), ("west", "reveal", 1)])
    original = sites._answer

    def flaky(kind: Any, name: str, message: Any) -> Any:
        if message.facts.get("stage") == "reveal" and name != "south" and next(failing, None):
            return Failure("lost", "The site's connection was lost.")
        return original(kind, name, message)

    sites._answer = flaky  # type: ignore[method-assign]
    outcome = led(plan, tmp_path / "run", sites)
    assert_close(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()), within=2e-6)
    assert len([1 for kind, _ in sites.asked if kind == "train"]) == 3


def losing_revealed(sites: Watched, count: int) -> None:
    """Let the connection break after the first sites have revealed, so that the coordinator lacks their shares."""
    original, lost = sites._answer, iter(range(count))

    def cut(kind: Any, name: str, message: Any) -> Any:
        found = original(kind, name, message)
        if message.facts.get("stage") == "reveal" and next(lost, None) is not None:
            sites.drops.clear()
            return Failure("lost", "The site's connection was lost.")
        return found

    sites._answer = cut  # type: ignore[method-assign]


def test_a_site_that_is_back_waits_until_a_sum_that_was_revealed_without_it_is_there(tmp_path: Path) -> None:
    plan, sites = secure(2, 4, rules={"patience": 5.0}), watched(tmp_path, 4)
    sites.drops = {("east", "train", 1)}
    losing_revealed(sites, 3)
    outcome = led(plan, tmp_path / "run", sites)
    assert [len(record["answered"]) for record in outcome.history] == [3, 4]
    expected = Simulated(plan, sites.folders, tmp_path / "run").rounds({(1, 3)})
    assert_close(tmp_path / "run", outcome, expected, within=2e-6)


def test_so_it_does_where_the_coordinator_was_killed_in_between(tmp_path: Path) -> None:
    plan, sites = secure(2, 4), watched(tmp_path, 4)
    sites.drops, sites.kill = {("east", "train", 1)}, ("after", 7)
    with pytest.raises(Killed):
        led(plan, tmp_path / "run", sites)
    assert [kind for kind, _ in sites.asked[-4:]] == ["secure", "train", "secure", "secure"]  # the last is the reveal
    sites.drops, sites.kill = set(), None
    assert [len(record["answered"]) for record in led(plan, tmp_path / "run", sites).history] == [3, 4]


def test_where_a_revealed_sum_is_lost_the_sites_that_were_chosen_are_asked_again(tmp_path: Path) -> None:
    plan = secure(2, 4, rules={"patience": 5.0}, training={"participation": 0.75})
    sites = watched(tmp_path, 4)
    losing_revealed(sites, 3)
    assert [len(record["answered"]) for record in led(plan, tmp_path / "run", sites).history] == [3, 3]


def test_a_site_whose_secrets_are_lost_comes_back_with_a_new_key(tmp_path: Path) -> None:
    plan, sites = secure(4, 4), watched(tmp_path, 4)
    original = sites._answer

    def forgetful(kind: Any, name: str, message: Any) -> Any:
        if kind == "train" and name == "south" and message.facts["round"] == 1:
            for path in (sites.folders["south"] / ".secure").iterdir():
                path.unlink()
        return original(kind, name, message)

    sites._answer = forgetful  # type: ignore[method-assign]
    outcome = led(plan, tmp_path / "run", sites)
    assert [len(record["answered"]) for record in outcome.history] == [4, 3, 4, 4]


KILLS = [*(("after", number) for number in range(2, 10)), ("before", 5), ("before", 9)]
"""Questions 2 and 3 are for keys and offers, then come two rounds and the scoring, each with its reveal."""


def test_killed_at_any_question_it_comes_to_the_same_numbers(tmp_path: Path) -> None:
    plan, sites = secure(2), watched(tmp_path)
    expected = led(plan, tmp_path / "whole", World(sites.folders))
    for moment, number in KILLS:
        again = World(sites.folders)
        again.kill = (moment, number)
        run = tmp_path / f"{moment}-{number}"
        with pytest.raises(Killed):
            led(plan, run, again)
        again.kill = None
        outcome = led(plan, run, again)
        for mine, theirs in zip(outcome.history, expected.history, strict=True):
            assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}
        assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_run_that_began_in_the_open_may_go_on_in_sums(tmp_path: Path) -> None:
    sites = keyed(tmp_path)
    sites.mishaps = {(name, 2): "dead" for name in ("north", "south")}
    with pytest.raises(UserError, match="Only 1"):
        led(config(training={"rounds": 2}), tmp_path / "run", sites)
    sites.mishaps.clear()
    plan = secure(2)
    outcome = led(plan, tmp_path / "run", sites)
    assert_close(tmp_path / "run", outcome, Simulated(plan, sites.folders, tmp_path / "run").rounds(set()), 2e-6)
    assert "rounding" not in outcome.history[0] and "rounding" in outcome.history[1]


# Ranges and rows


def spoilt(monkeypatch: pytest.MonkeyPatch, sites: Watched, who: tuple[str, ...], value: float) -> None:
    """In round 2 these sites' first bias becomes this."""
    original = sites._answer

    def odd(*arguments: Any) -> Any:
        return {**round_numbers(*arguments), "model's '0.bias'": np.full(4, value)}

    def answering(kind: Any, name: str, message: Any) -> Any:
        with monkeypatch.context() as patch:
            if kind == "train" and message.facts["round"] == 1 and name in who:
                patch.setattr(secure_site, "round_numbers", odd)
            return original(kind, name, message)

    sites._answer = answering  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1000.0, "its model's '0.bias' is beyond the agreed model_range of 16"),
        (float("nan"), "its model's '0.bias' is no longer finite"),
        (float("inf"), "its model's '0.bias' is no longer finite"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_its_site_and_the_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, why: str
) -> None:
    plan, sites = secure(2, 4), watched(tmp_path, 4)
    spoilt(monkeypatch, sites, ("south",), value)
    outcome = led(plan, tmp_path / "run", sites)
    assert outcome.history[1]["quarantined"] == {"south": why}
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    assert_close(tmp_path / "run", outcome, simulated.rounds({(2, 1)}), within=2e-6)


def test_where_all_leave_the_range_the_run_stops_and_says_why(tmp_path: Path) -> None:
    why = r"No site gave .* north: its model's .* beyond the agreed model_range of 1e-06.* widen the range"
    with pytest.raises(UserError, match=why):
        led(secure(2, rules={"patience": 60.0}, secure={"model_range": 1e-6}), tmp_path / "run", watched(tmp_path))


def test_rows_that_are_not_those_agreed_on_show_in_the_sum(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    change_rows_in_training(sites, "west", round=2)
    with pytest.raises(UserError, match="add up to other training rows than they agreed to have"):
        led(secure(), tmp_path / "run", sites)


@pytest.mark.parametrize(
    "message",
    [
        Message(),
        Message({"masked": {"32": torch.zeros(3, dtype=torch.int32), "64": torch.zeros(3, dtype=torch.int64)}}),
        Message({"masked": {"32": torch.zeros(3, dtype=torch.bfloat16)}}),
    ],
)
def test_a_malformed_answer_does_not_count(tmp_path: Path, message: Message) -> None:
    sites = watched(tmp_path, 4)
    sites.spoils = {("south", "train", 1): lambda given: message}
    outcome = led(secure(1, 4), tmp_path / "run", sites)
    assert outcome.history[0]["quarantined"] == {"south": "its masked answer has the wrong form"}


@pytest.mark.parametrize(
    ("move", "facts"), [("key", {}), ("key", {"key": "00"}), ("offer", {}), ("offer", {"offer": "{}"})]
)
def test_a_malformed_key_or_offer_does_not_count(tmp_path: Path, move: str, facts: dict[str, Any]) -> None:
    sites = watched(tmp_path, 4)
    sites.spoils = {("south", move, 1): lambda given: Message(facts=facts)}
    outcome = led(secure(1, 4), tmp_path / "run", sites)
    assert outcome.history[0]["answered"] == ["north", "west", "east"]
    assert list(outcome.history[0]["quarantined"]) == ["south"]


@pytest.mark.parametrize("move", ["key", "offer", "train"])
def test_an_answer_that_cannot_be_read_does_not_count(tmp_path: Path, move: str) -> None:
    sites = watched(tmp_path, 4)
    sites.spoils = {("south", move, 1): lambda given: UNREADABLE}
    outcome = led(secure(2, 4), tmp_path / "run", sites)
    assert outcome.history[0]["answered"] == ["north", "west", "east"]
    assert outcome.history[0]["quarantined"] == {"south": "its answer cannot be read (ValueError: It is cut short.)"}
    assert outcome.history[1]["answered"] == ["north", "south", "west", "east"]


def test_masked_numbers_count_though_a_later_answer_of_their_site_cannot_be_read(tmp_path: Path) -> None:
    plan, sites = secure(1, 4), watched(tmp_path, 4)
    sites.spoils = {("south", "reveal", 1): lambda given: UNREADABLE}
    outcome = led(plan, tmp_path / "run", sites)
    assert outcome.history[0]["answered"] == ["north", "south", "west", "east"]
    assert not outcome.history[0]["quarantined"]
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    assert_close(tmp_path / "run", outcome, simulated.rounds(set()), within=2e-6)


def test_a_site_whose_signature_cannot_be_read_is_not_asked_again_where_it_was_needed(tmp_path: Path) -> None:
    sites = watched(tmp_path, 4)
    sites.drops = {("east", "train", 1)}
    sites.spoils = {("south", "confirm", 1): lambda given: UNREADABLE}
    with pytest.raises(UserError, match="south: its answer cannot be read"):
        led(secure(1, 4, rules={"min_sites": 3}), tmp_path / "run", sites)


def test_wrong_shares_are_not_used(tmp_path: Path) -> None:
    sites = watched(tmp_path, 4)
    for facts in ({"shares": json.dumps(dict.fromkeys(range(4), "00" * 33))}, {"shares": "[]"}, {}):
        sites.spoils = {("south", "reveal", 1): lambda given, facts=facts: Message(facts=facts)}  # type: ignore[misc]
        outcome = led(secure(1, 4), tmp_path / f"run{len(facts)}{len(str(facts))}", sites)
        assert len(outcome.history[0]["answered"]) == 4


# Settings


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"algorithm": {"name": "fairfed"}}, "FairFed needs every site's own answer"),
        ({"rules": {"min_sites": 1}}, "'min_sites' must be at least 2"),
        ({"secure": {"threshold": 0.5}}, "'threshold' of secure aggregation must be above 0.5"),
        ({"secure": {"neighbours": 3}}, "must be an even number"),
        ({"secure": {"bits": 16}}, "must be one of 32, 64"),
        ({"secure": {"model_range": 0.0}}, "'model_range' of secure aggregation must be above 0"),
        ({"rules": {"secure": False}, "secure": {"bits": 64}}, "the rule 'secure' is not on"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        secure(**sections)


def test_settings_come_back_from_the_file(tmp_path: Path) -> None:
    for plan in (secure(secure={"bits": 64, "threshold": 0.75}), config()):
        plan.write(tmp_path / "federation.toml")
        assert FederationConfig.read(tmp_path / "federation.toml") == plan


def test_questions_about_secrets_are_for_federations_that_agreed_on_them(tmp_path: Path) -> None:
    sites = world(tmp_path)
    led(config(training={"rounds": 1}), tmp_path / "run", sites)
    folder = sites.folders["north"]
    terms = hashlib.sha256((folder / "agreed.json").read_bytes()).hexdigest()[:16]
    with pytest.raises(UserError, match="did not agree on secure sums"):
        answer("secure", Message(facts={"stage": "key", "terms": terms}), {"site": str(folder)})

"""Privacy in a real federation: led by the coordinator over sites of their own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.federate.makers import Killed, config, with_model, world

from ffalm import Privacy
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.outcome import Outcome
from ffalm.privacy import epsilon_of

OPEN = {"noise": 0.0, "clip": 1e9, "state_clip": 1e9, "loss_bound": 1e9}
LOUD = {"noise": 8.0, "tally_noise": 16.0}
EACH = 4 / 64 + 4 / 256  # mu^2 of a round
SCORES = 4 / 256  # of the test scores


def led(plan: FederationConfig, folder: Path, **mishaps: Any) -> Outcome:
    return coordinate(plan, folder / "run", world(folder, **mishaps), pause=0.001)


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("algorithm", ["ffalm", "fairfed"])
def test_without_noise_and_bounds_a_federation_comes_to_the_same_model(tmp_path: Path, algorithm: str) -> None:
    for name, privacy in (("plain", {}), ("open", OPEN)):
        led(config(algorithm={"name": algorithm}, privacy=privacy, training={"rounds": 2}), tmp_path / name)
    plain, private = (load_file(tmp_path / name / "run" / "model.safetensors") for name in ("plain", "open"))
    for name, value in plain.items():
        torch.testing.assert_close(private[name], value)
    assert result_of(tmp_path / "open")["test"] == pytest.approx(result_of(tmp_path / "plain")["test"], nan_ok=True)


def test_a_run_tells_what_it_spent_and_nothing_of_single_sites(tmp_path: Path) -> None:
    outcome = led(config(privacy=LOUD, training={"rounds": 3}), tmp_path)
    expected = [epsilon_of(math.sqrt(round * EACH), 1e-5) for round in (1, 2, 3)]
    assert [record["epsilon"] for record in outcome.history] == pytest.approx(expected)
    assert not {"train_loss", "accuracy", "loss"} & {name for record in outcome.history for name in record}
    sites = json.loads((tmp_path / "run" / "sites.json").read_text(encoding="utf-8"))["sites"]
    assert [site["test"] for site in sites] == [None, None, None]
    assert result_of(tmp_path)["clients"] == [{}, {}, {}] and outcome.intervals == {}
    assert math.isfinite(outcome.test["accuracy"])
    whole = f"epsilon = {epsilon_of(math.sqrt(3 * EACH + SCORES), 1e-5):.3g} at delta = 1e-05"
    assert whole in (tmp_path / "run" / "report.md").read_text(encoding="utf-8")


def test_the_seed_of_a_federation_does_not_tell_its_noise(tmp_path: Path) -> None:
    plan = config(privacy=LOUD, training={"rounds": 1})
    first, again = (led(plan, tmp_path / name).history[0]["dual"] for name in ("first", "again"))
    assert first != again


def test_an_answer_far_from_the_others_is_bounded_and_not_put_aside(tmp_path: Path) -> None:
    strange = with_model(lambda model: {name: 1e6 + value for name, value in model.items()})
    lost = with_model(lambda model: {name: value * math.nan for name, value in model.items()})
    mishaps = {("north", 1): strange, ("south", 2): lost}
    plan = config(privacy={**LOUD, "noise": 0.001, "clip": 0.5}, training={"rounds": 2})
    outcome = led(plan, tmp_path, mishaps=mishaps)
    assert [record["quarantined"] for record in outcome.history] == [{}, {}]
    assert all(value.abs().max() < 10 for value in load_file(tmp_path / "run" / "model.safetensors").values())


def test_a_site_that_was_away_has_spent_less(tmp_path: Path) -> None:
    led(config(privacy=LOUD, training={"rounds": 2}), tmp_path, mishaps={("west", 2): "dead"})
    state = load_file(tmp_path / "run" / "checkpoint" / "000002" / "state.safetensors")
    assert state["privacy_spent"].tolist() == pytest.approx([2 * EACH, 2 * EACH, EACH])


def test_a_coordinator_that_was_killed_remembers_what_was_spent(tmp_path: Path) -> None:
    plan, sites = config(privacy=LOUD, training={"rounds": 3}), world(tmp_path)
    asked = coordinate(plan, tmp_path / "first", sites, pause=0.001)
    last_round = [number for number, (kind, _) in enumerate(sites.asked) if kind == "train"][-1]
    sites.kill = ("after", len(sites.asked) + last_round)
    with pytest.raises(Killed):
        coordinate(plan, tmp_path / "run", sites, pause=0.001)
    sites.kill = None
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert [record["epsilon"] for record in outcome.history] == [record["epsilon"] for record in asked.history]


def test_privacy_stays_in_the_settings_and_may_not_change_on_the_way(tmp_path: Path) -> None:
    plan = config(privacy={"noise": 2.0, "delta": 1e-6})
    assert plan.privacy == Privacy(2.0, delta=1e-6)
    assert FederationConfig.parse(plan.settings()) == plan
    led(config(privacy=LOUD, training={"rounds": 1}), tmp_path)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(UserError, match=r"The part 'privacy' of federation\.toml has changed"):
        coordinate(config(training={"rounds": 1}), tmp_path / "run", world(tmp_path / "other"), pause=0.001)

"""What the sites are told when a run stops between two rounds, or is over, and what their administrators see of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.federate.makers import NAMES, World, config, exchange_keys, with_model, world

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator import federated_run
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.keys import SECRETS
from ffalm.federate.run_notice import read_notice
from ffalm.studies.store import RunFolder

AGAIN = "It may be started again: leave this site running."
OVER = "This site may be stopped, or left running for the next run."


def led(plan: FederationConfig, root: Path, sites: World) -> None:
    coordinate(plan, root / "run", sites, pause=0.001)


def last(sites: World, site: str) -> str:
    """What `ffalm federate status` shows at a site."""
    notice = read_notice(sites.folders[site])
    assert notice is not None
    return notice["message"]


def test_where_a_site_is_gone_in_a_round_the_others_learn_that_the_run_has_stopped(tmp_path: Path) -> None:
    sites = world(tmp_path, mishaps={("west", round): "gone" for round in range(3, 6)})
    with pytest.raises(UserError, match="Only 2 of the 3"):
        led(config(rules={"min_sites": 3}), tmp_path, sites)
    assert sites.ended == dict.fromkeys(("north", "south"), "Too few sites took part.")
    for site in ("north", "south"):
        assert last(sites, site) == f"The coordinator has stopped the run: Too few sites took part. {AGAIN}"
    assert last(sites, "west").startswith("This site takes part in the run ")
    sites.mishaps.clear()
    led(config(rules={"min_sites": 3}), tmp_path, sites)
    for site in NAMES[:3]:
        assert last(sites, site) == f"The run is over: All rounds are done. {OVER}"


def test_a_site_is_told_that_its_own_answer_was_missing_and_not_why_it_did_not_count(tmp_path: Path) -> None:
    late: Any = {("south", 2): "late", ("west", 2): with_model(lambda model: {})}
    sites = world(tmp_path, mishaps=late)
    with pytest.raises(UserError, match="Only 1 of the 3"):
        led(config(rules={"min_sites": 3}), tmp_path, sites)
    why = "Too few sites took part."
    assert sites.ended["north"] == why
    missing = "late: The site did not answer within 1 seconds"
    assert sites.ended["south"] == f"{why} This site's last answer is missing ({missing})."
    assert sites.ended["west"] == f"{why} This site's last answer did not count; the coordinator knows why."


def test_an_error_of_the_coordinators_machine_is_told_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = world(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/srv/run")

    monkeypatch.setattr(RunFolder, "save", full)
    with pytest.raises(OSError, match="No space"):
        led(config(), tmp_path, sites)
    assert sites.ended == dict.fromkeys(NAMES[:3], federated_run._FAILED)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "stopped"
    assert status["message"].startswith(
        "An unforeseen error ended the run (OSError: [Errno 28] No space left on device"
    )
    assert last(sites, "north") == f"The coordinator has stopped the run: {federated_run._FAILED} {AGAIN}"


def test_a_training_that_diverged_is_over_at_every_site(tmp_path: Path) -> None:
    sites = world(tmp_path)
    led(config(training={"lr": 1e38, "clip": "none"}), tmp_path, sites)
    assert "diverged in round" in sites.ended["north"]
    assert last(sites, "north").startswith("The run is over: ") and last(sites, "north").endswith(OVER)


def test_a_site_that_missed_the_end_of_secure_sums_is_told_and_deletes_its_secrets(tmp_path: Path) -> None:
    sites = world(tmp_path)
    exchange_keys(sites.folders)
    original, held = sites._answer, dict[str, bool]()

    def failing(kind: Kind, name: str, message: Message) -> Any:
        if "ended" in message.facts:
            held[name] = (sites.folders[name] / SECRETS).exists()
        failed = (kind, name) == ("score", "west")
        return Failure("failed", "The disk is full.") if failed else original(kind, name, message)

    sites._answer = failing  # type: ignore[method-assign]
    led(config(rules={"secure": True}), tmp_path, sites)
    assert held == {"north": False, "south": False, "west": True}
    assert not (sites.folders["west"] / SECRETS).exists()
    assert last(sites, "west") == f"The run is over: All rounds are done. {OVER}"


def test_secrets_of_secure_sums_are_kept_where_a_run_may_go_on(tmp_path: Path) -> None:
    sites = world(tmp_path, mishaps={("west", round): "gone" for round in range(2, 6)})
    exchange_keys(sites.folders)
    plan = config(rules={"secure": True, "min_sites": 3})
    with pytest.raises(UserError, match="Only 2 of the 3"):
        led(plan, tmp_path, sites)
    assert sites.ended.keys() == {"north", "south"} and (sites.folders["north"] / SECRETS).exists()
    sites.mishaps.clear()
    led(plan, tmp_path, sites)
    assert not any((sites.folders[name] / SECRETS).exists() for name in NAMES[:3])


def test_that_the_sites_cannot_be_told_does_not_hide_why_a_run_stopped(tmp_path: Path) -> None:
    sites = world(tmp_path, mishaps={("west", round): "gone" for round in range(2, 6)})
    ask = sites.ask

    def broken(kind: Kind, messages: Any, deadline: float) -> Any:
        if any("ended" in one.facts for one in messages.values()):
            raise RuntimeError("The run is not running.")
        return ask(kind, messages, deadline)

    sites.ask = broken  # type: ignore[method-assign]
    with pytest.raises(UserError, match="Only 2 of the 3"):
        led(config(rules={"min_sites": 3}), tmp_path, sites)

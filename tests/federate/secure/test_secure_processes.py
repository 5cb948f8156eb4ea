"""Secure aggregation between real processes, of which one is killed in the middle of a round."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

import torch
from safetensors.torch import load_file
from tests.federate.deploy.machines import PATIENCE, Machines, kill, known_clients, until
from tests.federate.makers import Simulated

from ffalm.federate.federation_config import FederationConfig

pytestmark = pytest.mark.slow

WITHIN = 2e-6


def assert_close_to_simulation(machines: Machines) -> None:
    """Up to rounding, the numbers of a simulation in which the same sites missed the same rounds."""
    folder, history = machines.folder, machines.history()
    plan = FederationConfig.read(folder.path / "federation.toml")
    assert plan.secure is not None
    missing = {
        (record["round"], place)
        for record in history
        for place, site in enumerate(plan.sites)
        if site not in record["answered"]
    }
    same = Simulated(plan, {name: folder.site(name) for name in plan.sites}, folder.run)
    simulated = same.rounds(missing, known=known_clients(plan, history))
    assert [record["dual"] for record in history] == pytest.approx(
        [float(done.snapshot.state["dual"]) for done in simulated], abs=WITHIN
    )
    final = load_file(folder.run / "model.safetensors")
    for name, value in simulated[-1].snapshot.model.items():
        torch.testing.assert_close(final[name], value, rtol=0, atol=WITHIN)


def test_a_site_killed_in_a_secure_round_is_missed_and_comes_back(machines: Machines) -> None:
    flags = ("rules.secure=true", "rules.deadline=15.0", "rules.patience=30.0")
    machines.init("--sites", "3", "--rounds", "40", *(word for flag in flags for word in ("--set", flag)))
    machines.bring_up()
    run = machines.background("run", machines.path)
    log = machines.site("west").process.log
    until(lambda: log.read_text().count("Asked: train") >= 2 or run.poll() is not None, "west trains in round 2")
    kill(machines.site("west").process)
    until(lambda: len(machines.history()) >= 2 or run.poll() is not None, "the round goes on without it")
    code, _, said = machines.ffalm("site", machines.folder.site("west"), "--detach")
    assert code == 0, said
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    history = machines.history()
    assert "west" in history[1]["missed"]
    assert history[0]["answered"] == history[-1]["answered"] == ["north", "south", "west"]
    assert_close_to_simulation(machines)
    assert not any((machines.folder.site(name) / ".secure").exists() for name in ("north", "south", "west"))

"""A federation over its life, as real processes: sites come and go, keys change, the machine is lost and restored."""

from __future__ import annotations

import http.client
import json
import shutil
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from tests.federate.deploy.machines import PATIENCE, Machines, assert_equals_simulation, here, until

from ffalm.federate.deploy.doctor import examine
from ffalm.federate.deploy.folder import SiteFolder
from ffalm.federate.deploy.processes import free_port

pytestmark = pytest.mark.slow


def _metrics(port: int) -> str:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    link.request("GET", "/metrics", headers={"Host": f"localhost:{port}"})
    text = link.getresponse().read().decode()
    link.close()
    return text


def _refused(machines: Machines, folder: Path) -> None:
    """One that was let in before tries again for as long as it may wait."""
    code, _, said = machines.ffalm("site", folder, "--wait", 40, "--detach")
    assert code == 2 and "was not admitted" in said, said


def test_sites_come_and_go_keys_change_and_a_lost_machine_is_restored(
    machines: Machines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = free_port()
    machines.init("--sites", "3", "--rounds", "40", "--target", "none", "--set", f"metrics.port={metrics}")
    machines.bring_up()
    port = machines.folder.address[1]
    for checks in (
        examine(machines.folder),
        examine(SiteFolder.find(machines.folder.site("north"))),
    ):
        found = {check.name: check.level for check in checks}
        assert (found[f"port {port}"], found["clock"]) == ("ok", "ok")
    run = machines.background("run", machines.path)
    until(lambda: len(machines.history()) >= 2, "two rounds")
    assert here("backup", machines.path, tmp_path / "while-running.tar") == 0
    text = _metrics(metrics)
    assert "ffalm_sites_online 3" in text and "ffalm_received_bytes_total" in text
    capfd.readouterr()
    assert here("add-site", machines.path, "east") == 0
    out = capfd.readouterr().out
    assert "is let in now" in out and "goes on without it" in out
    assert here("stop", machines.path) == 0
    run.communicate(timeout=PATIENCE)
    machines.assert_nothing_left()
    done = len(machines.history())
    assert 2 <= done < 40
    file, rounds = machines.path / "federation.toml", done + 3
    file.write_text(file.read_text().replace("rounds = 40", f"rounds = {rounds}"))

    east, north = machines.folder.site("east"), machines.folder.site("north")
    shutil.copy(north / "people.csv", east / "data.csv")
    left_out = shutil.ignore_patterns("home", "*.pid", "*.log")
    old, west = tmp_path / "old-north", tmp_path / "removed-west"
    shutil.copytree(north, old, ignore=left_out)
    shutil.copytree(machines.folder.site("west"), west, ignore=left_out)
    assert here("rotate-key", machines.path, "north") == 0
    assert here("rotate-key", machines.path, "--coordinator") == 0
    assert here("remove-site", machines.path, "west") == 0
    settings = tomllib.loads(file.read_text())
    assert (settings["sites"], settings["removed"]) == (["north", "south", "west", "east"], ["west"])

    assert here("backup", machines.path, tmp_path / "stopped.tar") == 0
    shutil.rmtree(machines.path)
    assert here("restore", tmp_path / "stopped.tar", machines.path) == 0

    machines.bring_up()
    for folder in (old, west):
        _refused(machines, folder)
    code, _, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    history = machines.history()
    assert len(history) == rounds
    assert all(record["answered"] == ["north", "south", "east"] for record in history[done:]), history[done]
    assert json.loads((machines.folder.run / "versions.json").read_text()).keys() == {"north", "south", "west", "east"}
    assert "ffalm_run_finished 1" in _metrics(metrics)
    assert here("restore", tmp_path / "while-running.tar", tmp_path / "earlier") == 0
    assert_equals_simulation(machines)


def test_a_running_coordinator_shuts_a_removed_site_and_an_old_key_out_and_goes_on(machines: Machines) -> None:
    machines.init("--sites", "3", "--rounds", "18")
    machines.bring_up()
    run = machines.background("run", machines.path)
    until(lambda: len(machines.history()) >= 2, "two rounds")
    assert here("remove-site", machines.path, "west") == 0
    assert here("rotate-key", machines.path, "north") == 0
    for name in ("west", "north"):  # refused, they go on trying, for a refusal may be a clock's
        code, _, said = machines.ffalm("stop", machines.folder.site(name))
        assert code == 0, said
    _refused(machines, machines.folder.site("west"))
    code, _, said = machines.ffalm("site", machines.folder.site("north"), "--wait", PATIENCE, "--detach")
    assert code == 0, said
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    assert machines.history()[-1]["answered"] == ["north", "south"]

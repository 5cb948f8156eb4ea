"""A federation over its life, as real processes: sites come and go, keys change, the machine is lost and restored."""

from __future__ import annotations

import http.client
import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from tests.federate.deploy.machines import Machines, assert_equals_simulation, here, until

from ffalm.federate.deploy.processes import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


def _metrics(port: int) -> str:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    link.request("GET", "/metrics", headers={"Host": f"localhost:{port}"})
    text = link.getresponse().read().decode()
    link.close()
    return text


def _doctor(machines: Machines, folder: Path) -> dict[str, str]:
    _, out, _ = machines.ffalm("doctor", folder, "--json")
    return {check["name"]: check["level"] for check in json.loads(out)["checks"]}


def test_sites_come_and_go_keys_change_and_a_lost_machine_is_restored(machines: Machines, tmp_path: Path) -> None:
    metrics = free_port()
    machines.init("--sites", "3", "--rounds", "40", "--set", f"metrics.port={metrics}")
    machines.bring_up()
    port = machines.folder.address[1]
    for folder in (machines.path, machines.folder.site("north")):
        found = _doctor(machines, folder)
        assert (found[f"port {port}"], found["clock"]) == ("ok", "ok")
    run = machines.background("run", machines.path)
    until(lambda: len(machines.history()) >= 2, "two rounds")
    assert here("backup", machines.path, tmp_path / "while-running.tar") == 0
    text = _metrics(metrics)
    assert "ffalm_sites_online 3" in text and "ffalm_received_bytes_total" in text
    code, out, said = machines.ffalm("add-site", machines.path, "east")
    assert code == 0, said
    assert "is let in now" in out and "goes on without it" in out
    machines.ffalm("stop", machines.path)
    run.communicate(timeout=60)
    machines.assert_nothing_left()
    done = len(machines.history())
    assert 2 <= done < 40
    file, rounds = machines.path / "federation.toml", done + 3
    file.write_text(file.read_text().replace("rounds = 40", f"rounds = {rounds}"))

    east, north = machines.folder.site("east"), machines.folder.site("north")
    shutil.copy(north / "people.csv", east / "data.csv")
    old = tmp_path / "old-north"
    shutil.copytree(north, old, ignore=shutil.ignore_patterns("home", "*.pid", "*.log"))
    west = tmp_path / "removed-west"
    shutil.copytree(machines.folder.site("west"), west, ignore=shutil.ignore_patterns("home", "*.pid", "*.log"))
    assert here("rotate-key", machines.path, "north") == 0
    assert here("rotate-key", machines.path, "--coordinator") == 0
    assert here("remove-site", machines.path, "west") == 0
    settings = tomllib.loads((machines.path / "federation.toml").read_text())
    assert (settings["sites"], settings["removed"]) == (["north", "south", "west", "east"], ["west"])

    assert here("backup", machines.path, tmp_path / "stopped.tar") == 0
    shutil.rmtree(machines.path)
    assert here("restore", tmp_path / "stopped.tar", machines.path) == 0

    machines.bring_up()
    for refused in (old, west):
        code, _, said = machines.ffalm("site", refused, "--wait", "20", "--detach")
        assert code == 2 and "was not let in" in said, said
    code, _, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    history = machines.history()
    assert len(history) == rounds
    assert all(record["answered"] == ["north", "south", "east"] for record in history[done:]), history[done]
    assert json.loads((machines.folder.run / "versions.json").read_text()).keys() == {"north", "south", "west", "east"}
    assert "ffalm_run_finished 1" in _metrics(metrics)
    assert_equals_simulation(machines)
    code, _, said = machines.ffalm("restore", tmp_path / "while-running.tar", tmp_path / "earlier")
    assert code == 0, said


def test_a_running_coordinator_shuts_a_removed_site_out_and_goes_on(machines: Machines) -> None:
    machines.init("--sites", "3", "--rounds", "25")
    machines.bring_up()
    run = machines.background("run", machines.path)
    until(lambda: len(machines.history()) >= 2, "two rounds")
    code, out, said = machines.ffalm("remove-site", machines.path, "west")
    assert code == 0 and "refused from now on" in out, said
    code, out, said = machines.ffalm("rotate-key", machines.path, "north")
    assert code == 0 and "the old one refused, now" in out, said
    until(lambda: machines.site("west").process.pid() is None, "the removed site's process has ended", 60)
    until(lambda: machines.site("north").process.pid() is None, "the site with the old key has ended", 60)
    code, _, said = machines.ffalm("site", machines.folder.site("north"), "--detach")
    assert code == 0, said
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert machines.history()[-1]["answered"] == ["north", "south"]
    code, _, said = machines.ffalm("site", machines.folder.site("west"), "--wait", "15", "--detach")
    assert code == 2 and "was not let in" in said, said

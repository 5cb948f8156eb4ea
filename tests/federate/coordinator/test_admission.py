"""Who gets in: the sites whose keys are registered, encrypted, and nobody else."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from tests.federate.deploy.machines import PATIENCE, Machines, here, until

from ffalm.errors import UserError
from ffalm.federate.deploy.certificates import write_authority
from ffalm.federate.deploy.folder import SiteFolder
from ffalm.federate.deploy.operations import SiteProcess, processes_of
from ffalm.federate.deploy.processes import environment, executable, free_port
from ffalm.federate.keys import write_key_pair
from ffalm.system import toml

SHORT = ("--wait", "8")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """A coordinator that waits for its two sites."""
    made = Machines(tmp_path)
    made.init("--sites", "2")
    try:
        code, _, said = made.ffalm("coordinator", made.path, "--detach")
        assert code == 0, said
        yield made
    finally:
        made.close()


def _copy(machines: Machines, name: str) -> Path:
    """The folder of a site, to be tampered with."""
    folder = machines.path.with_name(name)
    shutil.copytree(machines.folder.site("south"), folder, ignore=shutil.ignore_patterns("home", "*.log", "*.pid"))
    return folder


def _keyless(machines: Machines, folder: Path) -> list[str]:
    """Flower's own command, since ours does not start without a key."""
    host, port = machines.folder.address
    trust = ["--root-certificates", str(folder / "ca.crt")]
    return [executable("flower-supernode"), "--superlink", f"{host}:{port}", *trust, "--port", str(free_port())]


def test_a_site_without_its_key_or_the_authority_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "site.toml").write_text('name = "north"\n')
    (tmp_path / "coordinator.toml").write_text('address = "127.0.0.1:18000"\n')
    site = SiteProcess(SiteFolder.find(tmp_path))
    for missing in ("ca.crt", "node.key"):
        with pytest.raises(UserError, match=f"lacks {missing}: ask the coordinator for it"):
            site.start(1.0)
        (tmp_path / missing).touch()
    assert site.process.family() == []


@pytest.mark.slow  # each of these obstacles has a fast test: fleet_gateway, site_admission, certificates
def test_a_site_that_is_unregistered_keyless_or_in_plain_text_never_gets_in(
    machines: Machines, capfd: pytest.CaptureFixture[str]
) -> None:
    unregistered, keyless, plain, fooled = (_copy(machines, name) for name in ("new", "keyless", "plain", "fooled"))
    write_key_pair(unregistered, "south")
    (keyless / "node.key").unlink()
    write_authority(fooled / "other", "fed")
    shutil.copy(fooled / "other" / "ca.crt", fooled / "ca.crt")
    process = machines.stranger(_copy(machines, "stranger"), _keyless(machines, keyless))
    attempts = {
        "not registered": machines.background("site", unregistered),
        "cannot reach": machines.background("site", plain, "--insecure", *SHORT),
    }
    for reason, folder in {"lacks node.key": keyless, "no certificate of this federation": fooled}.items():
        capfd.readouterr()
        assert here("site", folder) == 2
        assert reason in capfd.readouterr().err.splitlines()[-1]
    for reason, attempt in attempts.items():
        _, said = attempt.communicate(timeout=PATIENCE)
        assert attempt.returncode == 2
        assert reason in said.splitlines()[-1]
        assert "Traceback" not in said
    assert process.wait(lambda said: "[code: 2001]" in said, 60)
    until(lambda: process.pid() is None, "the site without a key ends", 30)
    assert list(machines.coordinator.control.nodes().values()) == ["registered", "registered"]
    for folder in (unregistered, plain, fooled):
        assert not processes_of(folder)["south"].family()
    _assert_closed_to_the_network(machines, unregistered)


def _assert_closed_to_the_network(machines: Machines, stranger: Path) -> None:
    """Nobody who can reach the port, and knows the authority, can register a key, start a run or list sites."""
    host, port = machines.folder.address
    connection = {"address": f"{host}:{port}", "root-certificates": str(stranger / "ca.crt")}
    home = stranger / "outsider"
    home.mkdir()
    (home / "config.toml").write_text(toml.dumps({"superlink": {"default": "it", "it": connection}}))
    register = ["supernode", "register", str(stranger / "node.pub")]
    for command in (register, ["run", str(machines.folder.app)], ["supernode", "list"]):
        tried = subprocess.run(
            [executable("flwr"), *command, "--format", "json"],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        answer = json.loads(tried.stdout[tried.stdout.index("{") :])
        assert answer["success"] is False
        assert "403" in answer["error-message"]


@pytest.mark.slow
def test_a_registered_site_gets_in_until_its_key_is_replaced(machines: Machines) -> None:
    site = machines.folder.site("south")
    code, _, said = machines.ffalm("site", site, "--detach")
    assert code == 0, said
    assert "online" in machines.coordinator.control.nodes().values()
    machines.ffalm("stop", site)
    stolen = site.with_name("stolen")
    shutil.copytree(site, stolen, ignore=shutil.ignore_patterns("home", "*.log", "*.pid"))
    write_key_pair(site, "south")
    machines.ffalm("stop", machines.path)
    assert machines.ffalm("coordinator", machines.path, "--detach")[0] == 0
    code, _, said = machines.ffalm("site", stolen)
    assert code == 2
    assert "not admitted" in said
    code, _, said = machines.ffalm("site", site, "--detach")
    assert code == 0, said

"""Sites and coordinators brought up and down; what keeps a site out is told such that something can be done."""

from __future__ import annotations

import errno
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.errors import UserError
from ffalm.federate.deploy import fleet_gateway, operations, site_node
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.operations import COORDINATOR, CoordinatorProcess, SiteProcess, _obstacle, stop_all
from ffalm.federate.deploy.processes import FlowerProcess, free_port


def test_a_port_where_nobody_listens_is_told_from_one_that_answers_otherwise() -> None:
    assert "nothing listens there" in _obstacle("127.0.0.1", free_port())
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "--insecure" in _obstacle("127.0.0.1", other.getsockname()[1])


def test_a_coordinator_listens_on_all_addresses_of_the_kind_that_sites_call(tmp_path: Path) -> None:
    usual = {"fair.example:9": "0.0.0.0", "10.0.0.5:9": "0.0.0.0", "[fd00::5]:9": "::", "[::1]:9": "::1"}
    for address, listen in {**usual, "127.0.0.1:9": "127.0.0.1", "localhost:9": "localhost"}.items():
        (tmp_path / "federation.toml").write_text(f'address = "{address}"\n')
        assert CoordinatorProcess(FederationFolder.find(tmp_path)).usual_listen == listen


def test_an_address_that_is_none_of_this_machine_is_told_from_a_port_that_is_in_use() -> None:
    for host in ("192.0.2.1", "nothing.invalid"):
        with pytest.raises(UserError, match="is no address of this machine: name another by --listen"):
            operations._require_free(host, free_port(), "change it")
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(UserError, match=r"in use\): stop the process that does"),
    ):
        operations._require_free("127.0.0.1", other.getsockname()[1], "change it")


def test_a_port_of_roots_is_not_said_to_be_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(host: str, port: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(fleet_gateway, "listener", refused)
    with pytest.raises(UserError, match=r"listen on 127\.0\.0\.1:443 \(Permission denied\): change it\.$"):
        operations._require_free("127.0.0.1", 443, "change it")


def test_a_name_that_is_not_known_and_a_network_that_is_shut_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    def shut(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert "the host fair.example is unknown" in _obstacle("fair.example", 18000)
    monkeypatch.setattr(socket, "create_connection", shut)
    assert "no connection (timed out); allow outgoing TCP" in _obstacle("fair.example", 18000)


def test_a_proxy_between_a_site_and_its_coordinator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    told = _obstacle("fair.example", 18000)
    assert "the proxy in the variable https_proxy" in told and "add fair.example to no_proxy" in told
    assert "secret" not in told
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "nothing listens there" in _obstacle("127.0.0.1", free_port())


def test_a_site_that_is_given_up_does_not_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower refuses a site that died a moment ago, so `start` tries again for a while; a Ctrl-C must not wait."""
    refused = [sys.executable, "-c", "print('[code: 2004]')"]
    monkeypatch.setattr(SiteProcess, "_command", lambda self, insecure: refused)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "let-in").touch()
    (tmp_path / "site.toml").write_text('name = "north"\n')
    (tmp_path / "coordinator.toml").write_text('address = "127.0.0.1:18000"\n')
    site = SiteProcess(SiteFolder.find(tmp_path))
    with ThreadPoolExecutor(1) as other:
        starting = other.submit(site.start, 60.0)
        while not site.process.said():
            time.sleep(0.02)
        began = time.monotonic()
        site.give_up()
        with pytest.raises(UserError, match="not admitted"):
            starting.result(30)
    assert time.monotonic() - began < 20
    assert site.process.family() == []


def test_a_site_that_comes_before_its_key_is_let_in_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import pathlib, sys, time; f = pathlib.Path(sys.argv[1]); seen = f.exists(); f.touch()"
    code += f"; print('{site_node.LET_IN}' if seen else '[code: 2004]', flush=True); time.sleep(60 * seen)"
    command = [sys.executable, "-c", code, str(tmp_path / "seen")]
    monkeypatch.setattr(SiteProcess, "_command", lambda self, insecure: command)
    monkeypatch.setattr(operations, "_SECONDS_BETWEEN_TRIES", 0.01)
    (tmp_path / "site.toml").write_text('name = "north"\n')
    (tmp_path / "coordinator.toml").write_text('address = "127.0.0.1:18000"\n')
    site = SiteProcess(SiteFolder.find(tmp_path))
    try:
        site.start(60.0)
        assert site.process.pid() is not None
    finally:
        site.give_up()
    (tmp_path / "seen").unlink()
    (tmp_path / "home" / "let-in").unlink()
    monkeypatch.setattr(operations, "_SECONDS_TO_LET_IN", 0.0)
    with pytest.raises(UserError, match="not admitted"):
        SiteProcess(SiteFolder.find(tmp_path)).start(60.0)


def test_sites_end_before_the_coordinator_so_that_they_can_sign_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def stop(process: FlowerProcess) -> bool:
        ended.append(process.log.stem)
        return process.log.stem != "south"

    monkeypatch.setattr(FlowerProcess, "stop", stop)
    names = (COORDINATOR, "north", "south")
    assert stop_all({name: FlowerProcess(tmp_path, name) for name in names}) == [COORDINATOR, "north"]
    assert ended[-1] == COORDINATOR and len(ended) == 3


def test_a_coordinator_that_is_starting_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = CoordinatorProcess(FederationFolder(tmp_path))
    with pytest.raises(UserError, match="is not running: start it"):
        coordinator.require_running()
    monkeypatch.setattr(FlowerProcess, "pid", lambda _: 7)
    asked: list[bool] = []

    def sleep(_: float) -> None:
        asked.append(coordinator.control.configured or coordinator.control.knows_keys)
        if len(asked) == 3:
            coordinator.control.configure("127.0.0.1:9", tmp_path / "ca.crt")

    monkeypatch.setattr("ffalm.federate.deploy.operations.time.sleep", sleep)
    coordinator.require_running()
    assert asked == [False] * 3 and coordinator.control.knows_keys
    coordinator.control.forget()
    assert not coordinator.control.configured


def test_a_site_that_is_stopped_keeps_no_secrets_of_secure_sums(tmp_path: Path) -> None:
    secrets = tmp_path / ".secure"
    secrets.mkdir()
    (secrets / "key").write_bytes(b"secret")
    assert stop_all({"north": FlowerProcess(tmp_path, "supernode")}) == []  # it had been killed
    assert not secrets.exists()


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_without_the_record_of_keys_that_were_let_in_the_coordinator_does_not_start(
    tmp_path: Path, content: str | None
) -> None:
    (tmp_path / "federation.toml").write_text('sites = ["north"]\n')
    coordinator = CoordinatorProcess(FederationFolder(tmp_path))
    (tmp_path / "coordinator").mkdir()
    if content is not None:
        (tmp_path / "coordinator" / "registered.json").write_text(content)
    with pytest.raises(
        UserError, match=r"registered\.json of registered keys is missing or damaged.*restore it, or delete .*state\.db"
    ):
        coordinator.register_keys()

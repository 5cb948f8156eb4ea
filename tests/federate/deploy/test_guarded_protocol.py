"""Connections that do nothing, that are too many or come from elsewhere do not keep sites from the coordinator."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs Flower: pip install 'ffalm[flower]'")

import uvicorn

from ffalm.errors import UserError
from ffalm.federate.deploy.certificates import ensure_server_certificate, write_authority
from ffalm.federate.deploy.fleet_gateway import (
    INTRODUCTIONS,
    FleetGateway,
    Receive,
    Scope,
    Send,
    limit_handshakes,
    listener,
    raise_file_limit,
)
from ffalm.federate.deploy.guarded_protocol import guarded, networks_of
from ffalm.federate.federation_config import FederationConfig


async def refuse_bad_keys(scope: Scope) -> int | None:
    return None if dict(scope["headers"]).get(b"key") == b"good" else 401


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    while scope["path"].endswith(("activate-node", "push-object")) and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def served(tls: Path | None = None, **limits: Any) -> Iterator[tuple[str, int]]:
    """A gateway on a loopback port that counts as the network, with the certificate in a folder or without TLS."""
    files = {"ssl_keyfile": "server.key", "ssl_certfile": "server.pem"}
    keys: dict[str, Any] = {} if tls is None else {option: tls / name for option, name in files.items()}
    with listener("127.0.0.1", 0) as door:
        inner = ("127.0.0.1", 1)
        config = uvicorn.Config(
            FleetGateway(application, inner, refuse_bad_keys), http=guarded(inner, **limits, keyless=INTRODUCTIONS),
            loop="asyncio", ws="none", log_level="critical", lifespan="off", **keys,
        )  # fmt: skip
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        thread = threading.Thread(target=lambda: server.run([door]), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield door.getsockname()
        finally:
            server.should_exit = True
            thread.join(10)


def answer(address: tuple[str, int], head: str = "key: good\r\n", length: int = 0) -> bytes:
    """What is answered to a request of which no body is ever sent."""
    with socket.create_connection(address, timeout=5) as one:
        said = f"POST /v1/fleet/pull-object HTTP/1.1\r\nhost: x\r\n{head}content-length: {length}\r\n\r\n"
        one.sendall(said.encode())
        try:
            return one.recv(100)
        except ConnectionResetError:
            return b""


def test_silent_connections_are_closed_and_sites_are_answered_meanwhile() -> None:
    with served(seconds=0.3) as address:
        silent = [socket.create_connection(address, timeout=5) for _ in range(20)]
        silent[0].sendall(b"POST /v1/fl")
        assert answer(address).startswith(b"HTTP/1.1 200")
        for one in silent:
            with one, suppress(ConnectionResetError):
                assert one.recv(1) == b""


def trickled(one: socket.socket, seconds: float) -> float:
    """Send a byte now and then; after how many seconds the other side closes, at most so many."""
    start = time.monotonic()
    while (gone := time.monotonic() - start) < seconds:
        try:
            one.sendall(b"x")
            one.settimeout(0.05)
            if one.recv(1000) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return gone


def test_a_tls_handshake_that_is_never_finished_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_authority(tmp_path, "clinics")
    ensure_server_certificate(tmp_path, "127.0.0.1")
    monkeypatch.setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", 60.0)  # type: ignore[attr-defined]
    limit_handshakes(0.3)
    with served(tmp_path, seconds=30.0) as address, socket.create_connection(address, timeout=10) as silent:
        began = time.monotonic()
        with suppress(ConnectionError):
            assert silent.recv(1) == b""
        assert 0.2 < time.monotonic() - began < 8


def test_a_body_that_nobody_had_to_show_a_key_for_must_come_soon() -> None:
    head = "POST {} HTTP/1.1\r\nhost: x\r\n{}content-length: 60000\r\n\r\n"
    with served(seconds=0.2) as address:
        with socket.create_connection(address, timeout=5) as stranger:
            stranger.sendall(head.format(INTRODUCTIONS[0], "").encode())
            assert trickled(stranger, 5.0) < 2.0
        with socket.create_connection(address, timeout=5) as site:
            site.sendall(head.format("/v1/fleet/push-object", "key: good\r\n").encode())
            assert trickled(site, 1.5) >= 1.5


def test_the_headers_of_a_second_request_must_come_soon_too() -> None:
    with served(seconds=0.2) as address, socket.create_connection(address, timeout=5) as one:
        one.sendall(b"POST /v1/fleet/pull-object HTTP/1.1\r\nhost: x\r\nkey: good\r\ncontent-length: 0\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        one.sendall(b"POST /v1/fleet/pull-object HTTP/1.1\r\nhost: ")
        assert trickled(one, 5.0) < 2.0


def test_a_stranger_is_refused_while_its_large_body_is_still_to_come() -> None:
    with served() as address:
        assert answer(address, head="", length=10**12).startswith(b"HTTP/1.1 401")
        assert answer(address, length=10**12).startswith(b"HTTP/1.1 413")


def test_connections_above_the_limit_are_closed_at_once() -> None:
    with served(most=2, seconds=60.0) as address:
        held = [socket.create_connection(address, timeout=5) for _ in range(2)]
        time.sleep(0.1)
        assert answer(address) == b""
        for one in held:
            one.close()
        time.sleep(0.1)
        assert answer(address).startswith(b"HTTP/1.1 200")


def test_addresses_outside_the_allowed_networks_are_closed() -> None:
    with served(networks=networks_of("10.0.0.0/8,192.0.2.7")) as address:
        assert answer(address) == b""
    with served(networks=networks_of("10.0.0.0/8,127.0.0.1")) as address:
        assert answer(address).startswith(b"HTTP/1.1 200")


def test_a_network_that_is_none_is_refused_in_federation_toml() -> None:
    base = {"name": "f", "sites": ["a"], "data": {"label": "y", "group": "g"}, "rules": {"min_sites": 1}}
    assert FederationConfig.parse({**base, "allow": ["10.0.0.0/8"]}).allow == ("10.0.0.0/8",)
    with pytest.raises(UserError, match=r"such as 10\.0\.0\.5 or 10\.1\.0\.0/16; got 'hospital'"):
        FederationConfig.parse({**base, "allow": ["hospital"]})


def test_the_file_limit_is_raised_to_what_the_process_may_have() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

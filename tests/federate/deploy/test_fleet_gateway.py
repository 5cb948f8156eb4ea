"""What is open to the network, and what to the coordinator's own machine alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import MutableMapping
from typing import Any

import pytest

from ffalm.federate.deploy.bundle import GIVE, TAKE
from ffalm.federate.deploy.fleet_gateway import Admission, FleetGateway, Receive, Scope, Send, listener

INNER = ("127.0.0.1", 4001)
OUTER = ("127.0.0.1", 4000)
Sent = list[MutableMapping[str, Any]]


def _through(
    scope: Scope, admission: Admission | None = None, bodies: tuple[bytes, ...] = (b"",), most_bytes: int = 100
) -> tuple[bool, Sent]:
    """Whether a request reached the application, and what was answered in its stead."""
    reached: list[Scope] = []
    sent: Sent = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)
        for _ in bodies:
            read.append(str((await receive())["type"]))

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    left = iter(bodies)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": next(left)}

    read: list[str] = []
    asyncio.run(FleetGateway(app, INNER, admission, most_bytes)(scope, receive, send))
    return bool(reached) and "http.disconnect" not in read, sent


@pytest.mark.parametrize("path", ["/v1/fleet/activate-node", "/v1/fleet/pull-object", TAKE, GIVE])
def test_sites_are_let_through(path: str) -> None:
    assert _through({"type": "http", "path": path, "server": OUTER}) == (True, [])


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/", "/v1/fleet"),
        *("/v1/fleet/push-messages", "/v1/fleet/pull-messages", "/v1/fleet/get-fab", "/v1/fleet/x"),
    ],
)
def test_everything_else_is_refused_from_outside_and_open_from_inside(path: str) -> None:
    reached, sent = _through({"type": "http", "path": path, "server": OUTER})
    assert not reached
    assert sent[0]["status"] == 403
    assert _through({"type": "http", "path": path, "server": INNER}) == (True, [])


def test_a_request_of_unknown_arrival_counts_as_from_outside() -> None:
    assert not _through({"type": "http", "path": "/v1/control/start-run", "server": None})[0]
    assert not _through({"type": "http", "path": "/v1/control/start-run"})[0]


def test_what_claims_to_be_forwarded_from_inside_is_refused_too() -> None:
    headers = [(b"host", b"127.0.0.1:4001"), (b"x-forwarded-for", b"127.0.0.1"), (b"x-forwarded-port", b"4001")]
    scope = {"type": "http", "path": "/v1/control/start-run", "server": OUTER, "client": INNER, "headers": headers}
    assert not _through(scope)[0]


def test_a_websocket_from_outside_is_closed() -> None:
    reached, sent = _through({"type": "websocket", "path": "/v1/fleet/x", "server": OUTER})
    assert not reached
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_application_starts_and_ends_as_usual() -> None:
    assert _through({"type": "lifespan"})[0]


def test_an_address_that_is_taken_cannot_be_listened_on() -> None:
    with listener("127.0.0.1", 0) as taken:
        assert taken.family == socket.AF_INET
        with pytest.raises(OSError, match="in use"):
            listener("127.0.0.1", taken.getsockname()[1])


async def refuse(scope: Scope) -> int | None:
    """An admission that lets nobody in."""
    return 401


def test_a_request_without_a_key_is_refused_before_its_body_is_read() -> None:
    body_that_must_not_be_read = ()
    reached, sent = _through(
        {"type": "http", "path": "/v1/fleet/push-object", "server": OUTER}, refuse, body_that_must_not_be_read
    )
    assert not reached and sent[0]["status"] == 401
    assert (b"connection", b"close") in sent[0]["headers"]
    assert _through({"type": "http", "path": "/v1/fleet/push-object", "server": INNER}, refuse)[0]


def test_a_stranger_may_introduce_itself_in_few_words_so_that_it_is_told_why_it_is_refused() -> None:
    asked = {"type": "http", "path": "/v1/fleet/activate-node", "server": OUTER}
    assert _through(asked, refuse)[0]
    long = {**asked, "headers": [(b"content-length", b"65537")]}
    reached, sent = _through(long, refuse, most_bytes=2**30)
    assert not reached and sent[0]["status"] == 413
    assert not _through(asked, refuse, (b"x" * 65537,), most_bytes=2**30)[0]


@pytest.mark.parametrize("length", [b"101", b"-1", b"1e3", b"9" * 30])
def test_a_body_that_says_it_is_too_large_is_refused(length: bytes) -> None:
    scope = {"type": "http", "path": "/v1/fleet/push-object", "server": OUTER, "headers": [(b"content-length", length)]}
    reached, sent = _through(scope)
    assert not reached and sent[0]["status"] == 413


def test_a_body_that_turns_out_too_large_is_cut_off() -> None:
    scope = {"type": "http", "path": "/v1/fleet/push-object", "server": OUTER}
    assert _through(scope, bodies=(b"x" * 60, b"x" * 40))[0]
    assert not _through(scope, bodies=(b"x" * 60, b"x" * 41))[0]

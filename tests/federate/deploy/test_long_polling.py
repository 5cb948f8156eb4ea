"""Looks for messages that find none are held until somebody has sent some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs Flower: pip install 'ffalm[flower]'")

from ffalm.federate.deploy.bundle import COLLECT, GIVE, TAKE
from ffalm.federate.deploy.fleet_gateway import Receive, Scope, Send
from ffalm.federate.deploy.long_polling import LOOKS, LongPolling

Sent = list[MutableMapping[str, Any]]


class Superlink:
    """Stands in for the application: hands a body to whoever looks."""

    def __init__(self, body: bytes = b"", status: int = 200) -> None:
        self.body, self.status = body, status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": self.body if scope["path"] in LOOKS else b"stored"})


async def _never() -> MutableMapping[str, Any]:
    await asyncio.sleep(60)
    return {}


async def _looked(polling: LongPolling, path: str = TAKE, receive: Receive = _never) -> tuple[Sent, float]:
    sent: Sent = []
    began = time.monotonic()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await polling({"type": "http", "path": path}, receive, send)
    return sent, time.monotonic() - began


async def _sent(polling: LongPolling, path: str) -> None:
    async def send(message: MutableMapping[str, Any]) -> None:
        assert message.get("body", b"stored") == b"stored"

    await polling({"type": "http", "path": path}, _never, send)


def _held_until(polling: LongPolling, look: str, event: Callable[[], Awaitable[None]]) -> Sent:
    """What somebody is answered who looked before an event."""

    async def both() -> Sent:
        looking = asyncio.create_task(_looked(polling, look))
        await asyncio.sleep(0.02)
        assert not looking.done()
        await event()
        sent, took = await asyncio.wait_for(looking, 5)
        assert took < 0.9
        return sent

    return asyncio.run(both())


@pytest.mark.parametrize(("look", "sender"), [(look, sender) for look, (_, by) in LOOKS.items() for sender in by])
def test_a_look_is_held_until_something_was_sent_and_then_answered_as_it_was(look: str, sender: str) -> None:
    superlink = Superlink()
    polling = LongPolling(superlink)

    async def push() -> None:
        superlink.body = b"a message"  # only for whoever looks from now on
        await _sent(polling, sender)

    assert [part.get("body") for part in _held_until(polling, look, push)] == [None, b""]
    assert asyncio.run(_looked(polling, look))[0][1]["body"] == b"a message"


@pytest.mark.parametrize("superlink", [Superlink(b"a message"), Superlink(status=401), Superlink(b"why", 500)])
def test_what_is_no_empty_answer_is_not_held(superlink: Superlink) -> None:
    sent, took = asyncio.run(_looked(LongPolling(superlink)))
    assert took < 1
    assert (sent[0]["status"], sent[1]["body"]) == (superlink.status, superlink.body)


def test_a_look_is_answered_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOOKS, COLLECT, (0.1, (GIVE,)))
    _, took = asyncio.run(_looked(LongPolling(Superlink()), COLLECT))
    assert 0.1 <= took < 1


def test_nothing_is_held_for_a_site_that_has_hung_up() -> None:
    async def gone() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    _, took = asyncio.run(_looked(LongPolling(Superlink()), TAKE, gone))
    assert took < 1


def test_a_coordinator_that_ends_lets_everybody_go() -> None:
    polling = LongPolling(Superlink())

    async def end() -> None:
        polling.end()

    _held_until(polling, TAKE, end)
    assert asyncio.run(_looked(polling))[1] < 1


def test_a_site_s_look_is_held_for_less_than_its_connection_lasts() -> None:
    import inspect

    from flwr.supercore.protobuf.client import ProtobufClient

    timeout = inspect.signature(ProtobufClient.__init__).parameters["timeout"].default
    assert LOOKS[TAKE][0] <= timeout / 2

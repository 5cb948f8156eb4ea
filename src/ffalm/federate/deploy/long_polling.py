"""Sites that look for messages are told to look again when there may be one, instead of after some seconds.

A request for messages that finds none is held until the coordinator's run has sent some, to whomever, and then answered
as it was: empty. The site looks again at once. So a message is only handed to a site that was heard a moment ago, and
a site that dies while its request is held takes no message with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any

from ffalm.federate.deploy.fleet_gateway import FOR_SITES, App, Receive, Scope, Send

LOOKS = f"{FOR_SITES}pull-messages"
SENDS = ("/v1/runtime/push-messages", "/v1/runtime/push-object")
SECONDS_HELD = 15.0  # less than the 30 after which a site believes that the connection is lost
_QUIET = 0.02  # seconds without any part of a message on its way, after which messages are complete


class LongPolling:
    """An application whose empty answers to sites that look for messages are held until there is news."""

    def __init__(self, app: App, seconds: float = SECONDS_HELD) -> None:
        self._app, self._seconds = app, seconds
        self._news = asyncio.Event()
        self._sending = 0
        self._ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; hold the answer to one that found no message."""
        path = scope.get("path")
        if path == LOOKS:
            await self._held(scope, receive, send)
        elif path in SENDS:
            await self._sent(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def end(self) -> None:
        """Hold nothing any more."""
        self._ending = True
        self._wake()

    async def _sent(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sending += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._sending -= 1
            asyncio.get_running_loop().call_later(_QUIET, self._wake_if_quiet)

    async def _held(self, scope: Scope, receive: Receive, send: Send) -> None:
        news = self._news  # what comes from now on is noticed
        answer: list[MutableMapping[str, Any]] = []

        async def keep(message: MutableMapping[str, Any]) -> None:
            answer.append(message)

        await self._app(scope, receive, keep)
        if _is_empty(answer) and not self._ending:
            await _first_of(news.wait(), receive(), self._seconds)
        for message in answer:
            await send(message)

    def _wake_if_quiet(self) -> None:
        if not self._sending:
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _is_empty(answer: list[MutableMapping[str, Any]]) -> bool:
    """Whether an answer says that there is no message: a protobuf message without fields has no bytes."""
    return bool(answer) and answer[0].get("status") == 200 and not any(part.get("body") for part in answer)


async def _first_of(news: Awaitable[Any], gone: Awaitable[Any], seconds: float) -> None:
    """Wait for news, for the site to hang up, or until time is over."""
    waiting = [asyncio.ensure_future(news), asyncio.ensure_future(gone)]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()

"""Long polling: a request for messages is answered as soon as there may be one, instead of being sent again and again.

A request that finds no message is held until a message was sent to anybody, and then answered as it was: empty. The
site asks again at once. So a message only goes to a site that was heard a moment ago, and a site that dies while its
request is held takes no message with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any

from ffalm.federate.deploy.bundle import COLLECT, GIVE, SEND, TAKE
from ffalm.federate.deploy.fleet_gateway import App, Receive, Scope, Send

#: By the path of a request for messages: the most seconds that it is held, and the paths on which these are sent.
LOOKS = {
    TAKE: (15.0, (SEND, "/v1/runtime/push-object")),  # a site takes its connection for lost after 30
    COLLECT: (1.0, (GIVE, "/v1/fleet/push-object")),  # the run watches deadlines in between
}
_QUIET = 0.02  # seconds without any part of a message on its way, after which messages are complete


class LongPolling:
    """An application that holds empty answers to requests for messages until there is news."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._news = {path: asyncio.Event() for path in LOOKS}
        self._sending = dict.fromkeys(LOOKS, 0)
        self._ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; hold the answer to a request that found no message."""
        path = scope.get("path")
        look = next((look for look, (_, sent_by) in LOOKS.items() if path in sent_by), None)
        if path in LOOKS:
            await self._held(path, scope, receive, send)
        elif look is not None:
            await self._sent(look, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def end(self) -> None:
        """Hold nothing any more."""
        self._ending = True
        for path in LOOKS:
            self._wake(path)

    async def _sent(self, look: str, scope: Scope, receive: Receive, send: Send) -> None:
        self._sending[look] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._sending[look] -= 1
            asyncio.get_running_loop().call_later(_QUIET, self._wake_if_quiet, look)

    async def _held(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        news = self._news[path]  # what comes from now on is noticed
        answer: list[MutableMapping[str, Any]] = []

        async def keep(message: MutableMapping[str, Any]) -> None:
            answer.append(message)

        await self._app(scope, receive, keep)
        if _is_empty(answer) and not self._ending:
            await _first_of(news.wait(), receive(), LOOKS[path][0])
        for message in answer:
            await send(message)

    def _wake_if_quiet(self, path: str) -> None:
        if not self._sending[path]:
            self._wake(path)

    def _wake(self, path: str) -> None:
        self._news[path].set()
        self._news[path] = asyncio.Event()


def _is_empty(answer: list[MutableMapping[str, Any]]) -> bool:
    """Whether an answer has no message: an empty bundle has no bytes."""
    return bool(answer) and answer[0].get("status") == 200 and not any(part.get("body") for part in answer)


async def _first_of(news: Awaitable[Any], gone: Awaitable[Any], seconds: float) -> None:
    """Wait for news, the end of the connection, or the timeout."""
    waiting = [asyncio.ensure_future(news), asyncio.ensure_future(gone)]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()

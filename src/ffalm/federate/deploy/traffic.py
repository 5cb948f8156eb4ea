"""What the coordinator exchanges with the network, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass
class Traffic:
    """Bytes of bodies in both directions, and refused requests by status."""

    received: int = 0
    sent: int = 0
    refused: Counter[int] = field(default_factory=Counter)

    def counting_receive(self, receive: _Receive) -> _Receive:
        """Count what comes in."""

        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            self.received += len(message.get("body", b""))
            return message

        return counted

    def counting_send(self, send: _Send) -> _Send:
        """Count what goes out, and refusals."""

        async def counted(message: MutableMapping[str, Any]) -> None:
            self.sent += len(message.get("body", b""))
            if message.get("status", 200) in (401, 403, 413, 429):
                self.refused[int(message["status"])] += 1
            await send(message)

        return counted

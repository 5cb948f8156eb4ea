"""Limits for connections from the network: their number, their networks, and how long they may keep us waiting.

A client may owe us the headers of its first or next request, or the body of a request that needs no key.
uvicorn waits for these without limit, or as long as a byte comes now and then.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection, Sequence
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SECONDS_TO_ASK = 10.0  # for the headers of a connection's first request; twice that for what it owes later
MOST_CONNECTIONS = 2048  # from the network at once; a site needs a few


def networks_of(text: str) -> tuple[Network, ...]:
    """The networks in a list that is separated by commas; "-" is none, which means all."""
    return tuple(ipaddress.ip_network(one, strict=False) for one in text.split(",")) if text != "-" else ()


def guarded(
    inner: tuple[str, int],
    networks: Sequence[Network] = (),
    seconds: float = SECONDS_TO_ASK,
    most: int = MOST_CONNECTIONS,
    keyless: Collection[str] = (),
) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with these limits on all connections except those to the inner address.

    `keyless` are paths to which anybody may send a body.
    """

    class Guarded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _owed: RequestResponseCycle | None = None  # the request in or after which the client was waited for

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self.server == inner:
                return
            if len(self.connections) > most or not _within(self.client, networks):
                transport.abort()
            else:
                self._timer = self.loop.call_later(seconds, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            owed = self.cycle if self._waits() else None
            if self.cycle is None or (owed is not None and owed is self._owed):
                self.transport.abort()
                return
            self._owed = owed
            self._timer = self.loop.call_later(seconds, self._look)

        def _waits(self) -> bool:
            """Whether the client owes something: not if a site sends a large body, or if we owe the answer."""
            begun = self.conn.their_state is h11.SEND_BODY and not self.cycle.response_complete
            answered = self.conn.their_state is h11.IDLE or self.cycle.response_complete
            return answered or (begun and self.scope["path"] in keyless)

    return Guarded


def _within(client: Any, networks: Sequence[Network]) -> bool:
    if not networks:
        return True
    try:
        address = ipaddress.ip_address(client[0])
    except (ValueError, TypeError, IndexError):
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)

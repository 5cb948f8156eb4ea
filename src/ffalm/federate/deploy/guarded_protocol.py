"""Connections from the network as uvicorn takes them: few enough, from where sites are, and none that stays silent."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SECONDS_TO_ASK = 10.0  # until a connection has sent its first request's headers
MOST_CONNECTIONS = 2048  # from the network at once; a site needs a few


def networks_of(text: str) -> tuple[Network, ...]:
    """The networks in a list that is separated by commas; "-" is none, which means all."""
    return tuple(ipaddress.ip_network(one, strict=False) for one in text.split(",")) if text != "-" else ()


def guarded(
    inner: tuple[str, int],
    networks: Sequence[Network] = (),
    seconds: float = SECONDS_TO_ASK,
    most: int = MOST_CONNECTIONS,
) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with these limits on all connections but those to the inner address."""

    class Guarded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self.server == inner:
                return
            if len(self.connections) > most or not _within(self.client, networks):
                transport.abort()
            else:
                self._timer = self.loop.call_later(seconds, self._expire)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _expire(self) -> None:
            if self.cycle is None:
                self.transport.abort()

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

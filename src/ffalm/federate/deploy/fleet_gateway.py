"""Starts Flower's SuperLink with two addresses: one for the sites, one for the coordinator's own machine.

Flower serves three interfaces on one port: one for sites, which needs node keys, and two that start runs and register
keys, which need none. Whoever could reach those could run code at every site. So the SuperLink itself listens on
loopback, and the address for the network only admits the requests that our sites make, and answers 403 to everything
else. Flower's own `push-messages` is not admitted: it does not check whose answer it gets.

Flower also reads a request before it checks the key. Here the key comes first (`site_admission`), except for small
introductions; bodies have a largest size, and connections that send nothing are closed (`guarded_protocol`).

    python -m ffalm.federate.deploy.fleet_gateway HOST:PORT NETWORKS METRICS FOLDER [flags of flower-superlink]

NETWORKS are those that sites may come from, separated by commas; "-" for all. METRICS is the port on loopback of the
metrics of the federation in FOLDER; 0 for none.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any

from ffalm.federate.deploy.bundle import GIVE, TAKE
from ffalm.federate.deploy.process_log import escape_records, keep_rotating
from ffalm.federate.deploy.superlink_state import allow_slow_starts, keep_contents_in_memory, restart_executor

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Admission = Callable[[Scope], Awaitable[int | None]]
"""Gives the status with which a request from the network is refused, before its body is read; None to admit it."""

FOR_SITES = "/v1/fleet/"
INTRODUCTIONS = (f"{FOR_SITES}activate-node", f"{FOR_SITES}register-node")  # Flower's refusals have reasons
_OBJECTS = ("push-object", "pull-object", "confirm-message-received")  # of messages that are larger than a bundle
_PRESENCE = ("send-node-heartbeat", "deactivate-node", "unregister-node")
REQUESTS = frozenset({*INTRODUCTIONS, TAKE, GIVE, *(f"{FOR_SITES}{name}" for name in (*_OBJECTS, *_PRESENCE))})
MOST_BYTES = 2**30  # of one request: Flower sends each tensor in one
MOST_BYTES_OF_STRANGERS = 2**16
_SECONDS_TO_CLOSE = 3
_SECONDS_TO_SHAKE_HANDS = 10.0


@dataclass
class Traffic:
    """Bytes of bodies in both directions, and refused requests by status."""

    received: int = 0
    sent: int = 0
    refused: Counter[int] = field(default_factory=Counter)

    def counting_receive(self, receive: Receive) -> Receive:
        """Count what comes in."""

        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            self.received += len(message.get("body", b""))
            return message

        return counted

    def counting_send(self, send: Send) -> Send:
        """Count what goes out, and refusals."""

        async def counted(message: MutableMapping[str, Any]) -> None:
            self.sent += len(message.get("body", b""))
            if message.get("status", 200) in (401, 403, 413, 429):
                self.refused[int(message["status"])] += 1
            await send(message)

        return counted


class FleetGateway:
    """Admits every request on the inner address, and on the outer one only those of sites."""

    def __init__(
        self,
        app: App,
        inner: tuple[str, int],
        admission: Admission | None = None,
        most_bytes: int = MOST_BYTES,
        traffic: Traffic | None = None,
    ) -> None:
        self._app, self._inner, self._admission, self._most_bytes = app, inner, admission, most_bytes
        self._traffic = traffic or Traffic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "lifespan" or self._from_inside(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            receive, send = self._traffic.counting_receive(receive), self._traffic.counting_send(send)
            status = await self._refusal(scope)
            if status is None:
                await self._app(scope, self._limited(receive, self._most(scope)), send)
            else:
                headers = [(b"content-length", b"0"), (b"connection", b"close")]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": b""})

    def _from_inside(self, scope: Scope) -> bool:
        arrived_at = scope.get("server") or ("", 0)
        return (arrived_at[0], arrived_at[1]) == self._inner

    async def _refusal(self, scope: Scope) -> int | None:
        if scope["path"] not in REQUESTS:
            return 403
        if self._admission is not None and scope["path"] not in INTRODUCTIONS:
            status = await self._admission(scope)
            if status is not None:
                return status
        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        return 413 if not length.isdigit() or int(length) > self._most(scope) else None

    def _most(self, scope: Scope) -> int:
        return min(self._most_bytes, MOST_BYTES_OF_STRANGERS) if scope["path"] in INTRODUCTIONS else self._most_bytes

    def _limited(self, receive: Receive, most: int) -> Receive:
        """The request's body up to the largest size; a larger one looks like a lost connection."""
        seen = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            return message if seen <= most else {"type": "http.disconnect"}

        return limited


def listener(host: str, port: int) -> socket.socket:
    """An open socket on an address, IPv4 or IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def raise_file_limit() -> int:
    """Raise this process's limit of open files to the most allowed; that number."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def limit_handshakes(seconds: float = _SECONDS_TO_SHAKE_HANDS) -> None:
    """Close connections whose TLS handshake takes longer; asyncio's own limit is a minute."""
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = seconds  # type: ignore[attr-defined]


def main() -> None:
    """Serve the SuperLink's application on both addresses, with the same certificate."""
    import uvicorn

    from ffalm.federate.deploy.guarded_protocol import guarded, networks_of
    from ffalm.federate.deploy.long_polling import LongPolling
    from ffalm.federate.deploy.message_bundles import MessageBundles
    from ffalm.federate.deploy.site_admission import SiteAdmission

    outer_host, _, outer_port = sys.argv.pop(1).rpartition(":")
    networks = networks_of(sys.argv.pop(1))
    metrics_port, folder = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    traffic = Traffic()
    escape_records()
    keep_rotating()
    raise_file_limit()
    limit_handshakes()

    def serve(app: Any, host: str, port: int, **options: Any) -> None:
        options |= {"timeout_graceful_shutdown": _SECONDS_TO_CLOSE, "loop": "asyncio", "ws": "none"}
        options["http"] = guarded((host, port), networks, keyless=INTRODUCTIONS)
        polling = LongPolling(MessageBundles(app, app))
        gateway = FleetGateway(polling, (host, port), SiteAdmission.of(app).refusal, traffic=traffic)
        config = uvicorn.Config(gateway, host=host, port=port, **options)
        config.load()  # before anybody can connect: a certificate that does not fit ends the process here
        sockets = [listener(host, port), listener(outer_host.strip("[]"), int(outer_port))]

        if metrics_port:
            from ffalm.federate.deploy.coordinator_metrics import serve_metrics, superlink_metrics

            serve_metrics(metrics_port, superlink_metrics(app, folder, traffic))

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                polling.end()
                super().handle_exit(sig, frame)

        Server(config).run(sockets)

    uvicorn.run = serve  # type: ignore[assignment]
    keep_contents_in_memory()
    restart_executor()
    allow_slow_starts()
    (superlink,) = entry_points(group="console_scripts", name="flower-superlink")
    sys.argv[0] = "flower-superlink"
    sys.exit(superlink.load()())


if __name__ == "__main__":
    main()

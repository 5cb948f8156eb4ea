"""Starts Flower's SuperLink behind two doors: one for the sites, one for the coordinator's own machine.

Flower serves three interfaces on one port: one for sites, which node keys guard, and two that start runs and register
keys, which nothing guards. Whoever could reach those would run code at every site. So the SuperLink itself listens on
loopback, and what is open to the network lets the sites' interface through and answers 403 to everything else.

    python -m ffalm.federate.deploy.fleet_gateway HOST:PORT [flags of flower-superlink, --host and --port on loopback]
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import entry_points
from typing import Any

from ffalm.federate.deploy.superlink_state import keep_contents_in_memory

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FOR_SITES = "/v1/fleet/"
_SECONDS_TO_CLOSE = 3


class FleetGateway:
    """Lets every request through that came in on the inner address, and of the others those for sites alone."""

    def __init__(self, app: App, inner: tuple[str, int]) -> None:
        self._app = app
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        if scope["type"] == "lifespan" or self._welcome(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    def _welcome(self, scope: Scope) -> bool:
        arrived_at = scope.get("server") or ("", 0)
        if (arrived_at[0], arrived_at[1]) == self._inner:
            return True
        return scope["type"] == "http" and str(scope["path"]).startswith(FOR_SITES)


def listener(host: str, port: int) -> socket.socket:
    """An open socket on an address, IPv4 or IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def main() -> None:
    """Serve the SuperLink's application on both addresses, with the certificates it was given for both."""
    import uvicorn

    outer_host, _, outer_port = sys.argv.pop(1).rpartition(":")

    def serve(app: App, host: str, port: int, **options: Any) -> None:
        sockets = [listener(host, port), listener(outer_host.strip("[]"), int(outer_port))]
        options["timeout_graceful_shutdown"] = _SECONDS_TO_CLOSE
        uvicorn.Server(uvicorn.Config(FleetGateway(app, (host, port)), host=host, port=port, **options)).run(sockets)

    uvicorn.run = serve  # type: ignore[assignment]
    keep_contents_in_memory()
    (superlink,) = entry_points(group="console_scripts", name="flower-superlink")
    sys.argv[0] = "flower-superlink"
    sys.exit(superlink.load()())


if __name__ == "__main__":
    main()

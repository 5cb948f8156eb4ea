"""A web server for this machine only: it is on loopback and refuses requests for other hosts (DNS rebinding)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Page:
    """An answer to a request; `refresh` is the number of seconds after which a browser reloads."""

    status: HTTPStatus
    content: str
    kind: str = "text/plain"
    refresh: int | None = None


class LoopbackServer(ThreadingHTTPServer):
    """Answers each path by a function; port 0 takes a free port."""

    daemon_threads = True

    def __init__(self, port: int, answer: Callable[[str], Page]) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.answer = answer

    @property
    def address(self) -> str:
        """The URL for a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    timeout = 10  # seconds that a connection may be silent: each has a thread

    def do_GET(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            page = self.server.answer(self.path)
        else:
            page = Page(HTTPStatus.FORBIDDEN, "This server answers on this machine only.")
        content = page.content.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", f"{page.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if page.refresh is not None:
            self.send_header("Refresh", str(page.refresh))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

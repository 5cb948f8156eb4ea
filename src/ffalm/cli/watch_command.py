"""`ffalm watch`: the page of a study or federation while it runs, on this machine alone."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from ffalm.errors import UserError, require
from ffalm.system.files import reason

_ADDRESS = "127.0.0.1"


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, a run or a federation.", show_default=False)],
    port: Annotated[int, typer.Option(help="Port to serve the page on; 0 takes a free one.", min=0, max=65535)] = 0,
    every: Annotated[int, typer.Option(help="Seconds after which the page loads itself again.", min=1, max=3600)] = 10,
) -> None:
    """Show the report of a study or federation in the browser while it runs, updated each round."""
    require(folder.is_dir(), f"There is no folder {folder}.")
    live = LivePage(folder)
    live.page()  # a folder that cannot be shown is refused before anything is served
    try:
        server = PageServer(live, port, every)
    except OSError as error:
        raise UserError(f"The port {port} cannot be used ({reason(error)}): name another with --port.") from None
    with server:
        print(f"Watching {folder} at {server.address} on this machine alone; Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("Stopped watching; the study is not affected.")


class LivePage:
    """The page of a folder, made again when its files have changed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._seen: list[tuple[str, int, int]] = []
        self._made: tuple[bytes, bool] = (b"", False)

    def page(self) -> tuple[bytes, bool]:
        """The page, and whether the study is complete."""
        from ffalm.studies.live_study import fingerprint, live_page

        with self._lock:
            now = fingerprint(self._folder)
            if now != self._seen:
                text, complete = live_page(self._folder)
                self._seen, self._made = now, (text.encode(), complete)
            return self._made


class PageServer(ThreadingHTTPServer):
    """Serves one page on loopback; a request that names another host, as after DNS rebinding, is refused."""

    daemon_threads = True

    def __init__(self, live: LivePage, port: int, every: int) -> None:
        super().__init__((_ADDRESS, port), _Handler)
        self.live, self.every = live, every

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{_ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{_ADDRESS}:{port}", f"localhost:{port}"):
            return self._answer(HTTPStatus.FORBIDDEN, b"This server answers on this machine alone.")
        if self.path != "/":
            return self._answer(HTTPStatus.NOT_FOUND, b"There is one page here: /")
        try:
            content, complete = self.server.live.page()
        except UserError as error:  # a file that is being written
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode(), "text/plain", self.server.every)
        return self._answer(HTTPStatus.OK, content, "text/html", None if complete else self.server.every)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain", refresh: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if refresh is not None:
            self.send_header("Refresh", str(refresh))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's business."""

"""`ffalm watch`: the page of a study or federation while it runs, on this machine only."""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ffalm.errors import UserError, require
from ffalm.system.files import reason

if TYPE_CHECKING:
    from ffalm.system.loopback_server import Page


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, a run or a federation.", show_default=False)],
    port: Annotated[int, typer.Option(help="Port to serve the page on; 0 takes a free one.", min=0, max=65535)] = 0,
    every: Annotated[int, typer.Option(help="Seconds between reloads of the page.", min=1, max=3600)] = 10,
) -> None:
    """Show the report of a study or federation in the browser while it runs, updated each round."""
    from ffalm.system.loopback_server import LoopbackServer  # imported here: no other command needs http.server

    require(folder.is_dir(), f"There is no folder {folder}.")
    live = LivePage(folder, every)
    live.page()  # a folder that cannot be shown is refused before anything is served
    try:
        server = LoopbackServer(port, live.answer)
    except OSError as error:
        raise UserError(f"The port {port} cannot be used ({reason(error)}): name another with --port.") from None
    with server:
        print(f"Watching {folder} at {server.address} on this machine only; Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("Stopped watching; the study is not affected.")


class LivePage:
    """The page of a folder, rendered again when its files change."""

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every, self._lock = folder, every, threading.Lock()
        self._seen: list[tuple[str, int, int]] = []
        self._made: tuple[str, bool] = ("", False)

    def answer(self, path: str) -> Page:
        """The page, which reloads until the study is complete."""
        from ffalm.system.loopback_server import Page

        if path != "/":
            return Page(HTTPStatus.NOT_FOUND, "There is one page here: /")
        try:
            content, complete = self.page()
        except UserError as error:  # a file that is being written
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, str(error), refresh=self._every)
        return Page(HTTPStatus.OK, content, "text/html", None if complete else self._every)

    def page(self) -> tuple[str, bool]:
        """The page, and whether the study is complete."""
        from ffalm.studies.live_study import fingerprint, live_page

        with self._lock:
            now = fingerprint(self._folder)
            if now != self._seen:
                self._seen, self._made = now, live_page(self._folder)
            return self._made

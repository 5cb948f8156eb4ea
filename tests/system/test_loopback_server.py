"""A web server for this machine alone."""

from __future__ import annotations

import socket
import threading
import time
from http import HTTPStatus

import pytest

from ffalm.system import loopback_server
from ffalm.system.loopback_server import ADDRESS, LoopbackServer, Page


def test_a_silent_connection_does_not_keep_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < (loopback_server._Handler.timeout or 0) <= 10
    monkeypatch.setattr(loopback_server._Handler, "timeout", 0.2)
    server = LoopbackServer(0, lambda path: Page(HTTPStatus.OK, path))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        silent = [socket.create_connection((ADDRESS, server.server_port), timeout=5) for _ in range(5)]
        silent[0].sendall(b"GET / HT")
        start = time.monotonic()
        assert [one.recv(1) for one in silent] == [b""] * 5 and time.monotonic() - start < 4
        for one in silent:
            one.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

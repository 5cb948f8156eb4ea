"""Headless Chromium by its DevTools protocol: what a page shows, says and asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 60.0


class Browser:
    """One tab; `complaints` are console messages, exceptions and requests that leave the machine's files."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, address: str, width: int = 1200, media: str = "screen", scheme: str = "light") -> None:
        """Show a page and wait until its charts are drawn."""
        self.size(width, media, scheme)
        self.ask("Page.navigate", url=address)
        while self._next().get("method") != "Page.loadEventFired":
            pass
        live = "![...document.querySelectorAll('.chart')].some(one => !one.classList.contains('live'))"
        deadline = time.monotonic() + _SECONDS
        while not self.value(live) and time.monotonic() < deadline:
            time.sleep(0.1)

    def size(self, width: int, media: str = "screen", scheme: str = "light") -> None:
        """Set the width of the window, the medium and the colour scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def value(self, expression: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        found = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=_SECONDS))
        told = message.get("params", {})
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(told))
        if message.get("method") == "Network.requestWillBeSent":
            address = told["request"]["url"]
            if not address.startswith(("file:", "data:", "http://127.0.0.1:")):
                self.complaints.append(f"request of {address}")
        return message


@contextmanager
def chromium() -> Iterator[Browser]:
    """A tab of a browser of its own; skips where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    client = pytest.importorskip("websockets.sync.client")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
        process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with client.connect(_tab(Path(profile)), max_size=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait(_SECONDS)
            time.sleep(0.2)  # its children still write to the profile


def _tab(profile: Path) -> str:
    """The address of the first tab, once the browser listens."""
    from urllib.request import urlopen

    file, deadline = profile / "DevToolsActivePort", time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if file.exists() and file.read_text():
            port = file.read_text().splitlines()[0]
            with urlopen(f"http://127.0.0.1:{port}/json") as answer:
                tabs = [one for one in json.load(answer) if one["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise TimeoutError("Chromium does not listen")

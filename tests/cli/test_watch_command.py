"""`ffalm watch`: one page on loopback, made again when files change, for requests that name this machine."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ffalm.cli.watch_command import LivePage
from ffalm.errors import UserError
from ffalm.system.loopback_server import LoopbackServer

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str | Exception]:
    """What the study's page is; each look at changed files takes the next one."""
    made: list[str | Exception] = ["<p>first</p>"]

    def live_page(_: Path) -> tuple[str, bool]:
        now = made[-1]
        if isinstance(now, Exception):
            raise now
        return now, "done" in now

    monkeypatch.setattr("ffalm.studies.live_study.live_page", live_page)
    return made


@pytest.fixture
def server(pages: list[str | Exception], tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(0, LivePage(tmp_path, 7).answer) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def get(
    server: LoopbackServer, path: str = "/", host: str | None = None, method: str = "GET"
) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers.get("Refresh")
    connection.close()
    return found


def test_the_page_is_served_and_loads_itself_again_until_the_study_is_done(
    server: LoopbackServer, pages: list[str | Exception], tmp_path: Path
) -> None:
    assert get(server) == (200, "<p>first</p>", "7")
    pages.append("<p>done</p>")
    assert get(server)[1] == "<p>first</p>"  # no file has changed
    (tmp_path / "history.jsonl").write_text("{}\n")
    assert get(server) == (200, "<p>done</p>", None)
    assert get(server, method="HEAD") == (200, "", None)


def test_only_this_machine_is_answered_and_only_for_the_page(server: LoopbackServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, host=f"localhost:{server.server_port}")[0] == 200
    assert get(server, host="evil.example")[0] == 403
    assert get(server, host=f"127.0.0.1:{server.server_port + 1}")[0] == 403
    assert get(server, path="/../config.toml")[0] == 404


def test_files_that_are_being_written_are_asked_for_again(
    server: LoopbackServer, pages: list[str | Exception], tmp_path: Path
) -> None:
    pages.append(UserError("The result is damaged."))
    (tmp_path / "result.json").write_text("{")
    assert get(server) == (503, "The result is damaged.", "7")


def test_a_folder_or_port_that_cannot_be_used_gets_one_sentence(
    cli: Cli, server: LoopbackServer, tmp_path: Path
) -> None:
    code, _, said = cli("watch", tmp_path / "nowhere")
    assert (code, said.count("\n")) == (2, 1)
    code, _, said = cli("watch", tmp_path, "--port", str(server.server_port))
    assert code == 2
    assert "name another with --port" in said


def test_ctrl_c_ends_it_with_success(
    cli: Cli, pages: list[str | Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopbackServer, "serve_forever", interrupted)
    code, shown, _ = cli("watch", tmp_path)
    assert code == 0
    assert "at http://127.0.0.1:" in shown
    assert "Stopped watching" in shown

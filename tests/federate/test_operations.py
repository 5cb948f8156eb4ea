"""What keeps a site from its coordinator, told such that somebody can do something about it."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.federate.operations import _obstacle
from ffalm.federate.processes import free_port


def test_a_port_where_nobody_listens_is_told_from_one_that_answers_otherwise() -> None:
    assert "nothing listens there" in _obstacle("127.0.0.1", free_port())
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "--insecure" in _obstacle("127.0.0.1", other.getsockname()[1])


def test_a_name_that_is_not_known_and_a_network_that_is_shut_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    def shut(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert "knows no fair.example" in _obstacle("fair.example", 18000)
    monkeypatch.setattr(socket, "create_connection", shut)
    assert "no connection (timed out); let outgoing TCP" in _obstacle("fair.example", 18000)

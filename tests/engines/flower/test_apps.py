"""A site answers what it is asked; its errors reach the server in words, and its rows do not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ffalm.engines.remote.message import Fact, Failure, Kind, Message
from ffalm.errors import NOT_PUBLIC, UserError
from ffalm.plugins import import_plugin


@pytest.fixture(autouse=True)
def _flower(flower: None) -> None:
    """All of these need Flower."""


def answered(answer: Any, kind: str, traces: bool = False) -> Message | Failure:
    """What a client app sends back for a message of a type, from a node with settings."""
    from flwr.app import Context, RecordDict
    from flwr.app import Message as FlowerMessage

    from ffalm.engines.flower.apps import client_app
    from ffalm.engines.flower.wire import packed, unpacked_answer

    message = FlowerMessage(packed(Message({}, {"round": 2})), dst_node_id=5, message_type=kind)
    context = Context(run_id=1, node_id=5, node_config={"site": "north"}, state=RecordDict(), run_config={})
    return unpacked_answer(client_app(answer, traces)(message, context).content)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("query.hello", "hello"),
        ("query.agree", "agree"),
        ("query.secure", "secure"),
        ("train", "train"),
        ("evaluate", "score"),
    ],
)
def test_a_site_is_told_what_is_asked_with_what_and_the_settings_of_its_node(kind: str, asked: Kind) -> None:
    def answer(kind: Kind, message: Message, node: dict[str, Fact]) -> Message:
        return Message({}, {"kind": kind, "round": message.facts["round"], "site": node["site"]})

    assert answered(answer, kind) == Message({}, {"kind": asked, "round": 2, "site": "north"})


def test_of_a_user_error_only_the_public_part_arrives() -> None:
    def answer(*asked: Any) -> Message:
        raise UserError("'/data/ward 7.csv' has no column 'income'.", "Its data file has no column 'income'.")

    def silent(*asked: Any) -> Message:
        raise UserError("'/data/ward 7.csv' is empty.")

    assert answered(answer, "train") == Failure("failed", "Its data file has no column 'income'.")
    assert answered(silent, "train") == Failure("failed", NOT_PUBLIC)


def test_of_any_other_error_only_the_kind_leaves_the_site(caplog: pytest.LogCaptureFixture) -> None:
    def answer(*asked: Any) -> Message:
        raise ValueError("could not read 'Jane Doe, 47'")

    found = answered(answer, "train")
    assert isinstance(found, Failure)
    assert "ValueError" in found.reason
    assert "Jane" not in found.reason + found.trace


def test_a_simulated_client_says_where_its_error_arose() -> None:
    def answer(*asked: Any) -> Message:
        raise ValueError("3 is not 4")

    found = answered(answer, "train", traces=True)
    assert isinstance(found, Failure)
    assert found.reason == "ValueError: 3 is not 4"
    assert "in answer" in found.trace


def test_a_simulated_clients_error_in_a_plugin_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text("def answer(*asked):\n    return {}['nothing']\n")
    import_plugin(tmp_path / "answers.py")
    (name,) = (name for name in sys.modules if name.startswith("ffalm_plugin_answers"))
    found = answered(sys.modules[name].answer, "train", traces=True)
    reason = f"KeyError in line 2 of the plugin {tmp_path / 'answers.py'}: 'nothing'."
    assert found == Failure("failed", reason)


def test_a_server_leads_with_its_sites_and_the_settings_of_the_run() -> None:
    from flwr.app import Context, RecordDict

    from ffalm.engines.flower.apps import server_app

    class Grid:
        def get_node_ids(self) -> list[int]:
            return [8, 7]

    seen: list[Any] = []
    app = server_app(lambda sites, settings: seen.append((sites.present(), settings)))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"folder": "here"})
    grid: Any = Grid()
    app(grid, context)
    assert seen == [([7, 8], {"folder": "here"})]

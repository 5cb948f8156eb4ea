"""A server asks its sites through Flower's grid, and always learns what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ffalm.engines.remote.message import Failure, Message

Response = Callable[[Any], Any]
HELLO = Message({}, {"round": 1})


@pytest.fixture(autouse=True)
def _flower(flower: None) -> None:
    """All of these need Flower."""


class Grid:
    """Flower's grid as far as sites need it: nodes answer at once, later or never, as told."""

    def __init__(self, responses: dict[int, Response | None], refused: Iterable[int] = ()) -> None:
        self._responses, self._refused = responses, set(refused)
        self.pushed: list[Any] = []
        self.replies: list[Any] = []

    def get_node_ids(self) -> Iterable[int]:
        return reversed(self._responses)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        taken = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{len(self.pushed)}"
            self.pushed.append(message)
            node = message.metadata.dst_node_id
            if node not in self._refused:
                taken.append(message.metadata.message_id)
            respond = self._responses.get(node)
            if respond is not None:
                self.replies.append(respond(message))
        return taken

    def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
        wanted = set(numbers)
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in wanted]
        self.replies = [reply for reply in self.replies if reply not in found]
        return found


def echo(message: Any) -> Any:
    """An answer that says who gave it."""
    from flwr.app import Message as FlowerMessage

    from ffalm.engines.flower.wire import packed

    return FlowerMessage(packed(Message({}, {"from": message.metadata.dst_node_id})), reply_to=message)


def error(code: int, source: int | None = None) -> Response:
    """An error that Flower reports in a node's name, or in the SuperLink's."""
    from flwr.app import Message as FlowerMessage
    from flwr.app.error import Error

    def respond(message: Any) -> Any:
        reply = FlowerMessage(Error(code, "because"), reply_to=message)
        if source is not None:
            reply.metadata.__dict__["_src_node_id"] = source
        return reply

    return respond


def asked(grid: Any, deadline: float = 0.3, **more: Any) -> dict[int, Message | Failure]:
    from ffalm.engines.flower.sites import GridSites

    return GridSites(grid, **more).ask("hello", dict.fromkeys([7, 8, 9], HELLO), deadline)


def kinds(answers: dict[int, Message | Failure]) -> dict[int, str]:
    return {node: answer.kind if isinstance(answer, Failure) else "answer" for node, answer in answers.items()}


def test_every_site_asked_is_answered_for_in_the_order_asked() -> None:
    answers = asked(Grid({9: echo, 8: None, 7: echo}))
    assert list(answers) == [7, 8, 9]
    assert answers[7] == Message({}, {"from": 7}) and answers[9] == Message({}, {"from": 9})
    assert answers[8] == Failure("late", "The site did not answer within 0.3 seconds.")


def test_nobody_is_waited_for_once_all_have_answered() -> None:
    began = time.monotonic()
    assert kinds(asked(Grid(dict.fromkeys([7, 8, 9], echo)), deadline=60.0)) == dict.fromkeys([7, 8, 9], "answer")
    assert time.monotonic() - began < 5


def test_a_node_that_is_gone_is_lost_though_the_superlink_says_so_in_its_own_name() -> None:
    from flwr.common.constant import ErrorCode

    found = asked(Grid({7: echo, 8: error(ErrorCode.NODE_UNAVAILABLE, source=1), 9: echo}), deadline=60.0)
    assert kinds(found) == {7: "answer", 8: "lost", 9: "answer"}


def test_a_message_that_expired_is_late_and_an_app_that_broke_has_failed() -> None:
    from flwr.common.constant import ErrorCode

    grid = Grid({7: error(ErrorCode.MESSAGE_UNAVAILABLE), 8: error(ErrorCode.CLIENT_APP_CRASHED), 9: echo})
    found = asked(grid, deadline=60.0)
    assert kinds(found) == {7: "late", 8: "failed", 9: "answer"}
    assert isinstance(found[8], Failure) and found[8].trace == "because"


def test_an_answer_that_cannot_be_read_leaves_the_others_alone() -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
    from flwr.app import Message as FlowerMessage

    def nonsense(message: Any) -> Any:
        arrays = ArrayRecord({"model": Array("uint8", (3,), "safetensors", b"abc")})
        return FlowerMessage(RecordDict({"tensors": arrays, "facts": ConfigRecord()}), reply_to=message)

    found = asked(Grid({7: echo, 8: nonsense, 9: lambda message: FlowerMessage(RecordDict(), reply_to=message)}))
    assert kinds(found) == {7: "answer", 8: "unreadable", 9: "unreadable"}


def test_an_answer_that_is_no_message_at_all_leaves_the_others_alone() -> None:
    from ffalm.engines.flower.sites import Unreadable

    class Damaging(Grid):
        def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
            found = super().pull_messages(numbers)
            damaged = Unreadable("message-1", ValueError("\x1b[2J" + 999 * "long"))
            return [damaged if one.metadata.src_node_id == 8 else one for one in found]

    found = asked(Damaging({7: echo, 8: echo, 9: echo}), deadline=60.0)
    assert kinds(found) == {7: "answer", 8: "unreadable", 9: "answer"}
    assert isinstance(found[8], Failure) and found[8].reason == "The site's answer cannot be read (ValueError)."
    assert found[8].trace.startswith("ValueError: ?[2Jlong") and len(found[8].trace) <= 200


def test_a_node_that_cannot_be_written_to_is_lost() -> None:
    assert kinds(asked(Grid({7: echo, 9: echo}, refused=[8]), deadline=60.0)) == {7: "answer", 8: "lost", 9: "answer"}


def test_a_late_answer_is_not_taken_for_the_next_rounds() -> None:
    grid = Grid({7: echo, 8: None, 9: echo})
    assert kinds(asked(grid))[8] == "late"
    (stale,) = [message for message in grid.pushed if message.metadata.dst_node_id == 8]
    grid.replies.append(echo(stale))
    assert kinds(asked(grid))[8] == "late"


def test_messages_outlive_their_deadline_but_not_for_ever() -> None:
    grid = Grid(dict.fromkeys([7, 8, 9], echo))
    asked(grid, deadline=60.0)
    assert all(60 < message.metadata.ttl <= 3600 for message in grid.pushed)


def test_waiting_ends_when_the_check_says_so() -> None:
    def check() -> None:
        raise RuntimeError("The runtime is gone.")

    with pytest.raises(RuntimeError, match="runtime is gone"):
        asked(Grid({7: echo, 8: None, 9: echo}), deadline=60.0, check=check)


def test_nobody_asked_is_nobody_waited_for() -> None:
    from ffalm.engines.flower.sites import GridSites

    grid: Any = Grid({})
    assert GridSites(grid).ask("train", {}, 60.0) == {}
    assert GridSites(grid).present() == []

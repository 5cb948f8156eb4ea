"""Sites behind Flower's grid, in a simulation or far away: who is there, and what they answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode

from ffalm.engines.flower.wire import Encoded, packed, unpacked_answer
from ffalm.engines.remote.message import Failure, Kind, Message, printable

_TYPES: dict[Kind, str] = {
    "hello": "query.hello",
    "agree": "query.agree",
    "train": "train",
    "score": "evaluate",
    "secure": "query.secure",
}
_SHORTEST, _LONGEST = 0.01, 0.2  # seconds between two looks for answers
_DAY = 86400.0
_GRACE = 300.0  # seconds that a question outlives its deadline, for sites whose clocks run ahead of the server's
_EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


_LONGEST_REASON = 200  # characters: an exception may quote all that a site sent


@dataclass(frozen=True)
class Unreadable:
    """An answer that came, but is no message of Flower's: to which question, and why."""

    question: str
    why: Exception


class Grid(Protocol):
    """What is needed of Flower's grid."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected now."""

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        """Send messages; the numbers of those that were accepted."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[FlowerMessage | Unreadable]:
        """The answers to messages that are there as a whole; it never waits for the rest of one."""


class GridSites:
    """The sites of a Flower grid. Flower's own way to wait sleeps for seconds at a time, so this one looks itself."""

    def __init__(self, grid: Grid, check: Callable[[], None] = lambda: None, longest: float = _LONGEST) -> None:
        self._grid, self._check, self._longest = grid, check, longest

    def present(self) -> list[int]:
        """The nodes that are connected now."""
        return sorted(self._grid.get_node_ids())

    def ask(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[int, Message | Failure]:
        """One message per node; looks for answers often at first, then less and less."""
        began = time.monotonic()
        waiting = self._sent(kind, messages, deadline)
        answers: dict[int, Message | Failure] = {
            node: Failure("lost", "The site is not connected.") for node in messages if node not in waiting.values()
        }
        while waiting:
            self._check()
            for found in list(self._grid.pull_messages(list(waiting))):
                question = found.question if isinstance(found, Unreadable) else found.metadata.reply_to_message_id
                node = waiting.pop(question, None)
                if node is not None:
                    answers[node] = _read(found)
            waited = time.monotonic() - began
            if waited >= deadline:
                break
            if waiting:
                time.sleep(min(max(_SHORTEST, waited / 10), self._longest, deadline - waited))
        late = Failure("late", f"The site did not answer within {deadline:g} seconds.")
        return {node: answers.get(node, late) for node in messages}

    def _sent(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[str, int]:
        """Which message went to which node. Nodes that cannot be written to are left out."""
        known: Encoded = {}
        lifetime = min(deadline, _DAY) + _GRACE
        outgoing = [
            FlowerMessage(packed(message, known), dst_node_id=node, message_type=_TYPES[kind], ttl=lifetime)
            for node, message in messages.items()
        ]
        accepted = set(self._grid.push_messages(outgoing))
        sent = {one.metadata.message_id: one.metadata.dst_node_id for one in outgoing}
        return {number: node for number, node in sent.items() if number in accepted}


def _read(found: FlowerMessage | Unreadable) -> Message | Failure:
    """What a site answers. Whatever it sends, the others' round goes on."""
    if isinstance(found, Unreadable):
        return _unreadable(found.why)
    try:
        return unpacked_answer(found.content) if found.has_content() else _error(found)
    except Exception as why:
        return _unreadable(why)


def _unreadable(why: Exception) -> Failure:
    what = type(why).__name__
    detail = printable(f"{what}: {why}"[:_LONGEST_REASON])
    return Failure("unreadable", f"The site's answer cannot be read ({what}).", detail)


def _error(message: FlowerMessage) -> Failure:
    """What an error means that Flower, or the site's process, answers instead of the site."""
    error = message.error
    if error.code == ErrorCode.NODE_UNAVAILABLE:
        return Failure("lost", "The site's connection was lost.")
    if error.code in _EXPIRED:
        return Failure("late", "The question or its answer expired on the way.")
    reason = printable(error.reason or "unknown")
    if error.code == ErrorCode.CLIENT_APP_CRASHED:
        return Failure("failed", "The site's process died before it answered; the site's log may say why.", reason)
    return Failure("failed", f"Flower could not run the site's app (code {error.code}).", reason)

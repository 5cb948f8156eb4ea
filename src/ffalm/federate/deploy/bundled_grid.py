"""Flower's grid with bundles: all questions of a round in one request, and answers in few."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.runtime_pb2 import (
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    push_object_contents_from_iterable,
)

from ffalm.engines.flower.sites import Unreadable
from ffalm.federate.deploy.bundle import COLLECT, SEND, exchange, numbered, numbers_in, objects_in

_SECONDS_FOR_ONE = 0.5  # spent in one look on the objects of one answer, so that no answer keeps the others waiting


@dataclass(frozen=True)
class _Arriving:
    """An answer of which the coordinator has the metadata and some objects."""

    metadata: ProtoMetadata
    missing: list[str]  # numbers of the objects that did not fit the bundle, or are still on their way
    objects: dict[str, bytes]

    def read(self) -> Message | Unreadable:
        """The complete answer. Whatever is wrong with it is only that site's failure."""
        number, question = self.metadata.message_id, self.metadata.reply_to_message_id
        try:
            message = inflate_object_from_contents(number, self.objects)
            if not isinstance(message, Message):
                raise TypeError(f"It is a {type(message).__name__}.")
        except Exception as why:
            return Unreadable(question, why)
        # These are as the SuperLink has checked them, not as the site wrote them into the message.
        message.metadata.__dict__.update(_message_id=number, _reply_to_message_id=question)
        return message

    def expired(self) -> Message:
        """The error if the SuperLink has dropped an upload that stopped."""
        error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "The upload of the answer stopped.")
        return make_message(metadata=metadata_from_proto(self.metadata), error=error)


class BundledGrid:
    """The part of a grid that `GridSites` needs, over the connection of Flower's `HttpGrid`."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._arriving: dict[str, _Arriving] = {}  # by the question's number: answers of which objects are missing

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected now."""
        found: Iterable[int] = self._grid.get_node_ids()
        return found

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; the numbers of those that were accepted."""
        heads, trees, objects = [], [], dict[str, bytes]()
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            with no_object_id_recompute():
                heads.append(message_to_proto(remove_content_from_message(message)))
                trees.append(get_object_tree(message))
                for number, found in get_all_nested_objects(message).items():
                    if number not in objects:
                        objects[number] = found.deflate()
        request = PushAppMessagesRequest(messages_list=heads, message_object_trees=trees)
        client, run = self._grid._runtime_client, self._grid.run.run_id
        answer = exchange(client, SEND, [request.SerializeToString(), *numbered(objects)])
        stored = PushAppMessagesResponse.FromString(answer[0])
        push = make_push_object_fn_protobuf(client.PushObject, self._grid.node, run, stored.session_id)
        push_object_contents_from_iterable(((number, objects[number]) for number in stored.objects_to_push), push)
        return [number for number in stored.message_ids if number]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message | Unreadable]:
        """The complete answers to these messages; waits a moment if there are none.

        The SuperLink gives an answer's metadata once, as soon as its upload begins. So an incomplete answer is kept
        and checked again, for as long as it is asked for: its site may have died during the upload.
        """
        asked = list(message_ids)
        for question in self._arriving.keys() - set(asked):
            self._confirm(self._arriving.pop(question))
        self._collect([question for question in asked if question not in self._arriving])
        found = {question: self._look(one) for question, one in self._arriving.items()}
        complete = {question: answer for question, answer in found.items() if answer is not None}
        for question in complete:
            del self._arriving[question]
        return list(complete.values())

    def _collect(self, questions: list[str]) -> None:
        """Take new answers; if there are none, this waits until some site has sent something."""
        answer = exchange(self._grid._runtime_client, COLLECT, [question.encode() for question in questions])
        if not answer:
            return
        found, objects = PullAppMessagesResponse.FromString(answer[0]), objects_in(answer[1:])
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            numbers = numbers_in(tree)
            own = {number: objects[number] for number in numbers if number in objects}
            missing = [number for number in numbers if number not in objects]
            if head.metadata.reply_to_message_id in questions:
                self._arriving[head.metadata.reply_to_message_id] = _Arriving(head.metadata, missing, own)

    def _look(self, answer: _Arriving) -> Message | Unreadable | None:
        """An answer, after a request for its missing objects; None if some are still on their way."""
        if not answer.missing:
            return answer.read()
        pull = make_pull_object_fn_protobuf(
            self._grid._runtime_client.PullObject, self._grid.node, self._grid.run.run_id
        )
        until = time.monotonic() + _SECONDS_FOR_ONE
        try:
            while answer.missing and time.monotonic() < until:
                answer.objects[answer.missing[-1]] = pull(answer.missing[-1])
                answer.missing.pop()
        except ObjectUnavailableError:
            return None
        except ObjectPullError:
            return answer.expired()
        if answer.missing:
            return None
        self._confirm(answer)
        return answer.read()

    def _confirm(self, answer: _Arriving) -> None:
        """Let the SuperLink forget the objects of an answer that was not in a bundle as a whole."""
        number = answer.metadata.message_id
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=number)
        )

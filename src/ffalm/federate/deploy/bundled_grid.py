"""Flower's grid with bundles: all questions of a round go out in one request, and answers come in as few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
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
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)

from ffalm.federate.deploy.bundle import COLLECT, FIRST_RETRY, SEND, exchange, numbered, numbers_in, objects_in


class BundledGrid:
    """The part of a grid that `GridSites` needs, over the connection of Flower's `HttpGrid`."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

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

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages that are there; waits a moment where there are none."""
        client = self._grid._runtime_client
        answer = exchange(client, COLLECT, [number.encode() for number in message_ids])
        if not answer:
            return []
        found, objects = PullAppMessagesResponse.FromString(answer[0]), objects_in(answer[1:])
        trees = zip(found.messages_list, found.message_object_trees, strict=True)
        return [self._whole(head.metadata.message_id, numbers_in(tree), objects) for head, tree in trees]

    def _whole(self, number: str, wanted: list[str], objects: dict[str, bytes]) -> Message:
        """A message with its objects; those that were not in the bundle are asked for one by one."""
        client, node, run = self._grid._runtime_client, self._grid.node, self._grid.run.run_id
        missing = [one for one in wanted if one not in objects]
        own = {one: objects[one] for one in wanted if one in objects}
        if missing:
            pull = make_pull_object_fn_protobuf(client.PullObject, node, run)
            own |= pull_objects(missing, pull, initial_backoff=FIRST_RETRY)
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=number)
            )
        message = inflate_object_from_contents(number, own)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = number
        return message

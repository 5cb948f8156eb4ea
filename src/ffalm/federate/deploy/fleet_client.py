"""What a site asks of its coordinator: Flower's Fleet API, as calls that take a question and give an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffalm.federate.deploy.answer_process import Encoded
from ffalm.federate.keys import PRIVATE, read_private

if TYPE_CHECKING:
    from flwr.app import Message

_FIRST_RETRY = 0.05  # seconds until an object that is still on its way to the coordinator is asked for again


class FleetClient:
    """A connected site; the calls are those that Flower's own connection yields, in its order."""

    def __init__(self, calls: tuple[Any, ...]) -> None:
        (
            self.node,
            self._receive,
            self._push,
            self._get_run,
            self._get_fab,
            self._pull_object,
            self._push_object,
            self._confirm,
        ) = calls

    def take(self) -> tuple[Message, dict[str, bytes]] | None:
        """A message without its content, and the bytes of all objects in it; None where there is none."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        found = self._receive()
        if found is None:
            return None
        message, tree = found
        run = message.metadata.run_id
        wanted = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
        objects = pull_objects(wanted, partial(self._pull_object, run), initial_backoff=_FIRST_RETRY)
        self._confirm(run, message.metadata.message_id)
        return message, objects

    def give(self, run: int, answer: Encoded, seconds: float) -> None:
        """Send an answer, which took so many seconds to compute."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.message_pb2 import Message as ProtoMessage
        from flwr.proto.message_pb2 import ObjectTree
        from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable

        head = message_from_proto(ProtoMessage.FromString(answer.message))
        wanted, session = self._push(head, ObjectTree.FromString(answer.tree), seconds)
        push_object_contents_from_iterable(
            ((number, answer.objects[number]) for number in wanted), partial(self._push_object, run, session)
        )


@contextmanager
def connected(folder: Path, address: str, insecure: bool) -> Iterator[FleetClient]:
    """The connection of a site folder, by its key and its coordinator's certificate unless `insecure`."""
    from flwr.supernode.fleet_http_connection import http_request_response

    keep_heartbeats()
    keys = trusted = None
    if not insecure:
        key = read_private(folder / PRIVATE)
        keys, trusted = (key, key.public_key()), (folder / "ca.crt").read_bytes()
    with http_request_response(address, insecure, trusted, keys) as calls:
        yield FleetClient(calls)


def keep_heartbeats() -> None:
    """Let one bad answer of the coordinator, such as an HTTP 500 where its disk is full, not end the heartbeats.

    Flower retries lost connections alone; after any other error a site would be deaf until somebody restarted it.
    """
    from flwr.supercore.heartbeat import HeartbeatFailure, HeartbeatSender

    original = HeartbeatSender._heartbeat

    def steady(sender: HeartbeatSender) -> None:
        try:
            original(sender)
        except HeartbeatFailure:
            raise
        except Exception as error:
            raise HeartbeatFailure from error

    HeartbeatSender._heartbeat = steady  # type: ignore[method-assign,assignment]

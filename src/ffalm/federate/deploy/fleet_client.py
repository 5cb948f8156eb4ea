"""A site's requests to its coordinator over Flower's Fleet API: take a question, give an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffalm.federate.deploy.answer_process import Encoded
from ffalm.federate.deploy.bundle import FIRST_RETRY, GIVE, TAKE, exchange, numbered, numbers_in, objects_in
from ffalm.federate.keys import PRIVATE, read_private

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supernode.fleet_http_client import FleetHttpClient


class FleetClient:
    """A connected site. `calls` are those that Flower's own connection yields, in its order."""

    def __init__(self, calls: tuple[Any, ...], bundles: FleetHttpClient) -> None:
        self.node: int = calls[0]
        self._pull_object, self._push_object, self._confirm = calls[5:]
        self._bundles = bundles

    def take(self) -> tuple[Message, dict[str, bytes]] | None:
        """A message without its content, and the bytes of all objects in it; None if there is none."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesResponse
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        parts = exchange(self._bundles, TAKE, [])
        if not parts:
            return None
        found, objects = PullMessagesResponse.FromString(parts[0]), objects_in(parts[1:])
        message = message_from_proto(found.messages_list[0])
        run = message.metadata.run_id
        missing = [number for number in numbers_in(found.message_object_trees[0]) if number not in objects]
        if missing:
            objects |= pull_objects(missing, partial(self._pull_object, run), initial_backoff=FIRST_RETRY)
            self._confirm(run, message.metadata.message_id)
        return message, objects

    def give(self, run: int, answer: Encoded, seconds: float) -> None:
        """Send an answer, which took so many seconds to compute."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
        from flwr.proto.message_pb2 import Message as ProtoMessage
        from flwr.proto.message_pb2 import ObjectTree
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable

        request = PushMessagesRequest(
            node=Node(node_id=self.node),
            messages_list=[ProtoMessage.FromString(answer.message)],
            message_object_trees=[ObjectTree.FromString(answer.tree)],
            clientapp_runtime_list=[seconds],
        )
        parts = exchange(self._bundles, GIVE, [request.SerializeToString(), *numbered(answer.objects)])
        stored = PushMessagesResponse.FromString(parts[0])
        rest = ((number, answer.objects[number]) for number in stored.objects_to_push)
        push_object_contents_from_iterable(rest, partial(self._push_object, run, stored.session_id))


@contextmanager
def connected(folder: Path, address: str, insecure: bool) -> Iterator[FleetClient]:
    """The connection of a site folder, by its key and its coordinator's certificate unless `insecure`."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supernode import fleet_http_connection
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    keep_heartbeats()
    keys = trusted = None
    if insecure:
        made = generate_key_pairs()
        vars(fleet_http_connection)["generate_key_pairs"] = lambda: made  # the key by which a site registers itself
    else:
        key = read_private(folder / PRIVATE)
        made = keys = (key, key.public_key())
        trusted = (folder / "ca.crt").read_bytes()
    with (
        fleet_http_connection.http_request_response(address, insecure, trusted, keys) as calls,
        FleetHttpClient.from_server_address(
            address,
            insecure,
            trusted,
            [NodeAuthHttpInterceptor(*made)],
            retry_invoker=make_simple_http_retry_invoker(),
        ) as bundles,
    ):
        yield FleetClient(calls, bundles)


def keep_heartbeats() -> None:
    """Keep sending heartbeats after a bad answer of the coordinator, such as an HTTP 500 because its disk is full.

    Flower only retries lost connections; after any other error a site would get no messages until it is restarted.
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

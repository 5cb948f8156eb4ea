"""The coordinator's end of bundles (`bundle`): Flower's own handlers, called once for a message and all its objects.

Requests are let in like Flower's own: sites by their keys (`site_admission`), the run by the token of its task.
"""

from __future__ import annotations

import binascii
import logging
from base64 import b64decode
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.error import FlowerError
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import BytesValue
from starlette.concurrency import run_in_threadpool

from ffalm.federate.deploy.bundle import (
    COLLECT,
    GIVE,
    MOST_BYTES,
    SEND,
    TAKE,
    joined,
    numbered,
    numbers_in,
    objects_in,
    split,
)
from ffalm.federate.deploy.fleet_gateway import App, Receive, Scope, Send

log = logging.getLogger("ffalm.federate")

_MOST_OF_A_REQUEST = 2 * MOST_BYTES
_UNFORESEEN = (TypeError, ValueError, KeyError, AttributeError, OverflowError)  # by what was sent, not by a full disk


class MessageBundles:
    """An application that takes and gives bundles for Flower's SuperLink, and passes everything else on."""

    def __init__(self, app: App, superlink: Any) -> None:
        self._app, self._superlink = app, superlink

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a bundle, or pass it on."""
        if scope.get("path") not in (TAKE, GIVE, SEND, COLLECT):
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        status, answer = (413, b"") if body is None else await run_in_threadpool(self._answer, scope, body)
        headers = [(b"content-type", b"application/protobuf"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, scope: Scope, body: bytes) -> tuple[int, bytes]:
        state = self._superlink.state.linkstate_factory.state()
        try:
            parts, path = split(BytesValue.FromString(body).value), scope["path"]
            if path in (TAKE, GIVE):
                node = _node(scope, state)
                answer = take(state, node) if path == TAKE else give(state, node, parts)
            else:
                task = _task(scope, state)
                if task is None:
                    return 401, b""
                answer = send(state, task, parts) if path == SEND else collect(state, task, parts)
        except FlowerError:
            return 403, b""  # the run has ended; Flower's clients know it by this status
        except (ValueError, KeyError, IndexError, DecodeError, binascii.Error):
            return 400, b""
        return 200, BytesValue(value=joined(answer)).SerializeToString()


def take(state: Any, node: int) -> list[bytes]:
    """The next message for a node: Flower's answer, then objects; nothing if there is none.

    A complete message counts as received.
    """
    store = state.object_store
    found = fleet_handlers.pull_messages(PullMessagesRequest(node=Node(node_id=node)), state, store)
    return [found.SerializeToString(), *_with_objects(store, found)] if found.messages_list else []


def give(state: Any, node: int, parts: list[bytes]) -> list[bytes]:
    """Store a node's answer, from Flower's request and objects; Flower's answer, with the objects still missing."""
    request = PushMessagesRequest.FromString(parts[0])
    (message,) = request.messages_list
    if {request.node.node_id, message.metadata.src_node_id} != {node}:
        raise ValueError("This is another site's answer.")
    stored = fleet_handlers.push_messages(request, state)
    return [_stored(state, message.metadata.run_id, stored, parts[1:])]


def send(state: Any, task: Any, parts: list[bytes]) -> list[bytes]:
    """Store a run's questions, from Flower's request and objects; Flower's answer, with the objects still missing."""
    stored = runtime_handlers.push_messages(PushAppMessagesRequest.FromString(parts[0]), state, task)
    return [_stored(state, task.run_id, stored, parts[1:])]


def collect(state: Any, task: Any, parts: list[bytes]) -> list[bytes]:
    """The answers so far to a run's questions, given the questions' numbers; nothing if there are none."""
    questions = [number.decode() for number in parts]
    try:
        found = _answers(state, task, questions)
    except _UNFORESEEN:  # one site's metadata, such as a lifetime that is no number, must not hide the others' answers
        found = PullAppMessagesResponse()
        for question in questions:
            try:
                found.MergeFrom(_answers(state, task, [question]))
            except _UNFORESEEN:
                log.exception("The answer to the question %s cannot be handled and is deleted.", question)
                state.delete_messages({question})
    return [found.SerializeToString(), *_with_objects(state.object_store, found)] if found.messages_list else []


def _answers(state: Any, task: Any, questions: list[str]) -> PullAppMessagesResponse:
    return runtime_handlers.pull_messages(PullAppMessagesRequest(message_ids=questions), state, task)


def _with_objects(store: Any, found: Any) -> list[bytes]:
    """The objects of messages, as many as fit; those of complete messages are deleted."""
    parts, left = list[bytes](), MOST_BYTES
    for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        wanted = {number: store.get(number) for number in numbers_in(tree)}
        own = numbered(wanted, left)
        parts += own
        left -= sum(map(len, own[1::2]))
        if len(own) == 2 * len(wanted):
            store.delete(message.metadata.message_id)
    return parts


def _stored(state: Any, run: int, stored: Any, parts: list[bytes]) -> bytes:
    """Store the announced objects of a message; Flower's answer, with those still missing."""
    given = objects_in(parts)
    missing = [number for number in stored.objects_to_push if number not in given]
    for number in stored.objects_to_push:
        if number in given and not state.store_object(run, stored.session_id, number, given[number]):
            raise ValueError("An object cannot be stored.")
    del stored.objects_to_push[:]
    stored.objects_to_push.extend(missing)
    return bytes(stored.SerializeToString())


def _node(scope: Scope, state: Any) -> int:
    key = dict(scope["headers"])[FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()]
    node = state.get_node_id_by_public_key(b64decode(key, validate=True))
    if node is None:
        raise ValueError("No node has this key.")
    return int(node)


def _task(scope: Scope, state: Any) -> Any:
    token = dict(scope["headers"]).get(TASK_TOKEN_HEADER.lower().encode(), b"").decode()
    return state.get_task_by_token(token) if token else None


async def _body(receive: Receive) -> bytes | None:
    """A request's body; None if it is larger than any bundle, or the connection was lost before its end."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _MOST_OF_A_REQUEST:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)

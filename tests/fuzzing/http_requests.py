"""Requests to a coordinator's web server with something changed: each gets an answer of HTTP."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from unittest.mock import patch

from tests.fuzzing.mutations import changed_bytes


def bundle(draws: random.Random) -> str:
    """A request with a changed bundle gets a status of HTTP."""
    from flwr.proto import fleet_pb2, runtime_pb2
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers
    from google.protobuf.wrappers_pb2 import BytesValue
    from tests.federate.deploy.test_message_bundles import KEY, NODE, TOKEN, Superlink

    from ffalm.federate.deploy.bundle import COLLECT, GIVE, SEND, TAKE, joined
    from ffalm.federate.deploy.message_bundles import MessageBundles

    path = draws.choice((GIVE, SEND, GIVE, SEND, TAKE, COLLECT))
    fields: dict[str, Any] = {"node": {"node_id": NODE}, "messages_list": [{"metadata": {"src_node_id": NODE}}]}
    request = fleet_pb2.PushMessagesRequest(**fields)
    parts = [draws.randbytes(draws.randrange(40)) for _ in range(draws.randrange(4))]
    parts = [request.SerializeToString(), *parts] if draws.random() < 0.5 else parts
    body = BytesValue(value=joined(parts)).SerializeToString()
    body = changed_bytes(draws, body) if draws.random() < 0.7 else body
    nothing = fleet_pb2.PullMessagesResponse(), runtime_pb2.PullAppMessagesResponse()
    stored = fleet_pb2.PushMessagesResponse(objects_to_push=["a"]), runtime_pb2.PushAppMessagesResponse()
    with (
        patch.object(fleet_handlers, "pull_messages", lambda *_: nothing[0]),
        patch.object(fleet_handlers, "push_messages", lambda *_: stored[0]),
        patch.object(runtime_handlers, "pull_messages", lambda *_: nothing[1]),
        patch.object(runtime_handlers, "push_messages", lambda *_: stored[1]),
    ):
        return str(_status(MessageBundles(_nobody, Superlink()), path, _headers(draws, KEY, TOKEN), body))


def gateway(draws: random.Random) -> str:
    from ffalm.federate.deploy.fleet_gateway import FleetGateway

    length = draws.choice((b"0", b"-1", b"9" * 30, b"x", b"", b"1e3", "\u0663".encode(), b"5"))
    paths = ("/v1/fleet/pull-object", "/", "/v1/fleet/../x", "/v1/fleet/register-node", "", "/v1/runtime/x", "\x00")
    headers = [(b"content-length", length)]
    app = FleetGateway(_nobody, ("127.0.0.1", 1), None, 100)
    return str(_status(app, draws.choice(paths), headers, draws.randbytes(draws.randrange(300))))


def _headers(draws: random.Random, key: bytes, token: str) -> list[tuple[bytes, bytes]]:
    from base64 import b64encode

    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER

    right = {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key), TASK_TOKEN_HEADER: token.encode()}
    return [
        (name.lower().encode(), value if draws.random() < 0.7 else changed_bytes(draws, value))
        for name, value in right.items()
        if draws.random() < 0.9
    ]


async def _nobody(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] == "http.request":
        break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _status(app: Any, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "path": path, "headers": headers, "server": ("0.0.0.0", 2)}, receive, send))
    status = int(sent[0]["status"])
    assert status in (200, 400, 401, 403, 413), status
    return status


def polling(draws: random.Random) -> str:
    """Looks, messages sent and connections lost in any order: each look is answered once, as it was, and none hangs."""
    from ffalm.federate.deploy.long_polling import LOOKS, LongPolling

    paths = [path for look, (_, sent_by) in LOOKS.items() for path in (look, *sent_by)]
    steps = [
        (
            draws.choice([*paths, "/v1/other", None]),
            draws.choice((0, 0, 0.001)),
            draws.choice(("kept", "lost", "fails")),
        )
        for _ in range(draws.randrange(1, 8))
    ]
    body, status = draws.choice((b"", b"", b"a message")), draws.choice((200, 200, 401, 500))

    async def superlink(scope: Any, receive: Any, send: Any) -> None:
        if scope["fate"] == "fails":
            raise ConnectionError("the application failed")
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def one(app: Any, path: str | None, fate: str) -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(0 if fate == "lost" else 60)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "fate": fate, **({} if path is None else {"path": path})}
        try:
            await app(scope, receive, send)
        except ConnectionError:
            return len(sent)
        assert [part.get("status", part.get("body")) for part in sent] == [status, body], sent
        return len(sent)

    async def together() -> list[int]:
        app, waiting = LongPolling(superlink), []
        for path, pause, fate in steps:
            waiting.append(asyncio.create_task(one(app, path, fate)))
            await asyncio.sleep(pause)
        app.end()
        return await asyncio.wait_for(asyncio.gather(*waiting), 5)

    return f"{sum(asyncio.run(together())) // 2} answered"

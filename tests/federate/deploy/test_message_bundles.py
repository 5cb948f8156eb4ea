"""Messages with all their objects in one request, between a run, the coordinator and a site."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.error import FlowerError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from google.protobuf.wrappers_pb2 import BytesValue

from ffalm.federate.deploy import bundle
from ffalm.federate.deploy.answer_process import encoded
from ffalm.federate.deploy.bundle import COLLECT, GIVE, SEND, TAKE, joined, numbered, split
from ffalm.federate.deploy.bundled_grid import BundledGrid
from ffalm.federate.deploy.fleet_client import FleetClient
from ffalm.federate.deploy.message_bundles import MessageBundles

RUN, NODE = 5, 7
KEY, TOKEN = b"a site's key", "the run's token"


class Superlink:
    """The part of Flower's state that bundles touch: one mailbox to the node, one from it."""

    def __init__(self) -> None:
        self.object_store = InMemoryObjectStore()
        self.questions: list[Any] = []
        self.answers: list[Any] = []
        self.ended = False
        self.state = SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: self))

    def get_node_id_by_public_key(self, key: bytes) -> int | None:
        return NODE if key == KEY else None

    def get_task_by_token(self, token: str) -> Any:
        return SimpleNamespace(run_id=RUN) if token == TOKEN else None

    def store_object(self, run: int, session: str, number: str, content: bytes) -> bool:
        assert (run, session) == (RUN, "session")
        self.object_store.put(number, content)
        return True

    def put(self, box: list[Any], request: Any) -> list[str]:
        if self.ended:
            raise FlowerError(1, "over")
        missing = list[str]()
        for message, tree in zip(request.messages_list, request.message_object_trees, strict=True):
            missing += self.object_store.preregister(RUN, tree)
            box.append((message, tree))
        return list(dict.fromkeys(missing))

    def pop(self, box: list[Any], limit: int) -> dict[str, list[Any]]:
        found, box[:] = box[:limit], box[limit:]
        return {"messages_list": [one for one, _ in found], "message_object_trees": [tree for _, tree in found]}


class Client:
    """Flower's HTTP client, without HTTP: straight into the application."""

    def __init__(self, app: MessageBundles, header: str, value: bytes) -> None:
        self._app, self._headers = app, [(header.lower().encode(), value)]
        self.statuses: list[int] = []

    def _unary_unary(self, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        status, body = asyncio.run(self.ask(path, request.SerializeToString()))
        self.statuses.append(status)
        if status != 200:
            raise OSError(status)
        return response_type.FromString(body)

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self._app({"type": "http", "path": path, "headers": self._headers}, receive, send)
        return sent[0]["status"], sent[1]["body"]


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> Superlink:
    made = Superlink()
    monkeypatch.setattr(
        fleet_handlers,
        "pull_messages",
        lambda request, state, store: PullMessagesResponse(**state.pop(made.questions, 1)),
    )
    monkeypatch.setattr(
        fleet_handlers,
        "push_messages",
        lambda request, state: PushMessagesResponse(
            objects_to_push=state.put(made.answers, request), session_id="session"
        ),
    )
    monkeypatch.setattr(
        runtime_handlers,
        "pull_messages",
        lambda request, state, task: PullAppMessagesResponse(**state.pop(made.answers, 9)),
    )
    monkeypatch.setattr(
        runtime_handlers,
        "push_messages",
        lambda request, state, task: PushAppMessagesResponse(
            message_ids=[one.metadata.message_id for one in request.messages_list],
            objects_to_push=state.put(made.questions, request),
            session_id="session",
        ),
    )
    monkeypatch.setattr(TaskIdentity, "_run_id", RUN)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    return made


async def _nothing_else(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError(scope["path"])


@pytest.fixture
def site(superlink: Superlink) -> Client:
    return Client(MessageBundles(_nothing_else, superlink), FLEET_HTTP_PUBLIC_KEY_HEADER, b64encode(KEY))


@pytest.fixture
def run(superlink: Superlink) -> Client:
    return Client(MessageBundles(_nothing_else, superlink), TASK_TOKEN_HEADER, TOKEN.encode())


def _question(number: int) -> Message:
    return Message(RecordDict({"facts": ConfigRecord({"round": number})}), dst_node_id=NODE, message_type="train")


def _one_by_one(superlink: Superlink, log: list[str]) -> tuple[Callable[..., bytes], Callable[..., None]]:
    """Flower's own calls for single objects."""

    def pull(run: int, number: str) -> bytes:
        log.append("pull")
        content = superlink.object_store.get(number)
        assert content
        return content

    def push(run: int, session: str, number: str, content: bytes) -> None:
        log.append("push")
        superlink.store_object(run, session, number, content)

    return pull, push


@pytest.mark.parametrize("most", [bundle.MOST_BYTES, 150])
def test_questions_reach_a_site_and_answers_the_run(
    superlink: Superlink, site: Client, run: Client, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("ffalm.federate.deploy.message_bundles.MOST_BYTES", most)
    monkeypatch.setattr(numbered, "__defaults__", (most,))
    log: list[str] = []
    pull, push = _one_by_one(superlink, log)

    def confirm(run: int, number: str) -> None:
        log.append("confirm")
        superlink.object_store.delete(number)

    fleet = FleetClient((NODE, None, None, None, None, pull, push, confirm), site)  # type: ignore[arg-type]
    grid = BundledGrid(_grid(superlink, run, pull, push))
    assert fleet.take() is None and grid.pull_messages(["1"]) == []
    sent = grid.push_messages([_question(1), _question(2)])
    assert len(sent) == 2
    for number in (1, 2):
        taken = fleet.take()
        assert taken is not None
        head, objects = taken
        assert head.metadata.message_id in objects
        reply = Message(RecordDict({"facts": ConfigRecord({"seen": number})}), reply_to=head)
        reply.metadata.__dict__["_src_node_id"] = NODE
        fleet.give(RUN, encoded(reply), 0.1)
    answers = list(grid.pull_messages(sent))
    assert [answer.content["facts"]["seen"] for answer in answers] == [1, 2]
    assert [answer.metadata.reply_to_message_id for answer in answers] == sent
    assert not len(superlink.object_store), "what was delivered is no longer kept"
    assert bool(log) == (most < bundle.MOST_BYTES), "only what does not fit goes by requests of its own"
    assert {*log} <= {"pull", "push", "confirm"}


def _grid(superlink: Superlink, client: Any, pull: Callable[..., bytes], push: Callable[..., None]) -> Any:
    def store(request: Any) -> Any:
        push(request.run_id, request.session_id, request.object_id, request.object_content)
        return SimpleNamespace(stored=True)

    client.PushObject = store
    client.PullObject = lambda request: SimpleNamespace(
        object_found=True, object_available=True, object_content=pull(request.run_id, request.object_id)
    )
    client.ConfirmMessageReceived = lambda request: superlink.object_store.delete(request.message_object_id)
    from flwr.proto.node_pb2 import Node

    return SimpleNamespace(
        _runtime_client=client, node=Node(node_id=1), run=SimpleNamespace(run_id=RUN), get_node_ids=lambda: [NODE]
    )


def test_strangers_and_other_sites_get_nothing(superlink: Superlink, site: Client, run: Client) -> None:
    app = MessageBundles(_nothing_else, superlink)
    for path, header, value, status in (
        (TAKE, FLEET_HTTP_PUBLIC_KEY_HEADER, b64encode(b"another key"), 400),
        (TAKE, FLEET_HTTP_PUBLIC_KEY_HEADER, b"no base 64!", 400),
        (TAKE, "other", b"", 400),
        (SEND, TASK_TOKEN_HEADER, b"another token", 401),
        (COLLECT, "other", b"", 401),
    ):
        assert asyncio.run(Client(app, header, value).ask(path, b""))[0] == status
    message = encoded(_question(1))
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.node_pb2 import Node

    head = ProtoMessage.FromString(message.message)
    forged = PushMessagesRequest(node=Node(node_id=NODE + 1), messages_list=[head])
    body = BytesValue(value=joined([forged.SerializeToString()])).SerializeToString()
    assert asyncio.run(site.ask(GIVE, body))[0] == 400
    assert superlink.answers == []


def test_a_run_that_has_ended_is_told_as_flower_tells_it(superlink: Superlink, run: Client) -> None:
    superlink.ended = True
    with pytest.raises(OSError, match="403"):
        BundledGrid(_grid(superlink, run, lambda *_: b"", lambda *_: None)).push_messages([_question(1)])


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x02ab", BytesValue(value=joined([b"x"])[:-1]).SerializeToString()])
def test_nonsense_is_refused(site: Client, run: Client, body: bytes) -> None:
    assert asyncio.run(site.ask(GIVE, body))[0] == 400
    assert asyncio.run(run.ask(SEND, body))[0] == 400


def test_a_body_larger_than_any_bundle_is_refused(site: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.federate.deploy.message_bundles._MOST_OF_A_REQUEST", 20)
    assert asyncio.run(site.ask(GIVE, b"a" * 21))[0] == 413


def test_everything_else_is_flower_s(superlink: Superlink) -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    asyncio.run(MessageBundles(app, superlink)({"path": "/v1/fleet/get-run"}, None, None))  # type: ignore[arg-type]
    assert reached == ["/v1/fleet/get-run"]


def test_parts_are_joined_and_split_and_too_large_ones_left_out() -> None:
    parts = [b"", b"a", b"\x00" * 300]
    assert split(joined(parts)) == parts
    assert numbered({"1": b"abc", "2": None, "3": b"", "4": b"abcd", "5": b"a"}, 4) == [b"1", b"abc", b"5", b"a"]

"""Messages with all their objects in one request, between a run, the coordinator and a site."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.error import FlowerError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from google.protobuf.wrappers_pb2 import BytesValue

from ffalm.engines.flower.sites import Unreadable
from ffalm.federate.deploy import bundle, bundled_grid
from ffalm.federate.deploy.answer_process import Encoded, encoded
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
        return superlink.object_store.get(number) or b""

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
    answers = [answer for answer in grid.pull_messages(sent) if isinstance(answer, Message)]
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

    def fetch(request: Any) -> Any:
        content, known = pull(request.run_id, request.object_id), request.object_id in superlink.object_store
        return SimpleNamespace(object_found=known, object_available=bool(content), object_content=content)

    client.PullObject = fetch
    client.ConfirmMessageReceived = lambda request: superlink.object_store.delete(request.message_object_id)
    return SimpleNamespace(
        _runtime_client=client, node=Node(node_id=1), run=SimpleNamespace(run_id=RUN), get_node_ids=lambda: [NODE]
    )


@dataclass(frozen=True)
class Ends:
    """Both ends of the wire, with two questions that the site has taken."""

    fleet: FleetClient
    grid: BundledGrid
    site: Client
    sent: list[str]
    heads: list[Message]
    log: list[str]

    def answer(self, place: int) -> Encoded:
        """The site's answer to one of the questions."""
        reply = Message(RecordDict({"facts": ConfigRecord({"seen": place})}), reply_to=self.heads[place])
        reply.metadata.__dict__["_src_node_id"] = NODE
        return encoded(reply)

    def give_part(self, answer: Encoded, left_out: str) -> None:
        """Announce an answer and send all its objects but one, as a site does that dies during the upload."""
        request = PushMessagesRequest(
            node=Node(node_id=NODE),
            messages_list=[ProtoMessage.FromString(answer.message)],
            message_object_trees=[ObjectTree.FromString(answer.tree)],
        )
        rest = {number: content for number, content in answer.objects.items() if number != left_out}
        bundle.exchange(self.site, GIVE, [request.SerializeToString(), *numbered(rest)])  # type: ignore[arg-type]

    def seen(self) -> list[Any]:
        """What the answers say that are there."""
        found = self.grid.pull_messages(self.sent)
        return [one if isinstance(one, Unreadable) else one.content["facts"]["seen"] for one in found]


@pytest.fixture
def ends(superlink: Superlink, site: Client, run: Client) -> Ends:
    log: list[str] = []
    pull, push = _one_by_one(superlink, log)
    fleet = FleetClient((NODE, None, None, None, None, pull, push, lambda *_: None), site)  # type: ignore[arg-type]
    grid = BundledGrid(_grid(superlink, run, pull, push))
    sent = grid.push_messages([_question(1), _question(2)])
    taken = [fleet.take() for _ in sent]
    return Ends(fleet, grid, site, sent, [one[0] for one in taken if one is not None], log)


def _replaced(answer: Encoded, content: bytes) -> Encoded:
    """An answer whose one object is something else, of the right number."""
    number = hashlib.sha256(content).hexdigest()
    head = ProtoMessage.FromString(answer.message)
    head.metadata.message_id = number
    tree = ObjectTree(object_id=number).SerializeToString()
    return answer._replace(message=head.SerializeToString(), tree=tree, objects={number: content})


@pytest.mark.parametrize(
    "content",
    [
        b"Message  10\x00no message",
        b"RecordDict  0\x00",
        b"ConfigRecord  3\x00abc",
        b"Message " + b"0" * 64 + b" 0\x00",
        b"Message  2\x00\x08\x01",
    ],
    ids=["no message", "another object", "no record", "a part is missing", "an empty message"],
)
def test_an_answer_that_is_no_message_is_told_by_its_question_and_the_others_are_read(
    ends: Ends, superlink: Superlink, content: bytes
) -> None:
    ends.fleet.give(RUN, _replaced(ends.answer(0), content), 0.1)
    ends.fleet.give(RUN, ends.answer(1), 0.1)
    bad, good = ends.seen()
    assert isinstance(bad, Unreadable) and bad.question == ends.sent[0]
    assert good == 1
    assert not len(superlink.object_store) and ends.seen() == []


def test_an_answer_counts_for_the_question_that_the_coordinator_checked_whatever_it_says_itself(ends: Ends) -> None:
    answer = ends.answer(1)
    head = ProtoMessage.FromString(answer.message)
    head.metadata.reply_to_message_id = ends.sent[0]
    ends.fleet.give(RUN, answer._replace(message=head.SerializeToString()), 0.1)
    (found,) = ends.grid.pull_messages(ends.sent)
    assert isinstance(found, Message) and found.metadata.reply_to_message_id == ends.sent[0]


def test_an_answer_that_is_incomplete_is_none_yet_and_keeps_nobody_waiting(ends: Ends, superlink: Superlink) -> None:
    answer = ends.answer(0)
    late = max(answer.objects, key=lambda number: len(answer.objects[number]))
    ends.give_part(answer, late)
    assert ends.seen() == []
    ends.fleet.give(RUN, ends.answer(1), 0.1)
    assert ends.seen() == [1]
    assert ends.seen() == [] and ends.log.count("pull") <= 3, "one request a look"
    superlink.object_store.put(late, answer.objects[late])
    assert ends.seen() == [0]
    assert not len(superlink.object_store)


def test_an_incomplete_answer_is_forgotten_with_its_objects_once_nobody_asks_for_it(
    ends: Ends, superlink: Superlink
) -> None:
    answer = ends.answer(0)
    ends.give_part(answer, max(answer.objects))
    assert ends.seen() == [] and len(superlink.object_store)
    assert ends.grid.pull_messages(["another question"]) == []
    assert not len(superlink.object_store)


def test_an_upload_that_the_superlink_gave_up_is_an_answer_that_expired(ends: Ends, superlink: Superlink) -> None:
    answer = ends.answer(0)
    ends.give_part(answer, max(answer.objects))
    assert ends.seen() == []
    superlink.object_store.clear()
    (found,) = ends.grid.pull_messages(ends.sent)
    assert isinstance(found, Message) and found.metadata.reply_to_message_id == ends.sent[0]
    assert found.error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE


def test_an_answer_of_very_many_objects_keeps_nobody_waiting(
    ends: Ends, superlink: Superlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffalm.federate.deploy.message_bundles.MOST_BYTES", 0)
    monkeypatch.setattr(bundled_grid, "_SECONDS_FOR_ONE", 0.0)
    ends.fleet.give(RUN, ends.answer(0), 0.1)
    assert ends.seen() == [] and "pull" not in ends.log, "the time for one answer is over at once"
    monkeypatch.setattr(bundled_grid, "_SECONDS_FOR_ONE", 60.0)
    assert ends.seen() == [0]


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


def test_an_answer_that_flower_cannot_handle_is_deleted_and_the_others_are_told(
    ends: Ends, superlink: Superlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifetime that is no number, for one, is no value at all in the database, and Flower adds to it."""
    ends.fleet.give(RUN, ends.answer(1), 0.1)
    original, deleted = runtime_handlers.pull_messages, list[str]()

    def failing(request: Any, state: Any, task: Any) -> Any:
        if ends.sent[0] in request.message_ids and ends.sent[0] not in deleted:
            raise TypeError("unsupported operand type(s) for +: 'NoneType' and 'float'")
        return original(request, state, task)

    monkeypatch.setattr(runtime_handlers, "pull_messages", failing)
    superlink.delete_messages = deleted.extend  # type: ignore[attr-defined]
    assert ends.seen() == [1]
    assert deleted == [ends.sent[0]]

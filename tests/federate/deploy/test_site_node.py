"""A site's process: questions in, answers out, whatever goes wrong in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

import httpx
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.heartbeat import HeartbeatFailure, HeartbeatSender
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from ffalm.engines.flower.sites import _read
from ffalm.federate.deploy import fleet_client, operations, site_node
from ffalm.federate.deploy.answer_process import AnswerProcess, Encoded
from ffalm.federate.deploy.site_node import SiteNode


class Coordinator(fleet_client.FleetClient):
    """Gives what it is told to, one thing a look: a question, nothing, or an error."""

    def __init__(self, *given: Any) -> None:
        self.given, self.answers = list(given), list[Encoded]()

    def take(self) -> Any:
        if not self.given:
            raise KeyboardInterrupt
        found = self.given.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def give(self, run: int, answer: Encoded, seconds: float) -> None:
        self.answers.append(answer)


class Answers(AnswerProcess):
    """Answers what it is told to."""

    def __init__(self, answer: Encoded | None) -> None:
        self._answer = answer

    def answer(self, number: str, objects: dict[str, bytes]) -> Encoded | None:
        return self._answer


ANSWER = Encoded(b"message", b"tree", {"1": b"content"})


@pytest.fixture
def question(monkeypatch: pytest.MonkeyPatch) -> tuple[Message, dict[str, bytes]]:
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    return Message(RecordDict(), dst_node_id=7, message_type="train"), {}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the site paused, in place of pausing."""
    found: list[float] = []
    clock = iter(range(10_000))
    monkeypatch.setattr(site_node, "time", SimpleNamespace(sleep=found.append, monotonic=lambda: 0.001 * next(clock)))
    return found


def test_a_question_is_answered(question: Any) -> None:
    coordinator = Coordinator(question)
    SiteNode(coordinator, Answers(ANSWER)).look()
    assert coordinator.answers == [ANSWER]


def test_the_coordinator_is_told_where_the_process_that_was_to_answer_died(question: Any) -> None:
    coordinator = Coordinator(question)
    SiteNode(coordinator, Answers(None)).look()
    (answer,) = coordinator.answers
    reply = message_from_proto(ProtoMessage.FromString(answer.message))
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert reply.metadata.message_id in answer.objects
    failure = _read(reply)
    assert getattr(failure, "kind", "") == "failed"
    assert "process died before it answered" in getattr(failure, "reason", "")


def test_no_error_of_the_coordinator_and_no_run_that_ends_ends_a_site(question: Any) -> None:
    coordinator = Coordinator(OSError("HTTP 500"), RunNotRunningException(), ValueError("nonsense"), question)
    with pytest.raises(KeyboardInterrupt):
        SiteNode(coordinator, Answers(ANSWER)).serve()
    assert coordinator.answers == [ANSWER]


def test_a_site_looks_rarely_where_the_coordinator_never_holds_a_look(question: Any, pauses: list[float]) -> None:
    nothing = [None] * 12
    coordinator = Coordinator(*nothing, question, None)
    with pytest.raises(KeyboardInterrupt):
        SiteNode(coordinator, Answers(ANSWER)).serve()
    assert pauses == [0.05] * 10 + [3.0] * 2 + [0.05]


def test_a_site_looks_again_at_once_where_its_look_was_held(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(site_node, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: next(clock)))
    with pytest.raises(KeyboardInterrupt):
        SiteNode(Coordinator(None, None), Answers(ANSWER)).serve()
    assert pauses == []


def test_a_heartbeat_goes_on_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeartbeatSender, "_heartbeat", HeartbeatSender._heartbeat)
    fleet_client.keep_heartbeats()

    def disk_full() -> bool:
        raise OSError("HTTP 500")

    for broken in (disk_full, lambda: False):
        with pytest.raises(HeartbeatFailure):
            HeartbeatSender(broken)._heartbeat()
    HeartbeatSender(lambda: True)._heartbeat()


def test_a_site_that_is_refused_while_it_runs_says_so_in_its_log_and_goes_on(
    question: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site_node._refused()
    assert site_node.REFUSED in caplog.text
    refused = httpx.HTTPStatusError("401", request=httpx.Request("POST", "/"), response=httpx.Response(401))
    coordinator = Coordinator(refused, question)
    with pytest.raises(KeyboardInterrupt):
        SiteNode(coordinator, Answers(ANSWER)).serve()
    assert coordinator.answers == [ANSWER]
    assert "Traceback" not in caplog.text
    assert "set both clocks by NTP" in (operations._refusal(caplog.text) or "")

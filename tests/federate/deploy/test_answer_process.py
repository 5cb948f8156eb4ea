"""Questions are answered in processes of their own, and one that dies takes nothing with it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from ffalm.engines.flower.wire import packed, unpacked_answer
from ffalm.engines.remote.message import Failure
from ffalm.engines.remote.message import Message as Question
from ffalm.federate.deploy import answer_process
from ffalm.federate.deploy.answer_process import AnswerProcess, Encoded, encoded


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    return encoded(Message(packed(Question(facts={"describe": False})), dst_node_id=7, message_type="query.hello"))


def _number(message: Encoded) -> str:
    return message_from_proto(ProtoMessage.FromString(message.message)).metadata.message_id


def test_a_process_that_dies_gives_no_answer_and_the_next_one_answers_by_this_installation_s_client_app(
    tmp_path: Path, asked: Encoded
) -> None:
    (tmp_path / "site.toml").write_text('name = "north"\n[data]\nfile = "people.csv"\n')
    process = AnswerProcess(tmp_path)
    half = tmp_path / ".answered" / f".ffalm-run.json.{2**22 + 1}"  # no process has this number
    half.parent.mkdir()
    half.touch()
    assert process.answer("no such object", {}) is None
    assert not half.exists()
    if sys.platform == "linux":
        helper = answer_process.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(helper, signal.SIGKILL)
    answer = process.answer(_number(asked), dict(asked.objects))
    assert answer is not None
    reply = inflate_object_from_contents(_number(answer), dict(answer.objects))
    assert isinstance(reply, Message)
    assert reply.metadata.reply_to_message_id == _number(asked)
    found = unpacked_answer(reply.content)
    assert not isinstance(found, Failure) and found.facts["name"] == "north"


def test_a_message_is_taken_apart_as_flower_puts_it_together(asked: Encoded) -> None:
    content = RecordDict({"facts": ConfigRecord({"a": 1})})
    reply = encoded(Message(content, dst_node_id=7, message_type="query.hello"))
    again = inflate_object_from_contents(_number(reply), dict(reply.objects))
    assert isinstance(again, Message) and again.content == content

"""A question that cannot be read is refused with a sentence that may leave the site, before anything is done."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.federate.makers import World, config, world

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.errors import PublicError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.site.answering import answer


class Recorded(World):
    """Keeps the last question of each kind to the first site."""

    questions: dict[Kind, Message]

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        if name == "north":
            self.questions[kind] = message
        return super()._answer(kind, name, message)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    root = tmp_path_factory.mktemp("federation")
    sites = Recorded(world(root, (30, 30, 30)).folders)
    sites.questions = {}
    coordinate(config(training={"rounds": 1}), root / "run", sites, pause=0.0)
    return sites


def _facts(message: Message, **facts: Any) -> Message:
    return replace(message, facts={**message.facts, **facts})


def _without(message: Message, name: str) -> Message:
    return replace(message, facts={key: value for key, value in message.facts.items() if key != name})


def _tensors(message: Message, record: str, **entries: Any) -> Message:
    return replace(message, tensors={**message.tensors, record: {**message.tensors[record], **entries}})


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("train", lambda one: _without(one, "round")),
        ("train", lambda one: _facts(one, round="x")),
        ("train", lambda one: _facts(one, round=-1)),
        ("train", lambda one: _facts(one, round=2**62)),
        ("train", lambda one: _facts(one, round=float("nan"))),
        ("train", lambda one: _facts(one, counted=7)),
        ("train", lambda one: replace(one, tensors={})),
        ("train", lambda one: _tensors(one, "model", x=torch.zeros(1))),
        ("train", lambda one: _tensors(one, "model", **{"0.weight": torch.zeros(1)})),
        ("train", lambda one: _tensors(one, "state", dual=torch.zeros(3, 2))),
        ("train", lambda one: _tensors(one, "state", x=torch.zeros(1))),
        ("train", lambda one: replace(one, tensors={**one.tensors, "state": {}})),
        ("train", lambda one: replace(one, tensors={**one.tensors, "vector.x": {}})),
        ("score", lambda one: replace(one, tensors={})),
        ("score", lambda one: _tensors(one, "model", **{"0.bias": torch.zeros(9).double()})),
    ],
)
def test_a_malformed_question_is_refused(asked: Recorded, kind: Kind, spoil: Any) -> None:
    with pytest.raises(PublicError):
        answer(kind, spoil(asked.questions[kind]), {"site": str(asked.folders["north"])})


@pytest.mark.parametrize("facts", [{"data": DEEP}, {"data": "3"}, {"data": "{"}, {"columns": "[3]"}, {"columns": DEEP}])
def test_a_malformed_greeting_is_told_to_be_one(asked: Recorded, facts: dict[str, str]) -> None:
    greeting = _facts(asked.questions["hello"], describe=True, **facts)
    found = answer("hello", greeting, {"site": str(asked.folders["north"])})
    assert "coordinator's question" in str(found.facts["misfit"])


@pytest.mark.parametrize("terms", [DEEP, "null", "[1]", '{"contender": 3}', "x"])
def test_terms_that_cannot_be_read_are_no_terms(asked: Recorded, terms: str) -> None:
    found = answer("agree", Message(facts={"terms": terms}), {"site": str(asked.folders["north"])})
    assert "terms of the federation cannot be read" in str(found.facts["misfit"])


def test_the_true_questions_are_still_answered(asked: Recorded) -> None:
    for kind in ("train", "score"):
        answer(kind, asked.questions[kind], {"site": str(asked.folders["north"])})
    assert json.loads(str(asked.questions["hello"].facts["data"]))["label"] == "loan"


def test_control_characters_of_a_coordinator_reach_no_terminal(
    asked: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    answer("agree", Message(facts={"refused": "\x1b[2Jgone"}), {"site": str(asked.folders["north"])})
    assert "?[2Jgone" in caplog.text and "\x1b" not in caplog.text

"""Messages cross Flower's wire exactly, and cost no more than a plain message would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contract import TASK
from tests.engines.remote.nearby import assert_same_tensors, awkward
from tests.engines.test_conformance import jobs_of, tied
from torch import nn

import ffalm
from ffalm.engines import Snapshot
from ffalm.engines.loop import LoopEngine
from ffalm.engines.remote.message import Fact, Failure, Message
from ffalm.engines.remote.round_messages import addressed, train_message, update_message
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally

FACTS: dict[str, Fact] = {"round": 3, "loss": 0.1 + 0.2, "last": True, "name": "Süd", "none": float("inf"), "zero": 0}


@pytest.fixture(autouse=True)
def _flower(flower: None) -> None:
    """All of these need Flower."""


def sent(message: Message) -> Message:
    """A message that was serialised as Flower does it, object by object, and read at the other end."""
    from flwr.app import Message as FlowerMessage
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    from ffalm.engines.flower.wire import packed, unpacked

    outgoing = FlowerMessage(packed(message), dst_node_id=5, message_type="train")
    contents = {number: part.deflate() for number, part in get_all_nested_objects(outgoing).items()}
    arrived = inflate_object_from_contents(outgoing.object_id, contents)
    assert isinstance(arrived, FlowerMessage)
    return unpacked(arrived.content)


def size(content: Any) -> int:
    """The bytes of all objects of a message."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())


def test_tensors_keep_their_names_types_shapes_and_bits() -> None:
    model, state = awkward(), {"dual": torch.tensor(0.5, dtype=torch.float64)}
    found = sent(Message({"model": model, "state": state}))
    assert_same_tensors(found.tensors["model"], model)
    assert_same_tensors(found.tensors["state"], state)


def test_a_model_with_tied_parameters_goes_out_again_after_a_round() -> None:
    (job,) = jobs_of(ffalm.FedAvg(), tied, seeds=1, rounds=1)
    ((_, done),) = LoopEngine().train([job])
    found = sent(train_message(done.snapshot, job.spec.algorithm))
    assert_same_tensors(found.tensors["model"], done.snapshot.model)


def test_a_model_larger_than_one_array_arrives_whole() -> None:
    model = {str(layer): torch.full((2**20,), float(layer)) for layer in range(5)}
    assert_same_tensors(sent(Message({"state": {}, "model": model})).tensors["model"], model)


def test_what_arrives_may_be_written_to() -> None:
    found = sent(Message({"model": awkward()}))
    found.tensors["model"]["weight"].add_(1.0)


def test_facts_keep_their_types_and_values() -> None:
    found = sent(Message({}, FACTS)).facts
    assert found == FACTS
    assert {name: type(value) for name, value in found.items()} == {name: type(value) for name, value in FACTS.items()}


def test_an_empty_record_arrives_empty() -> None:
    assert sent(Message({"state": {}, "more": {}})) == Message({"state": {}, "more": {}})
    assert sent(Message()) == Message()


def test_a_failure_arrives_in_its_own_words() -> None:
    from ffalm.engines.flower.wire import packed_failure, unpacked_answer

    assert unpacked_answer(packed_failure("The file is empty.")) == Failure("failed", "The file is empty.")


def test_tensors_that_several_messages_share_are_encoded_once() -> None:
    from ffalm.engines.flower.wire import Encoded, packed

    known: Encoded = {}
    model, other = awkward(), awkward()
    first, second, third = (
        packed(Message({"model": tensors}, {"client": client}), known).array_records["tensors"]["model:0"]
        for client, tensors in enumerate((model, model, other))
    )
    assert first is second
    assert third is not first


def test_a_round_with_duals_and_a_tally_is_no_larger_than_a_plain_one_with_the_model_alone() -> None:
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from ffalm.engines.flower.wire import packed

    model = nn.Sequential(nn.Linear(66, 64), nn.ReLU(), nn.Linear(64, 2)).state_dict()
    algorithm = ffalm.FFALM()
    there = addressed(train_message(Snapshot(3, model, algorithm.start(TASK, torch.ones(2, 2, 2))), algorithm), 1)
    back = update_message(ClientUpdate(model, Tally.zeros((2, 2)), 0.3, 0.0))
    asked = RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"server-round": 3})})
    found = MetricRecord({"num-examples": 1000, "train_loss": 0.3})
    plain = size(asked) + size(RecordDict({"arrays": ArrayRecord(model), "metrics": found}))
    assert size(packed(there)) + size(packed(back)) <= 1.001 * plain


def test_why_a_site_failed_cannot_steer_a_terminal() -> None:
    from ffalm.engines.flower.wire import packed_failure, unpacked_answer

    found = unpacked_answer(packed_failure("The disk \x1b[2J\u202eis full\r\n"))
    assert isinstance(found, Failure) and found.reason == "The disk ?[2J?is full??"

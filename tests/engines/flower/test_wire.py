"""Parcels cross Flower's wire exactly, and cost no more than a plain message would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.contract import TASK
from tests.engines.remote.parcels import assert_same_tensors, awkward
from torch import nn

import ffalm
from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Fact, Failure, Parcel
from ffalm.engines.remote.round_messages import addressed, reply_parcel, train_parcel
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally

FACTS: dict[str, Fact] = {"round": 3, "loss": 0.1 + 0.2, "last": True, "name": "Süd", "none": float("inf"), "zero": 0}


@pytest.fixture(autouse=True)
def _flower(flower: None) -> None:
    """All of these need Flower."""


def sent(parcel: Parcel) -> Parcel:
    """A parcel that was serialised as Flower does it, object by object, and read at the other end."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    from ffalm.engines.flower.wire import packed, unpacked

    message = Message(packed(parcel), dst_node_id=5, message_type="train")
    contents = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    return unpacked(arrived.content)


def size(content: Any) -> int:
    """The bytes of all objects of a message."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())


def test_tensors_keep_their_names_types_shapes_and_bits() -> None:
    model, state = awkward(), {"dual": torch.tensor(0.5, dtype=torch.float64)}
    found = sent(Parcel({"model": model, "state": state}))
    assert_same_tensors(found.tensors["model"], model)
    assert_same_tensors(found.tensors["state"], state)


def test_a_model_larger_than_one_array_arrives_whole() -> None:
    model = {str(layer): torch.full((2**20,), float(layer)) for layer in range(5)}
    assert_same_tensors(sent(Parcel({"state": {}, "model": model})).tensors["model"], model)


def test_what_arrives_may_be_written_to() -> None:
    found = sent(Parcel({"model": awkward()}))
    found.tensors["model"]["weight"].add_(1.0)


def test_facts_keep_their_types_and_values() -> None:
    found = sent(Parcel({}, FACTS)).facts
    assert found == FACTS
    assert {name: type(value) for name, value in found.items()} == {name: type(value) for name, value in FACTS.items()}


def test_an_empty_record_arrives_empty() -> None:
    assert sent(Parcel({"state": {}, "more": {}})) == Parcel({"state": {}, "more": {}})
    assert sent(Parcel()) == Parcel()


def test_a_failure_arrives_in_its_own_words() -> None:
    from ffalm.engines.flower.wire import packed_failure, unpacked_answer

    assert unpacked_answer(packed_failure("The file is empty.")) == Failure("failed", "The file is empty.")


def test_tensors_that_several_parcels_share_are_encoded_once() -> None:
    from ffalm.engines.flower.wire import Encoded, packed

    known: Encoded = {}
    model, other = awkward(), awkward()
    first, second, third = (
        packed(Parcel({"model": tensors}, {"client": client}), known).array_records["tensors"]["model:0"]
        for client, tensors in enumerate((model, model, other))
    )
    assert first is second
    assert third is not first


def test_a_round_with_duals_and_a_tally_is_no_larger_than_a_plain_one_with_the_model_alone() -> None:
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from ffalm.engines.flower.wire import packed

    model = nn.Sequential(nn.Linear(66, 64), nn.ReLU(), nn.Linear(64, 2)).state_dict()
    algorithm = ffalm.FFALM()
    there = addressed(train_parcel(Snapshot(3, model, algorithm.start(TASK, torch.ones(2, 2, 2))), algorithm), 1)
    back = reply_parcel(ClientUpdate(model, Tally.zeros((2, 2)), 0.3, 0.0))
    asked = RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"server-round": 3})})
    found = MetricRecord({"num-examples": 1000, "train_loss": 0.3})
    plain = size(asked) + size(RecordDict({"arrays": ArrayRecord(model), "metrics": found}))
    assert size(packed(there)) + size(packed(back)) <= 1.001 * plain

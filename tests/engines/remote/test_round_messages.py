"""The messages of a round say what both ends need to know, and no more."""

from __future__ import annotations

import torch
from tests.contract import TASK
from tests.engines.remote.nearby import assert_same_tensors, awkward

import ffalm
from ffalm.engines.jobs import Snapshot
from ffalm.engines.remote.round_messages import addressed, answered, received, train_message, update_message
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally

TALLY = Tally(torch.arange(8).view(2, 2, 2), torch.rand(2, 2, dtype=torch.float64))


def test_a_client_receives_its_number_the_model_and_the_state_of_its_objective() -> None:
    algorithm = ffalm.FFALM()
    state = {**algorithm.start(TASK, torch.ones(3, 2, 2)), "secret": torch.ones(3)}
    client, sent, own = received(addressed(train_message(Snapshot(4, awkward(), state), algorithm), client=2))
    assert (client, sent.round, own) == (2, 4, {})
    assert set(sent.model) == set(awkward())
    assert_same_tensors(sent.state, {name: state[name] for name in algorithm.broadcasts})


def test_client_weights_stay_with_the_server() -> None:
    algorithm = ffalm.FairFed()
    state = algorithm.start(TASK, torch.ones(3, 2, 2))
    assert state
    assert train_message(Snapshot(0, {}, state), algorithm).tensors["state"] == {}


def test_messages_for_several_clients_share_their_tensors() -> None:
    whole = train_message(Snapshot(0, awkward(), {}), ffalm.FedAvg())
    first, second = addressed(whole, 0), addressed(whole, 1)
    assert first.tensors["model"] is second.tensors["model"]
    assert [first.facts["client"], second.facts["client"]] == [0, 1]


def test_a_reply_comes_back_as_it_was() -> None:
    model = awkward()
    reply = answered(update_message(ClientUpdate(model, TALLY, 0.3, 0.125)))
    assert reply.tally is not None
    assert_same_tensors(reply.model, model)
    assert torch.equal(reply.tally.confusion, TALLY.confusion)
    assert torch.equal(reply.tally.loss, TALLY.loss)
    assert (reply.loss, reply.negative, reply.values) == (0.3, 0.125, None)
    values = torch.tensor([0.5, 0.25], dtype=torch.float64)
    told = answered(update_message(ClientUpdate(model, None, 0.3, 0.0, {"gradient": model}, values=values)))
    assert told.values is not None and torch.equal(told.values, values)
    assert_same_tensors(told.uploads["gradient"], model)

"""The messages of a round: how they are written and read.

A client gets the model and the entries of the server's state that it needs; it answers with its trained model, the
Tally that the algorithm needs or the state after its own dual step, and facts about its training.
"""

from __future__ import annotations

from dataclasses import replace

from ffalm.algorithms import Algorithm
from ffalm.engines.common import broadcast_vectors
from ffalm.engines.jobs import Model, Snapshot
from ffalm.engines.remote.message import Message
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally
from ffalm.privacy import LEDGER

_SENT, _OWN, _UPLOAD = "vector.", "own.", "upload."  # prefixes of records that hold model-sized vectors


def train_message(sent: Snapshot, algorithm: Algorithm, own_step: bool = False) -> Message:
    """A server's question: the model and state from which a client trains.

    A client that takes the dual step itself (`own_step`) needs the whole state, not only the objective's part.
    """
    whole = own_step and algorithm.needs_only_sums
    named = [name for name in sent.state if name in algorithm.broadcasts or (whole and name != LEDGER)]
    state = {name: sent.state[name].cpu() for name in named}
    vectors = broadcast_vectors(algorithm, sent.vectors)
    return Message({"model": _on_cpu(sent.model), "state": state, **_records(_SENT, vectors)}, {"round": sent.round})


def addressed(message: Message, client: int, own: dict[str, Model] | None = None) -> Message:
    """The message for one client, with its number; the tensors are shared, so they are encoded once.

    `own` are the vectors that a simulated client keeps from round to round; a real site stores its own.
    """
    return replace(
        message, tensors={**message.tensors, **_records(_OWN, own or {})}, facts={**message.facts, "client": client}
    )


def received(message: Message) -> tuple[int, Snapshot, dict[str, Model]]:
    """What a client reads: its number, the model and state, and its own vectors if the message has them."""
    sent = Snapshot(
        int(message.facts["round"]), message.tensors["model"], message.tensors["state"], _vectors(_SENT, message)
    )
    return int(message.facts["client"]), sent, _vectors(_OWN, message)


def update_message(update: ClientUpdate, keeps_own: bool = False) -> Message:
    """A client's answer; without its own vectors if it `keeps_own` ones."""
    tensors = {"model": _on_cpu(update.model)}
    if update.tally is not None:
        tensors["tally"] = {"confusion": update.tally.confusion.cpu(), "loss": update.tally.loss.cpu()}
    if update.state is not None:
        tensors["state"] = update.state
    if update.values is not None:
        tensors["values"] = {"values": update.values}
    own = {} if keeps_own else update.own
    facts = {"loss": update.loss, "negative": update.negative}
    return Message(
        {**tensors, **_records(_UPLOAD, update.uploads), **_records(_OWN, own)},
        {name: value for name, value in facts.items() if value is not None},
    )


def answered(message: Message) -> ClientUpdate:
    """The inverse of `update_message`."""
    tally = message.tensors.get("tally")
    loss, negative = (
        None if name not in message.facts else float(message.facts[name]) for name in ("loss", "negative")
    )
    return ClientUpdate(
        message.tensors["model"],
        None if tally is None else Tally(tally["confusion"], tally["loss"]),
        loss,
        negative,
        _vectors(_UPLOAD, message),
        _vectors(_OWN, message),
        state=message.tensors.get("state"),
        values=message.tensors.get("values", {}).get("values"),
    )


def _records(prefix: str, vectors: dict[str, Model]) -> dict[str, Model]:
    """Vectors as records of a message; the prefix keeps their names apart from other records."""
    return {f"{prefix}{name}": _on_cpu(vector) for name, vector in vectors.items()}


def _vectors(prefix: str, message: Message) -> dict[str, Model]:
    """The inverse of `_records`."""
    return {name.removeprefix(prefix): vector for name, vector in message.tensors.items() if name.startswith(prefix)}


def _on_cpu(model: Model) -> Model:
    return {name: value.cpu() for name, value in model.items()}

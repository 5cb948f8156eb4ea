"""The parcels of a round, as both ends write and read them.

A client is sent the model and only those entries of the server's state that its objective needs; it answers with its
trained model, the Tally that the algorithm asks for, and how its training went.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ffalm.algorithms import Algorithm
from ffalm.engines.base import Snapshot
from ffalm.engines.remote.message import Parcel
from ffalm.engines.rounds import Reply
from ffalm.fairness import Tally


def train_parcel(sent: Snapshot, algorithm: Algorithm) -> Parcel:
    """What a server sends to be trained on: where the run stands."""
    state = {name: sent.state[name].cpu() for name in algorithm.broadcasts}
    return Parcel({"model": _on_cpu(sent.model), "state": state}, {"round": sent.round})


def addressed(parcel: Parcel, client: int) -> Parcel:
    """The same parcel for one client, which is told its number; the tensors are shared, so they are encoded once."""
    return replace(parcel, facts={**parcel.facts, "client": client})


def received(parcel: Parcel) -> tuple[int, Snapshot]:
    """What a client reads in it: its number, and where the run stands."""
    sent = Snapshot(int(parcel.facts["round"]), parcel.tensors["model"], parcel.tensors["state"])
    return int(parcel.facts["client"]), sent


def reply_parcel(reply: Reply) -> Parcel:
    """What a client answers."""
    tensors = {"model": _on_cpu(reply.model), "tally": tally_record(reply.tally)}
    return Parcel(tensors, {"loss": reply.loss, "negative": reply.negative})


def answered(parcel: Parcel) -> Reply:
    """The inverse of `reply_parcel`."""
    tally = tally_of(parcel.tensors["tally"])
    return Reply(parcel.tensors["model"], tally, float(parcel.facts["loss"]), float(parcel.facts["negative"]))


def tally_record(tally: Tally) -> dict[str, Tensor]:
    """A Tally as a record of a parcel."""
    return {"confusion": tally.confusion.cpu(), "loss": tally.loss.cpu()}


def tally_of(record: dict[str, Tensor]) -> Tally:
    """The inverse of `tally_record`."""
    return Tally(record["confusion"], record["loss"])


def _on_cpu(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in model.items()}

"""The parcels of a round, as both ends write and read them.

A client is sent the model and only those entries of the server's state that its objective needs; it answers with its
trained model, the Tally that the algorithm asks for, and how its training went.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ffalm.algorithms import Algorithm
from ffalm.engines.common import broadcast_vectors
from ffalm.engines.jobs import Model, Snapshot
from ffalm.engines.remote.message import Parcel
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally

_SENT, _OWN, _UPLOAD = "vector.", "own.", "upload."  # prefixes of records that hold model-sized vectors


def train_parcel(sent: Snapshot, algorithm: Algorithm) -> Parcel:
    """What a server sends to be trained on: where the run stands."""
    state = {name: value.cpu() for name, value in sent.state.items() if name in algorithm.broadcasts}
    vectors = broadcast_vectors(algorithm, sent.vectors)
    return Parcel({"model": _on_cpu(sent.model), "state": state, **_records(_SENT, vectors)}, {"round": sent.round})


def addressed(parcel: Parcel, client: int, own: dict[str, Model] | None = None) -> Parcel:
    """The same parcel for one client, which is told its number; the tensors are shared, so they are encoded once.

    `own` is what a simulated client keeps from round to round; a real site keeps it at home.
    """
    return replace(
        parcel, tensors={**parcel.tensors, **_records(_OWN, own or {})}, facts={**parcel.facts, "client": client}
    )


def received(parcel: Parcel) -> tuple[int, Snapshot, dict[str, Model]]:
    """What a client reads in it: its number, where the run stands, and its own vectors if they came along."""
    sent = Snapshot(
        int(parcel.facts["round"]), parcel.tensors["model"], parcel.tensors["state"], _vectors(_SENT, parcel)
    )
    return int(parcel.facts["client"]), sent, _vectors(_OWN, parcel)


def reply_parcel(update: ClientUpdate, keeps_own: bool = False) -> Parcel:
    """What a client answers; one that keeps its own vectors does not send them."""
    tensors = {"model": _on_cpu(update.model), "tally": tally_record(update.tally)}
    own = {} if keeps_own else update.own
    return Parcel(
        {**tensors, **_records(_UPLOAD, update.uploads), **_records(_OWN, own)},
        {"loss": update.loss, "negative": update.negative},
    )


def answered(parcel: Parcel) -> ClientUpdate:
    """The inverse of `reply_parcel`."""
    return ClientUpdate(
        parcel.tensors["model"],
        tally_of(parcel.tensors["tally"]),
        float(parcel.facts["loss"]),
        float(parcel.facts["negative"]),
        _vectors(_UPLOAD, parcel),
        _vectors(_OWN, parcel),
    )


def tally_record(tally: Tally) -> dict[str, Tensor]:
    """A Tally as a record of a parcel."""
    return {"confusion": tally.confusion.cpu(), "loss": tally.loss.cpu()}


def tally_of(record: dict[str, Tensor]) -> Tally:
    """The inverse of `tally_record`."""
    return Tally(record["confusion"], record["loss"])


def _records(prefix: str, vectors: dict[str, Model]) -> dict[str, Model]:
    """Vectors as records of a parcel, by names that no other record has."""
    return {f"{prefix}{name}": _on_cpu(vector) for name, vector in vectors.items()}


def _vectors(prefix: str, parcel: Parcel) -> dict[str, Model]:
    """The inverse of `_records`."""
    return {name.removeprefix(prefix): vector for name, vector in parcel.tensors.items() if name.startswith(prefix)}


def _on_cpu(model: Model) -> Model:
    return {name: value.cpu() for name, value in model.items()}

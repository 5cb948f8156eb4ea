"""What is summed in a round and in the last scoring, and how the sums are read.

A site multiplies what is averaged by its rows over the most rows that any site has; the division by all rows follows
after the sum, when it is known which sites are in it. The rows are summed too. Since each site's rows are agreed,
they and the counts in the Tallies show whether the sum is over the sites that it claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffalm.algorithms import State
from ffalm.data.types import Task
from ffalm.engines import Snapshot
from ffalm.engines.jobs import Model
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally
from ffalm.federate.secure.fixed_point import Record, VectorLayout
from ffalm.federate.secure.secure_settings import Secure
from ffalm.privacy import LEDGER

_MOST_ROWS = 2.0**40  # more than any count

COUNTS = "counts of rows"

Numbers = dict[str, NDArray[np.float64]]

Uploads = Mapping[str, Sequence[str]]
"""The parameters in each of the algorithm's uploads."""


@dataclass(frozen=True)
class RoundSum:
    """What the coordinator learns of a round."""

    rows: int
    model: dict[str, Tensor]  # the mean by rows
    state: State  # likewise, before the algorithm projects it
    uploads: dict[str, Model]  # likewise
    loss: float  # means over sites
    negative: float
    validation: Tally | None  # None under privacy
    error: float  # the most that rounding to whole units can have moved an entry of the model


def round_layout(
    sent: Snapshot, uploads: Uploads, task: Task, secure: Secure, sites: int, private: bool = False
) -> VectorLayout:
    """The numbers of a round's answer: the model's change, the stepped state, uploads, and the sent model's scores.

    Under privacy sites weight their numbers themselves, before they add noise, and tell no scores.
    """
    model = [_model_record("model's", name, value, secure) for name, value in sent.model.items()]
    if private:
        floats = {f"model's {name!r}" for name, value in sent.model.items() if value.is_floating_point()}
        model = [replace(record, weighted=record.name not in floats) for record in model]
    state = [
        Record(f"state's {name!r}", tuple(value.shape), secure.state_range, "state_range", weighted=not private)
        for name, value in sent.state.items()
        if name != LEDGER
    ]
    uploaded = [
        _model_record(f"upload {name}'s", key, sent.model[key], secure)
        for name, parameters in uploads.items()
        for key in parameters
    ]
    plain = [
        Record("rows", (), _MOST_ROWS, "largest number of rows", whole=True),
        Record("loss", (), secure.loss_range, "loss_range"),
        Record("negative", (), 1.0, "largest share"),
    ]
    scores = [] if private else _tally_records("validation", task, secure)
    return VectorLayout([*model, *state, *uploaded, *plain, *scores], sites)


def round_numbers(sent: Snapshot, reply: ClientUpdate, moved: State, validation: Tally, rows: int) -> Numbers:
    """A site's own numbers of a round, to be laid out and weighted."""
    model = {f"model's {name!r}": reply.model[name].double() - value.double() for name, value in sent.model.items()}
    state = {f"state's {name!r}": value.double() for name, value in moved.items()}
    uploads = {
        f"upload {name}'s {key!r}": value.double()
        for name, vector in reply.uploads.items()
        for key, value in vector.items()
    }
    assert reply.loss is not None
    assert reply.negative is not None
    plain = {"rows": rows, "loss": reply.loss, "negative": reply.negative}
    tensors = {
        **model,
        **state,
        **uploads,
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in plain.items()},
    }
    return {
        **{name: value.cpu().numpy() for name, value in tensors.items()},
        **_tally_numbers("validation", validation),
    }


def round_sum(
    layout: VectorLayout,
    sums: Mapping[str, NDArray[np.float64]],
    sent: Snapshot,
    uploads: Uploads,
    sites: int,
    largest: int,
) -> RoundSum:
    """The result of a round from the summed numbers of its sites."""
    rows = int(sums["rows"])
    scale = largest / max(rows, 1)
    model = {}
    for name, value in sent.model.items():
        moved = torch.from_numpy(sums[f"model's {name!r}"]) * scale
        model[name] = (value.double() + (moved if value.is_floating_point() else moved.round())).to(value.dtype)
    floats = {f"model's {name!r}" for name, value in sent.model.items() if value.is_floating_point()}
    steps = [layout.step(record) for record in layout.records if record.name in floats]
    return RoundSum(
        rows,
        model,
        {name: torch.from_numpy(sums[f"state's {name!r}"]) * scale for name in sent.state if name != LEDGER},
        {
            name: {
                key: (torch.from_numpy(sums[f"upload {name}'s {key!r}"]) * scale).to(sent.model[key].dtype)
                for key in parameters
            }
            for name, parameters in uploads.items()
        },
        float(sums["loss"]) / sites,
        float(sums["negative"]) / sites,
        read_tally("validation", sums) if "counts of the validation rows" in sums else None,
        scale * sites * max(steps) / 2,
    )


def score_layout(task: Task, secure: Secure, sites: int, private: bool = False) -> VectorLayout:
    """The numbers of the last scoring: the Tallies of both held-out parts; under privacy, with noise, of the test."""
    if private:
        records = _tally_records("test", task, secure)
        return VectorLayout([replace(record, whole=False) for record in records], sites)
    return VectorLayout(
        [record for part in ("validation", "test") for record in _tally_records(part, task, secure)], sites
    )


def score_numbers(tallies: Mapping[str, Tally]) -> Numbers:
    """A site's own numbers of the last scoring."""
    return {name: value for part, tally in tallies.items() for name, value in _tally_numbers(part, tally).items()}


def counts_layout(shape: tuple[int, ...], sites: int) -> VectorLayout:
    """Counts of rows for a blind rule."""
    return VectorLayout([Record(COUNTS, shape, _MOST_ROWS, "largest number of rows", whole=True)], sites)


def read_tally(part: str, sums: Mapping[str, NDArray[np.float64]]) -> Tally:
    """A summed Tally; its counts are exact."""
    noisy = read_noisy_tally(part, sums)
    return Tally(noisy.confusion.round().long(), noisy.loss)


def read_noisy_tally(part: str, sums: Mapping[str, NDArray[np.float64]]) -> Tally:
    """A summed Tally under privacy, as the noise leaves it."""
    confusion, loss = (torch.from_numpy(sums[f"{what} of the {part} rows"]) for what in ("counts", "losses"))
    return Tally(confusion, loss)


def _model_record(of: str, name: str, value: Tensor, secure: Secure) -> Record:
    """An entry of the model; a counter, such as BatchNorm's of batches, moves by whole rounds at a time."""
    if value.is_floating_point():
        bound, setting, bits = secure.model_range, "model_range", int(secure.bits)
    else:
        bound, setting, bits = _MOST_ROWS, "largest number of rows", 64
    return Record(f"{of} {name!r}", tuple(value.shape), bound, setting, bits, weighted=True)


def _tally_records(part: str, task: Task, secure: Secure) -> list[Record]:
    cells = (task.labels, task.groups)
    return [
        Record(f"counts of the {part} rows", (task.labels, *cells), _MOST_ROWS, "largest number of rows", whole=True),
        Record(f"losses of the {part} rows", cells, secure.loss_range, "loss_range"),
    ]


def _tally_numbers(part: str, tally: Tally) -> Numbers:
    return {
        f"counts of the {part} rows": tally.confusion.cpu().double().numpy(),
        f"losses of the {part} rows": tally.loss.cpu().double().numpy(),
    }

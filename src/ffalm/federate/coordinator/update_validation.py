"""Which answers count. An answer that is malformed, not finite, contradicts the agreed counts or is far from the others
is quarantined for that round, with a reason; the round goes on without it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure
from ffalm.data.types import Task
from ffalm.engines import Snapshot, Training
from ffalm.engines.remote.message import Message, same_form
from ffalm.engines.remote.round_messages import answered
from ffalm.engines.server import ClientUpdate
from ffalm.errors import UserError, require
from ffalm.fairness import Tally
from ffalm.federate.coordinator.robust_aggregation import FEWEST_COMPARED
from ffalm.federate.description import MOST_ROWS
from ffalm.federate.disclosure import Disclosed
from ffalm.privacy import LEDGER

_USUAL = 1.0  # of duals and losses: single numbers near 0 differ by any factor, so at least this much is usual
_ROUNDING = 1e-3  # losses are computed in float32
_LARGEST_LOSS = torch.finfo(torch.float32).max  # of a row; any sum of these is far from overflow in float64
_TRAINING_FACTS = {"loss": ("mean training loss", _LARGEST_LOSS), "negative": ("share of steps that raise a loss", 1.0)}

_Site = TypeVar("_Site", str, int)


class _Sizes(NamedTuple):
    """The size of something in each answer, and how a message states it."""

    of: Mapping[Any, float]
    verb: str = "has the norm"
    usual: float = 0.0  # the least that counts as usual


@dataclass(frozen=True)
class Counts:
    """The agreed rows of a site: of each (label, group) in each part, and all training rows."""

    rows: int
    told: dict[str, Tensor]  # of each part; withheld cells hold 0
    withheld: dict[str, Tensor]

    @classmethod
    def of(cls, record: Mapping[str, Tensor], task: Task) -> Counts:
        """The counts in a site's answer; impossible counts are refused."""
        cells = (task.labels, task.groups)
        form: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"rows": (torch.int64, ())}
        for part in PARTS:
            form |= {part: (torch.int64, cells), f"{part}.withheld": (torch.bool, cells)}
        for name, (dtype, shape) in form.items():
            value = record.get(name)
            fits = value is not None and value.shape == shape and value.dtype == dtype
            if value is None or not fits or not bool(((value >= 0) & (value <= MOST_ROWS)).all()):
                raise UserError(f"The site's counts of its rows cannot be used: {name!r} is missing or malformed.")
        rows = int(record["rows"])
        if rows == 0:
            raise UserError("The site has no training rows.")
        rest = rows - int(record["train"].sum())
        if rest < 0 or (rest > 0 and not bool(record["train.withheld"].any())):
            raise UserError("The site's counts of its training rows do not add up.")
        return cls(rows, {part: record[part] for part in PARTS}, {part: record[f"{part}.withheld"] for part in PARTS})

    def agrees(self, other: Counts) -> bool:
        """Whether both can be of the same training rows; a cell may be withheld in only one of them."""
        either = self.withheld["train"] | other.withheld["train"]
        return self.rows == other.rows and bool((either | (self.told["train"] == other.told["train"])).all())

    def record(self) -> dict[str, Tensor]:
        """The record that `of` reads."""
        masks = {f"{part}.withheld": mask for part, mask in self.withheld.items()}
        return {"rows": torch.tensor(self.rows), **self.told, **masks}

    def training(self) -> Tensor:
        """Training rows per (label, group), as algorithms take them; they sum to `rows`.

        Rows of withheld cells are spread evenly over those cells: weights by size stay exact.
        """
        hidden = self.withheld["train"]
        cells = int(hidden.sum())
        counts, rest = self.told["train"].clone(), self.rows - int(self.told["train"].sum())
        counts[hidden] = torch.tensor([(rest + place) // cells for place in range(cells)], dtype=torch.int64)
        return counts


PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Answer:
    """A well-formed answer to a round: the update, and the scores of the model that was sent."""

    reply: ClientUpdate
    validation: Disclosed
    rows: int  # it was trained on
    withheld: Tensor | None = None  # cells of the training Tally, where there is one

    @property
    def finite(self) -> bool:
        """Whether all its numbers are finite; a site whose training diverged still sends a well-formed answer."""
        reply = self.reply
        uploads = [value for vector in reply.uploads.values() for value in vector.values()]
        measured = [*(reply.state or {}).values(), *([] if reply.tally is None else [reply.tally.loss])]
        values = [] if reply.values is None else [reply.values]
        tensors = [*reply.model.values(), *uploads, *measured, *values, self.validation.tally.loss]
        told = [value for value in (reply.loss, reply.negative) if value is not None]
        return all(map(math.isfinite, told)) and all(bool(value.isfinite().all()) for value in tensors)


def read_answer(
    message: Message, sent: Snapshot, task: Task, algorithm: Algorithm, trained: Collection[str] = ()
) -> Answer:
    """The answer in a message; raises `UserError` if it is malformed."""
    measured = "state" if algorithm.needs_only_sums else "tally"
    wanted = () if algorithm.measure is Measure.NOTHING else (measured,)
    for name in ("model", *wanted, "validation"):
        require(name in message.tensors, f"its answer lacks the record {name!r}")
    for name in {"state", "tally"} - set(wanted):
        require(name not in message.tensors, f"its answer has the record {name!r}, which was not asked for")
    model = message.tensors["model"]
    missing, strange = sorted(sent.model.keys() - model.keys()), sorted(model.keys() - sent.model.keys())
    require(not missing, f"its model lacks the entry {missing[0] if missing else ''!r}")
    require(not strange, f"its model has the unknown entry {strange[0] if strange else ''!r}")
    for name, like in sent.model.items():
        found = model[name]
        require(found.shape == like.shape, f"its {name!r} has the shape {_size(found)} instead of {_size(like)}")
        require(found.dtype == like.dtype, f"its {name!r} is of type {found.dtype} instead of {like.dtype}")
    withholds = not {"loss", "negative"} & message.facts.keys()
    for name in ("rows",) if withholds else ("rows", "loss", "negative"):
        require(isinstance(message.facts.get(name), int | float), f"its answer lacks the number {name!r}")
    require(isinstance(message.facts["rows"], int), "its number of rows is not a whole number")
    for name, (what, most) in ({} if withholds else _TRAINING_FACTS).items():
        value = float(message.facts[name])
        require(not math.isfinite(value) or 0 <= value <= most, f"its {what} cannot be {value:.3g}")
    hidden = read_scores(message, "tally", task).withheld if "tally" in wanted else None
    if "state" in wanted:
        state = {name: value for name, value in sent.state.items() if name != LEDGER}
        same = same_form(message.tensors["state"], state)
        require(same, "its state does not have the form of the state that it was sent")
    uploads = algorithm.uploads
    update = answered(message)
    values = None if update.values is None else (tuple(update.values.shape), update.values.dtype)
    fits = values == (((len(algorithm.gradients),), torch.float64) if algorithm.gradients else None)
    require(fits, f"its answer's values are not {len(algorithm.gradients) or 'none'}")
    require(update.uploads.keys() == set(uploads), f"its answer's uploads are not {', '.join(uploads) or 'none'}")
    for vector in update.uploads.values():
        fits = same_form(vector, {name: sent.model[name] for name in trained})
        require(fits, "an upload of its answer does not have the model's form")
    return Answer(update, read_scores(message, "validation", task), int(message.facts["rows"]), hidden)


def read_scores(message: Message, part: str, task: Task) -> Disclosed:
    """A site's Tally of a held-out part or of its training rows; raises `UserError` if it is malformed."""
    what = "Tally" if part == "tally" else f"Tally of the {part} rows"
    record = message.tensors.get(part, {})
    _check_tally(record, task, what)
    mask = record.get("withheld")
    well = mask is not None and mask.shape == (task.labels, task.groups) and mask.dtype == torch.bool
    require(well, f"its {what} does not mark which cells are withheld")
    return Disclosed.from_record(record)


def check_counts(answer: Answer, agreed: Counts, measure: Measure, training: Training) -> None:
    """Raise `UserError` if an answer contradicts the agreed rows of its site."""
    true = answer.rows == agreed.rows
    if answer.reply.tally is not None:
        found, rows = answer.reply.tally.count, agreed.told["train"]
        some_withheld = answer.withheld is not None and bool(answer.withheld.any())
        if measure in (Measure.RECEIVED, Measure.TRAINED):
            true = true and torch.equal(found, rows)
        elif measure is Measure.LAST_BATCH:
            true = true and bool((found <= rows).all()) and bool(found.any() or some_withheld)
        elif training.local_steps is None:
            true = true and torch.equal(found, rows * training.local_epochs)
        else:
            true = true and not bool(found[rows == 0].any()) and bool(found.any() or some_withheld)
    require(true, "it counts other rows than it agreed to train on")
    check_scores(answer.validation, agreed, "validation")


def check_scores(scores: Disclosed, agreed: Counts, part: str) -> None:
    """Raise `UserError` if the scores of a held-out part contradict the agreed rows, or are not finite."""
    same = torch.equal(scores.tally.count, agreed.told[part]) and torch.equal(scores.withheld, agreed.withheld[part])
    require(same, f"its Tally counts other {part} rows than it agreed to have")
    require(bool(scores.tally.loss.isfinite().all()), f"its losses on the {part} rows are not finite")


def outliers(sent: Snapshot, replies: Mapping[int, ClientUpdate], times: float) -> dict[int, str]:
    """The clients with some part of the update more than `times` the median of the others', and the reason."""
    return {} if len(replies) < FEWEST_COMPARED else _unusual(_sizes(sent, replies), times)


def outliers_by_loss(told: Mapping[str, Mapping[str, Disclosed]], times: float) -> dict[str, str]:
    """The sites whose mean loss on a held-out part is as much larger than the others', and the reason."""
    parts = next(iter(told.values()), {})
    losses = {part: {site: scores[part].tally for site, scores in told.items()} for part in parts}
    return _unusual({f"mean loss on the {part} rows": _mean_losses(one) for part, one in losses.items()}, times)


def _unusual(sizes: Mapping[str, _Sizes], times: float) -> dict[Any, str]:
    """The clients or sites with a size more than `times` the median of the others', if there are enough to compare."""
    found: dict[Any, str] = {}
    for what, compared in sizes.items():
        for one, size in compared.of.items() if len(compared.of) >= FEWEST_COMPARED else ():
            usual = max(compared.usual, median(other for who, other in compared.of.items() if who != one))
            if usual > 0 and size > times * usual:
                than = "what is usual among the others" if compared.usual else "the median of the others'"
                found.setdefault(one, f"its {what} {compared.verb} {size:.3g}, {size / usual:.3g} times {than}")
    return found


def _sizes(sent: Snapshot, replies: Mapping[int, ClientUpdate]) -> dict[str, _Sizes]:
    """How large each part of each answer is: the update, the uploads, the step of the state, the mean losses."""
    sizes = {"update": _Sizes({client: _distance(sent.model, reply.model) for client, reply in replies.items()})}
    for name in next(iter(replies.values())).uploads:
        sizes[f"upload {name}"] = _Sizes(
            {
                client: _distance(dict.fromkeys(reply.uploads[name], torch.zeros(())), reply.uploads[name])
                for client, reply in replies.items()
            }
        )
    told = {client: reply.values for client, reply in replies.items() if reply.values is not None}
    if told:
        sizes["list of objectives"] = _Sizes({client: float(values.norm()) for client, values in told.items()})
    if all(reply.state is not None for reply in replies.values()) and sent.state:
        state = {name: value for name, value in sent.state.items() if name != LEDGER}
        steps = {client: _distance(state, reply.state or {}) for client, reply in replies.items()}
        sizes["step of the duals"] = _Sizes(steps, usual=_USUAL)
    means = {client: reply.loss for client, reply in replies.items() if reply.loss is not None}
    sizes["mean training loss"] = _Sizes(means, "is", _USUAL)
    tallies = {client: reply.tally for client, reply in replies.items() if reply.tally is not None}
    held_out = {client: reply.validation for client, reply in replies.items() if reply.validation is not None}
    return sizes | {"mean loss": _mean_losses(tallies), "mean loss on the validation rows": _mean_losses(held_out)}


def _mean_losses(tallies: Mapping[_Site, Tally]) -> _Sizes:
    means = {one: float(tally.loss.sum() / tally.count.sum().clamp(min=1)) for one, tally in tallies.items()}
    return _Sizes(means, "is", _USUAL)


def _distance(sent: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of an update over all floating-point entries."""
    squares = [
        (model[name].double() - value.double()).square().sum()
        for name, value in sent.items()
        if value.is_floating_point()
    ]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0


def _check_tally(record: Mapping[str, Tensor], task: Task, what: str) -> None:
    confusion, loss = record.get("confusion"), record.get("loss")
    require(confusion is not None and loss is not None, f"its {what} is missing")
    assert confusion is not None
    assert loss is not None
    like = Tally.zeros((task.labels, task.groups))
    for value, right in ((confusion, like.confusion), (loss, like.loss)):
        require(value.shape == right.shape and value.dtype == right.dtype, f"its {what} has the wrong shape or type")
    require(not bool((confusion < 0).any()), f"its {what} has counts below 0")
    require(bool((confusion <= MOST_ROWS).all()), f"its {what} has counts that no site can have")
    _check_losses(Tally(confusion, loss), what)


def _check_losses(tally: Tally, what: str) -> None:
    """Check bounds of a sum of cross-entropies: at least ln 2 for each wrong prediction, at most the largest float32
    for each row. Losses that are not finite are judged with the rest of the answer."""
    right = tally.confusion.diagonal(dim1=-3, dim2=-2).transpose(-1, -2)
    least = math.log(2) * (tally.count - right).double() * (1 - _ROUNDING)
    known = tally.loss.isfinite()
    require(bool((tally.loss >= least)[known].all()), f"its {what} has losses smaller than its errors allow")
    most = tally.count.double() * _LARGEST_LOSS
    require(bool((tally.loss <= most)[known].all()), f"its {what} has losses larger than its rows can have")


def _size(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "()"

"""Which answers count, and in which words the others are put aside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ffalm.algorithms import Measure
from ffalm.data.types import Task
from ffalm.engines import Snapshot, Training
from ffalm.engines.remote.message import Message
from ffalm.engines.remote.round_messages import update_message
from ffalm.engines.server import ClientUpdate
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.federate.coordinator.update_validation import (
    Answer,
    Counts,
    check_counts,
    check_scores,
    outliers,
    read_answer,
)
from ffalm.federate.disclosure import Disclosed

TASK = Task("t")
MODEL = {"weight": torch.zeros(2, 3), "seen": torch.tensor(4)}
SENT = Snapshot(0, MODEL, {})
ROWS = torch.tensor([[4, 5], [6, 7]])
HELD = torch.tensor([[2, 3], [0, 2]])
SMALL = torch.tensor([[False, False], [True, False]])
COUNTS = Counts(ROWS, {"validation": HELD, "test": HELD}, {"validation": SMALL, "test": SMALL})


def tally(counts: Tensor) -> Tally:
    return Tally(torch.stack([counts, torch.zeros_like(counts)]), counts.double())


def message(model: dict[str, Tensor] = MODEL, counts: Tensor = ROWS, held: Tensor = HELD, loss: float = 0.5) -> Message:
    reply = update_message(ClientUpdate(model, tally(counts), loss, 0.0))
    return replace(reply, tensors={**reply.tensors, "validation": Disclosed(tally(held), SMALL).record()})


def well(**changes: Any) -> Answer:
    return read_answer(message(**changes), SENT, TASK)


def test_a_good_answer_is_read_whole() -> None:
    answer = well()
    assert answer.finite and answer.reply.loss == 0.5
    assert torch.equal(answer.reply.tally.count, ROWS) and torch.equal(answer.validation.tally.count, HELD)
    check_counts(answer, COUNTS, Measure.TRAINED, Training())


def without(record: str, entry: str | None = None) -> Message:
    whole = message()
    tensors = {name: dict(values) for name, values in whole.tensors.items()}
    if entry is None:
        del tensors[record]
    else:
        del tensors[record][entry]
    return replace(whole, tensors=tensors)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (without("model"), "lacks the record 'model'"),
        (without("validation"), "lacks the record 'validation'"),
        (without("model", "seen"), "lacks the entry 'seen'"),
        (without("tally", "loss"), "its Tally is missing"),
        (without("validation", "withheld"), "does not say which cells are withheld"),
        (replace(message(), facts={"loss": 1.0}), "lacks the number 'negative'"),
        (replace(message(), facts={"loss": "much", "negative": 0.0}), "lacks the number 'loss'"),
        (message({**MODEL, "more": torch.zeros(1)}), "unknown entry 'more'"),
        (message({**MODEL, "weight": torch.zeros(3, 2)}), "'weight' has the shape 3x2 instead of 2x3"),
        (message({**MODEL, "weight": torch.zeros(2, 3).half()}), "of type torch.float16 instead of torch.float32"),
        (message({**MODEL, "seen": torch.zeros(1).long()}), "shape 1 instead of ()"),
        (message(counts=torch.ones(2, 3).long()), "wrong shape or type"),
        (message(counts=-ROWS), "counts below 0"),
        (message(held=torch.ones(3, 2).long()), "wrong shape or type"),
    ],
)
def test_a_malformed_answer_is_named(given: Message, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_answer(given, SENT, TASK)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_any_number_that_is_not_finite_is_found(bad: float) -> None:
    assert not well(model={**MODEL, "weight": MODEL["weight"] + bad}).finite
    assert not well(loss=bad).finite


@pytest.mark.parametrize(
    ("measure", "training", "counts", "true"),
    [
        (Measure.RECEIVED, Training(), ROWS, True),
        (Measure.TRAINED, Training(), ROWS + 1, False),
        (Measure.NOTHING, Training(), 0 * ROWS, True),
        (Measure.NOTHING, Training(), ROWS, False),
        (Measure.EPOCH, Training(local_epochs=3), 3 * ROWS, True),
        (Measure.EPOCH, Training(local_epochs=3), ROWS, False),
        (Measure.EPOCH, Training(local_steps=5), 2 * ROWS, True),
        (Measure.LAST_BATCH, Training(), ROWS - 4, True),
        (Measure.LAST_BATCH, Training(), ROWS + 1, False),
        (Measure.LAST_BATCH, Training(), 0 * ROWS, False),
    ],
)
def test_a_tally_must_count_the_rows_that_were_agreed(
    measure: Measure, training: Training, counts: Tensor, true: bool
) -> None:
    answer = well(counts=counts)
    if true:
        check_counts(answer, COUNTS, measure, training)
    else:
        with pytest.raises(UserError, match="other rows than it agreed to train on"):
            check_counts(answer, COUNTS, measure, training)


def test_scores_must_count_the_held_out_rows_that_were_agreed() -> None:
    with pytest.raises(UserError, match="other validation rows"):
        check_counts(well(held=HELD + 1), COUNTS, Measure.TRAINED, Training())
    with pytest.raises(UserError, match="other test rows"):
        check_scores(Disclosed(tally(HELD), ~SMALL), COUNTS, "test")
    lost = Tally(tally(HELD).confusion, tally(HELD).loss * torch.nan)
    with pytest.raises(UserError, match="not finite"):
        check_scores(Disclosed(lost, SMALL), COUNTS, "test")


def reply(size: float) -> ClientUpdate:
    return ClientUpdate({"weight": torch.full((2, 3), size), "seen": torch.tensor(10**9)}, tally(ROWS), 0.0, 0.0)


def test_an_update_far_outside_the_others_norm_is_found_and_counters_do_not_matter() -> None:
    found = outliers(SENT, {0: reply(1.0), 1: reply(1.2), 2: reply(-25.0)}, 10.0)
    assert list(found) == [2] and found[2].startswith("its update has the norm 61.2, 22.7 times the median")
    assert outliers(SENT, {0: reply(1.0), 1: reply(1.2), 2: reply(9.0)}, 10.0) == {}


def test_two_answers_do_not_say_which_of_them_is_usual_and_standing_still_makes_nobody_an_outlier() -> None:
    assert outliers(SENT, {0: reply(1.0), 1: reply(1e6)}, 10.0) == {}
    assert outliers(SENT, {0: reply(0.0), 1: reply(0.0), 2: reply(1.0)}, 10.0) == {}


def test_counts_that_cannot_be_are_refused() -> None:
    record = COUNTS.record()
    assert torch.equal(Counts.of(record, TASK).train, ROWS)
    for change in ({"train": -ROWS}, {"test": ROWS.double()}, {"validation.withheld": SMALL[:1]}):
        with pytest.raises(UserError, match="missing or malformed"):
            Counts.of({**record, **change}, TASK)
    with pytest.raises(UserError, match="no training rows"):
        Counts.of({**record, "train": 0 * ROWS}, TASK)

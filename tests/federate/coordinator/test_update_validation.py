"""Which answers count, and in which words the others are put aside."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ffalm
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
    outliers_by_loss,
    read_answer,
)
from ffalm.federate.disclosure import Disclosed

TASK = Task("t")
MODEL = {"weight": torch.zeros(2, 3), "seen": torch.tensor(4)}
SENT = Snapshot(0, MODEL, {})
ROWS = torch.tensor([[4, 5], [6, 7]])
HELD = torch.tensor([[2, 3], [0, 2]])
SMALL = torch.tensor([[False, False], [True, False]])
NONE = torch.zeros(2, 2, dtype=torch.bool)
COUNTS = Counts(
    22, {"train": ROWS, "validation": HELD, "test": HELD}, {"train": NONE, "validation": SMALL, "test": SMALL}
)
FAIRFED, FEDAVG, FFALM = ffalm.FairFed(), ffalm.FedAvg(), ffalm.FFALM()


def tally(counts: Tensor) -> Tally:
    return Tally(torch.stack([counts, torch.zeros_like(counts)]), counts.double())


def message(
    model: dict[str, Tensor] = MODEL,
    counts: Tensor | None = ROWS,
    held: Tensor = HELD,
    loss: float | None = 0.5,
    hidden: Tensor = NONE,
    state: dict[str, Tensor] | None = None,
) -> Message:
    found = None if counts is None else tally(counts)
    reply = update_message(ClientUpdate(model, found, loss, None if loss is None else 0.0, state=state))
    measured = {} if found is None else {"tally": Disclosed(found, hidden).record()}
    validation = {"validation": Disclosed(tally(held), SMALL).record()}
    return Message({**reply.tensors, **measured, **validation}, {**reply.facts, "rows": 22})


def well(**changes: Any) -> Answer:
    return read_answer(message(**changes), SENT, TASK, FAIRFED)


def test_a_good_answer_is_read_whole() -> None:
    answer = well()
    assert answer.finite and answer.reply.loss == 0.5
    assert answer.reply.tally is not None
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
        (without("validation", "withheld"), "does not mark which cells are withheld"),
        (without("tally", "withheld"), "does not mark which cells are withheld"),
        (replace(message(), facts={"loss": 1.0, "rows": 22}), "lacks the number 'negative'"),
        (replace(message(), facts={"loss": "much", "negative": 0.0, "rows": 22}), "lacks the number 'loss'"),
        (replace(message(), facts={"loss": 1.0, "negative": 0.0}), "lacks the number 'rows'"),
        (replace(message(), facts={"loss": 1.0, "negative": 0.0, "rows": math.inf}), "not a whole number"),
        (message(state={}), "has the record 'state', which was not asked for"),
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
        read_answer(given, SENT, TASK, FAIRFED)
    assert sentence in str(caught.value)


def test_an_algorithm_that_measures_nothing_is_sent_no_tally() -> None:
    read_answer(message(counts=None), SENT, TASK, FEDAVG)
    with pytest.raises(UserError, match="'tally', which was not asked for"):
        read_answer(message(), SENT, TASK, FEDAVG)


def test_the_values_of_objectives_are_told_where_they_are_asked_for_and_nowhere_else() -> None:
    values = torch.tensor([0.7, 0.1], dtype=torch.float64)
    vector = {"weight": torch.zeros(2, 3)}
    asking = ffalm.FCFL()

    def given(values: Tensor | None) -> Message:
        whole = message(counts=None)
        update = ClientUpdate(MODEL, None, 0.5, 0.0, dict.fromkeys(asking.uploads, vector), values=values)
        return replace(whole, tensors={**whole.tensors, **update_message(update).tensors})

    assert read_answer(given(values), SENT, TASK, asking, ["weight"]).finite
    assert not read_answer(given(values * torch.nan), SENT, TASK, asking, ["weight"]).finite
    for wrong in (None, values[:1], values.float()):
        with pytest.raises(UserError, match="its answer's values are not 2"):
            read_answer(given(wrong), SENT, TASK, asking, ["weight"])
    with pytest.raises(UserError, match="its answer's values are not none"):
        read_answer(given(values), SENT, TASK, FEDAVG)
    replies = {
        client: ClientUpdate(MODEL, None, 0.5, 0.0, values=values * (1 + 99 * (client == 2))) for client in range(4)
    }
    assert list(outliers(SENT, replies, 10.0)) == [2]


def test_a_stepped_state_must_have_the_form_of_the_state_that_was_sent() -> None:
    state = FFALM.start(TASK, ROWS.unsqueeze(0))
    sent = replace(SENT, state=state)
    answer = read_answer(message(counts=None, state=state), sent, TASK, FFALM)
    check_counts(answer, COUNTS, FFALM.measure, Training())
    assert answer.finite and answer.reply.state == state
    lost = {**state, "dual": state["dual"] * torch.nan}
    assert not read_answer(message(counts=None, state=lost), sent, TASK, FFALM).finite
    for wrong in ({}, {**state, "dual": torch.zeros(2).double()}, {**state, "dual": torch.tensor(0)}):
        with pytest.raises(UserError, match="the form of the state"):
            read_answer(message(counts=None, state=wrong), sent, TASK, FFALM)
    with pytest.raises(UserError, match="lacks the record 'state'"):
        read_answer(message(counts=None), sent, TASK, FFALM)
    with pytest.raises(UserError, match="other rows than it agreed to train on"):
        check_counts(answer, replace(COUNTS, rows=23), FFALM.measure, Training())


def test_the_mean_loss_may_be_withheld() -> None:
    answer = well(loss=None)
    assert answer.finite and answer.reply.loss is None and answer.reply.negative is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_any_number_that_is_not_finite_is_found(bad: float) -> None:
    assert not well(model={**MODEL, "weight": MODEL["weight"] + bad}).finite
    assert not well(loss=bad).finite


@pytest.mark.parametrize(
    ("measure", "training", "counts", "true"),
    [
        (Measure.RECEIVED, Training(), ROWS, True),
        (Measure.TRAINED, Training(), ROWS + 1, False),
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


def test_the_tally_of_a_batch_may_be_withheld_whole() -> None:
    check_counts(well(counts=0 * ROWS, hidden=~NONE), COUNTS, Measure.LAST_BATCH, Training())


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


def test_an_upload_a_dual_or_a_loss_far_outside_the_others_is_found_too() -> None:
    sent = replace(SENT, state=FFALM.start(TASK, ROWS.unsqueeze(0)))

    def one(upload: float, dual: float, loss: float = 1.0) -> ClientUpdate:
        state = {**sent.state, "dual": sent.state["dual"] + dual}
        told = replace(tally(ROWS), loss=loss * ROWS.double())
        uploads = {"control": {"weight": torch.full((2, 3), upload)}}
        return replace(reply(1.0), uploads=uploads, state=state, tally=told)

    usual = {0: one(1.0, 0.1), 1: one(1.2, -0.1)}
    assert "its upload control has the norm" in outliers(sent, {**usual, 2: one(99.0, 0.1)}, 10.0)[2]
    assert "its step of the duals has the norm" in outliers(sent, {**usual, 2: one(1.0, 99.0)}, 10.0)[2]
    assert "its mean loss is 1e+06" in outliers(sent, {**usual, 2: one(1.0, 0.1, 1e6)}, 10.0)[2]
    assert outliers(sent, {**usual, 2: one(2.0, 0.3, 3.0)}, 10.0) == {}


def test_any_mean_loss_far_outside_the_others_is_found() -> None:
    def one(training: float | None, held_out: float = 1.0) -> ClientUpdate:
        return replace(reply(1.0), loss=training, validation=replace(tally(HELD), loss=held_out * HELD.double()))

    usual = {0: one(0.5), 1: one(0.7), 2: one(None)}
    assert outliers(SENT, {**usual, 3: one(1e308)}, 10.0)[3].startswith("its mean training loss is 1e+308")
    assert outliers(SENT, {**usual, 3: one(0.5, 99.0)}, 10.0)[3].startswith(
        "its mean loss on the validation rows is 99"
    )
    assert outliers(SENT, {**usual, 3: one(9.0, 9.0)}, 10.0) == {}
    assert outliers(SENT, {0: one(0.5), 1: one(1e30), 2: one(None)}, 10.0) == {}, "two do not say what is usual"

    told = {site: {"test": Disclosed(tally(HELD), NONE)} for site in ("north", "south")}
    loud = {"test": Disclosed(replace(tally(HELD), loss=1e6 * HELD.double()), NONE)}
    assert outliers_by_loss({**told, "west": loud}, 10.0) == {
        "west": "its mean loss on the test rows is 1e+06, 1e+06 times what is usual among the others"
    }
    assert outliers_by_loss({**told, "west": told["north"]}, 10.0) == outliers_by_loss({}, 10.0) == {}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("loss", -1e-9, "its mean training loss cannot be -1e-09"),
        ("loss", 1e39, "its mean training loss cannot be 1e+39"),
        ("negative", -0.1, "its share of steps that raise a loss cannot be -0.1"),
        ("negative", 1.1, "its share of steps that raise a loss cannot be 1.1"),
    ],
)
def test_facts_about_training_that_cannot_be_are_refused(name: str, value: float, sentence: str) -> None:
    given = message()
    with pytest.raises(UserError, match=re.escape(sentence)):
        read_answer(replace(given, facts={**given.facts, name: value}), SENT, TASK, FAIRFED)


@pytest.mark.parametrize("part", ["tally", "validation"])
def test_losses_larger_than_rows_can_have_are_refused(part: str) -> None:
    given = message()
    loss = given.tensors[part]["loss"]
    for wrong in (loss * 1e39, loss + (loss == 0)):  # the last: of a cell without rows
        changed = {**given.tensors, part: {**given.tensors[part], "loss": wrong}}
        if not torch.equal(wrong, loss):
            with pytest.raises(UserError, match="losses larger than its rows can have"):
                read_answer(replace(given, tensors=changed), SENT, TASK, FAIRFED)


@pytest.mark.parametrize("losses", [-1.0, 0.0, 0.5])
def test_losses_smaller_than_the_errors_allow_are_refused(losses: float) -> None:
    given = message()
    record = {**given.tensors["tally"], "loss": losses * ROWS.double()}
    with pytest.raises(UserError, match="losses smaller than its errors allow"):
        read_answer(replace(given, tensors={**given.tensors, "tally": record}), SENT, TASK, FAIRFED)


def test_counts_that_would_wrap_around_are_refused() -> None:
    with pytest.raises(UserError, match="counts that no site can have"):
        well(counts=ROWS + 2**62)


def test_counts_that_cannot_be_are_refused() -> None:
    record = COUNTS.record()
    assert torch.equal(Counts.of(record, TASK).training(), ROWS)
    for change in ({"train": -ROWS}, {"rows": ROWS}, {"test": ROWS.double()}, {"validation.withheld": SMALL[:1]}):
        with pytest.raises(UserError, match="missing or malformed"):
            Counts.of({**record, **change}, TASK)
    with pytest.raises(UserError, match="no training rows"):
        Counts.of({**record, "rows": torch.tensor(0)}, TASK)
    for rows in (21, 23):
        with pytest.raises(UserError, match="do not add up"):
            Counts.of({**record, "rows": torch.tensor(rows)}, TASK)


def test_rows_of_withheld_cells_are_spread_over_them_so_that_the_total_is_exact() -> None:
    hidden = torch.tensor([[True, False], [True, True]])
    told = {**COUNTS.told, "train": torch.tensor([[0, 50], [0, 0]])}
    counts = Counts(61, told, {**COUNTS.withheld, "train": hidden})
    assert counts.training().tolist() == [[3, 50], [4, 4]]
    assert torch.equal(Counts.of(counts.record(), TASK).training(), counts.training())

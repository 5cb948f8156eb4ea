"""Mistakes in algorithms of one's own: refused with the hook and the remedy, or computed one client after the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.test_simulate import FAST, federation
from torch import Tensor

import ffalm
from ffalm.algorithms import ModelVector, Vectors
from ffalm.engines.objective_trial import why_not_together
from ffalm.errors import UserError


def algorithm(**body: Any) -> ffalm.Algorithm:
    cls: type[ffalm.Algorithm] = type("Own", (ffalm.Algorithm,), {"name": "own", "title": "Own", **body})
    return dataclass(frozen=True)(cls)()


def refusal(engine: str = "loop", **body: Any) -> str:
    with pytest.raises(UserError) as refused:
        ffalm.simulate(algorithm(**body), federation(), **{**FAST, "engine": engine, "rounds": 1, "model": "linear"})
    return str(refused.value)


def mean_over_clients(_: Any, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
    return batch.losses.mean()


def mean_with_padding(_: Any, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
    return batch.losses.mean(-1)


def branching(_: Any, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
    mean = ffalm.fairness.masked_mean(batch.losses, batch.mask)
    return mean if mean > 0 else -mean


def worst_group(_: Any, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
    means, present = ffalm.fairness.group_means(batch.losses, batch.groups, batch.mask, batch.task.compared)
    return means.masked_fill(~present, float("-inf")).amax(-1)


def worst_rows(_: Any, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
    """Fails on fewer than five rows, and takes padding for rows."""
    return batch.losses.topk(5).values.mean(-1)


def drawn(_: Any, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
    kept = torch.rand_like(batch.losses) < 0.5
    return ffalm.fairness.masked_mean(batch.losses, batch.mask & kept)


def assert_computed_one_by_one(**body: Any) -> None:
    own = algorithm(**body)
    settings: dict[str, Any] = {"rounds": 2, "model": "linear", "device": "cpu", "batch_size": None, "local_epochs": 4}
    by_itself = ffalm.simulate(own, federation(), engine="loop", **settings)
    assert ffalm.simulate(own, federation(), **settings).state_dict["0.weight"].equal(by_itself.state_dict["0.weight"])
    assert "engine='loop'" in refusal("stacked", **body)


@pytest.mark.parametrize("objective", [mean_over_clients, mean_with_padding, branching, worst_rows, drawn])
def test_an_objective_for_one_client_at_a_time_is_not_computed_for_many_at_once(objective: Any) -> None:
    """On a tensor of many clients it would give other numbers, and nobody would notice."""
    assert_computed_one_by_one(objective=objective)


def clipped(_: Any, weights: ModelVector, sent: ffalm.Sent, own: Vectors, steps: Tensor, lr: float) -> Any:
    change = sent.model - weights
    norm = torch.stack([(value * value).sum() for value in change.tensors]).sum()
    return {"change": change * (0.01 / norm).clamp(max=1)}, {}


def halved(_: Any, weights: ModelVector, sent: ffalm.Sent, own: Vectors, steps: Tensor, lr: float) -> Any:
    change = sent.model - weights
    return {"change": 0.5 * change if steps > 3 else change}, {}


def far_away(_: Any, weights: ModelVector, sent: ffalm.Sent, own: Vectors) -> ModelVector | None:
    change = weights - sent.model
    return change if sum((value * value).sum() for value in change.tensors) > 0.01 else None


@pytest.mark.parametrize(
    "body",
    [
        {"client_vectors": ("change",), "finish": clipped, "drift": lambda _, weights, sent, own: own["change"]},
        {"client_vectors": ("change",), "finish": halved, "drift": lambda _, weights, sent, own: own["change"]},
        {"drift": far_away},
    ],
)
def test_vectors_of_one_client_at_a_time_are_not_computed_for_many_at_once(body: dict[str, Any]) -> None:
    """A norm over all clients, or a choice made for all of them, would be another algorithm."""
    assert_computed_one_by_one(**body)


def test_a_trial_leaves_the_callers_generator_as_it_is() -> None:
    before = torch.get_rng_state()
    why_not_together(algorithm(objective=drawn), federation())
    assert torch.get_rng_state().equal(before)


def test_a_sound_objective_is_computed_for_many_at_once() -> None:
    fed = federation()
    assert why_not_together(algorithm(objective=worst_group), fed) is None
    by_logits = algorithm(
        objective=lambda _, batch, state: ffalm.fairness.masked_mean(1 - batch.favourable_probability(), batch.mask),
        by_outputs=lambda _, task: True,
    )
    assert why_not_together(by_logits, fed) is None
    with_vectors = algorithm(
        client_vectors=("change",),
        broadcasts=("pull",),
        start=lambda _, task, counts: {"pull": torch.tensor(0.5, dtype=torch.float64)},
        drift=lambda _, weights, sent, own: sent.state["pull"] * (weights - sent.model) - own["change"],
        finish=lambda _, weights, sent, own, steps, lr: ({"change": (sent.model - weights) / (steps * lr)}, {}),
    )
    assert why_not_together(with_vectors, fed) is None


def test_ours_are_not_tried_and_no_rows_are_counted_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting the rows of thousands of clients takes longer than a round of a small model."""
    fed = federation()
    monkeypatch.delattr(ffalm.Federation, "counts")
    assert why_not_together(ffalm.FFALM(), fed) is None


def test_a_probability_of_more_than_two_labels_says_what_it_needs() -> None:
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(30, 4)), np.arange(30) % 3, draws.integers(0, 2, 30)
    own = algorithm(objective=lambda _, batch, state: batch.favourable_probability().mean(-1))
    with pytest.raises(UserError, match="one of 3 labels needs the model's outputs: let `by_outputs`"):
        ffalm.simulate(own, ffalm.Federation.from_arrays([rows]), rounds=1, device="cpu")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("objective", "told"),
    [
        (lambda _, batch, state: batch.losses, "one number per client"),
        (lambda _, batch, state: batch.losses.mean(-1, keepdim=True), "one number per client"),
        (lambda _, batch, state: batch.losses.detach().sum(-1), "computed from the losses"),
    ],
)
def test_an_objective_that_is_no_function_to_minimise_is_refused(objective: Any, told: str, engine: str) -> None:
    assert told in refusal(engine, objective=objective)


def test_a_state_named_as_something_else_in_the_record_is_refused() -> None:
    """It would stand in the place of the accuracy in the history, and in that of the round in the data frame."""
    for name in ("accuracy", "weights", "round", "dpd"):
        entry = {name: torch.zeros((), dtype=torch.float64)}
        assert repr(name) in refusal(start=lambda _, task, counts, entry=entry: entry)


def test_weights_are_checked_under_privacy_too() -> None:
    own = algorithm(update=lambda _, state, report: (torch.full((3,), 0.1), state))
    with pytest.raises(UserError, match=r"must sum to 1; their sum is 0\.3"):
        ffalm.simulate(own, federation(), privacy=ffalm.Privacy(noise=1.0), rounds=1, **FAST)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"update": lambda _, state, report: None}, "`update` of Own must return weights and a state; got None"),
        ({"update": lambda _, state, report: (report.shares(), None)}, "`update` of Own returns must be a dict of"),
        (
            {"measure": ffalm.Measure.TRAINED, "separable": True, "dual_step": lambda _, state, report: None},
            "`dual_step` of Own returns must be a dict of tensors; got None",
        ),
    ],
)
def test_what_a_hook_returns_is_checked_under_privacy_before_it_is_used(body: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        ffalm.simulate(algorithm(**body), federation(), privacy=ffalm.Privacy(noise=1.0), rounds=1, **FAST)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"start": lambda _, task, counts: {"q": 1.0}}, "dict of tensors; got 'q' of type float"),
        ({"start": lambda _, task, counts: None}, "`start` of Own returns must be a dict"),
        ({"update": lambda _, state, report: None}, "`update` of Own must return weights and a state"),
        ({"update": lambda _, state, report: (torch.ones(2) / 2, state)}, "one weight per client, of shape (3,)"),
        ({"update": lambda _, state, report: (torch.ones(3), state)}, "sum to 1; their sum is 3"),
        ({"client_vectors": "velocity"}, "`client_vectors` of Own must be a tuple of names; got 'velocity'"),
        ({"measure": "trained"}, "`measure` of Own must be one of ffalm.Measure; got 'trained'"),
    ],
)
def test_what_a_hook_must_give_is_told(body: dict[str, Any], told: str) -> None:
    assert told in refusal(**body)


def kept(own: Any, uploads: Any) -> dict[str, Any]:
    """Returned by `finish`, with None for a vector."""

    def finish(_: Any, weights: ModelVector, *rest: Any) -> Any:
        return tuple(
            {name: weights if value is None else value for name, value in part.items()} for part in (own, uploads)
        )

    return {"client_vectors": ("slope",), "finish": finish}


def stepped(given: Any) -> dict[str, Any]:
    return {"server_vectors": ("velocity",), "server_step": lambda _, model, *rest: given(model)}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"start": lambda _, task, counts: {"q": 1.0}}, "dict of tensors; got 'q' of type float"),
        ({"own_state": lambda _, task, counts: {"q": 1.0}}, "`own_state` of Own returns must be a dict of tensors"),
        ({"own_state": lambda _, task, counts: None}, "`own_state` of Own returns must be a dict of tensors; got None"),
        ({"drift": lambda _, weights, sent, own: 0.5}, "`drift` of Own must return a ModelVector or None; got float"),
        ({"client_vectors": ("slope",), "finish": lambda _, *given: None}, "`finish` of Own must return two dicts"),
        (kept({"slope": 1.0}, {}), "a dict of ModelVectors for `client_vectors`; got {'slope': float}"),
        (kept({"other": None}, {}), "returns the vectors 'other', which `client_vectors` does not name"),
        (kept({}, {"more": None}), "returns the vectors 'more', which `uploads` does not name"),
        ({**kept({}, {}), "uploads": ("more",)}, "does not return 'more', which `uploads` names"),
        ({"server_vectors": ("velocity",), "start_vectors": lambda _, model: model.zeros()}, "`start_vectors` of Own"),
        (stepped(lambda model: model), "`server_step` of Own must return the next model, a ModelVector, and a dict"),
        (stepped(lambda model: (model, {})), "does not return 'velocity', which `server_vectors` names"),
        (stepped(lambda model: (model.map(torch.sum), {})), "must return a model of the shapes [("),
        (
            {
                "uploads": ("more",),
                "finish": lambda _, weights, sent, own, steps, lr: ({}, {"more": weights}),
                "weigh_uploads": lambda _, weights, state: None,
            },
            "`weigh_uploads` of Own must return a dict",
        ),
    ],
)
def test_what_a_hook_must_give_is_told_by_every_engine(body: dict[str, Any], told: str, engine: str) -> None:
    """Otherwise the error is raised in our code and shown as a bug of ours."""
    assert told in refusal(engine, **body)

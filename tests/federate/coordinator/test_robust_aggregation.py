"""Aggregation that a few lying sites cannot steer, worked out by hand and in whole federations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.federate.makers import NAMES, config, with_model, world
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Message
from ffalm.engines.server import ClientUpdate, average
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.coordinator.robust_aggregation import Rule, capped, nearest, robust, trimmed_mean

SENT = Snapshot(0, {"w": torch.zeros(2), "seen": torch.tensor(1)}, {"dual": torch.tensor(1.0, dtype=torch.float64)})


def update(first: float, second: float, dual: float = 1.0) -> ClientUpdate:
    model = {"w": torch.tensor([first, second]), "seen": torch.tensor(2)}
    state = {"dual": torch.tensor(dual, dtype=torch.float64)}
    uploads = {"control": {"w": torch.tensor([first, first])}}
    return ClientUpdate(model, None, 0.0, 0.0, uploads, state=state)


HONEST = {0: update(1.0, 0.0, 1.2), 1: update(1.2, 0.2, 1.1), 2: update(0.8, 0.1, 0.9), 3: update(1.1, -0.1, 1.0)}
ROWS = dict.fromkeys(range(5), 10)


def joined(rule: Rule, updates: dict[int, ClientUpdate], liars: int = 1) -> tuple[Tensor, float, Tensor]:
    """The model, the dual and the upload that the weighted mean of what the rule gives comes to."""
    done = list(robust(rule, liars, SENT, updates, ROWS).values())
    shares = torch.full((len(done),), 1 / len(done), dtype=torch.float64)
    dual = sum(float(one.state["dual"]) for one in done if one.state is not None) / len(done)
    model = average([one.model for one in done], shares)
    assert int(model["seen"]) == 2
    return model["w"], dual, average([one.uploads["control"] for one in done], shares)["w"]


def test_the_mean_changes_nothing() -> None:
    assert robust("mean", 1, SENT, HONEST, ROWS) == HONEST


def test_rules_by_hand() -> None:
    lying = {**HONEST, 4: update(-90.0, 0.0, 1e6)}
    weights, dual, upload = joined("median", lying)
    assert weights.tolist() == pytest.approx([1.0, 0.0]) and dual == pytest.approx(1.1)
    assert upload.tolist() == pytest.approx([1.0, 1.0])
    weights, dual, _ = joined("trimmed", lying)
    assert weights.tolist() == pytest.approx([2.9 / 3, 0.1 / 3]) and dual == pytest.approx(3.3 / 3)
    weights, dual, _ = joined("krum", lying)
    assert weights.tolist() == pytest.approx([4.1 / 4, 0.05]) and dual == pytest.approx(4.2 / 4)
    weights, dual, _ = joined("clip", lying)
    size, long = (float(torch.tensor(change).norm()) for change in ([1.1, -0.1], [1.2, 0.2]))  # size is the median
    assert float(weights[0]) == pytest.approx((1.0 + 1.2 * size / long + 0.8 + 1.1 - size) / 5)
    assert dual == pytest.approx(1 + (0.1 + 0.1 - 0.1 + 0.0 + 0.1) / 5)


def test_a_trimmed_mean_weighs_what_it_keeps() -> None:
    values = torch.tensor([[1.0], [2.0], [3.0], [100.0]])
    shares = torch.tensor([5.0, 1.0, 3.0, 50.0], dtype=torch.float64)
    assert trimmed_mean(values, shares, 1).tolist() == [(1 * 2 + 3 * 3) / 4]
    assert trimmed_mean(values[:3], shares[:3], 1).tolist() == [2.0]


def test_krum_leaves_the_farthest_out() -> None:
    assert nearest(SENT, {**HONEST, 4: update(-9.0, 0.0)}, 1) == [0, 1, 2, 3]
    assert nearest(SENT, {**HONEST, 4: update(5.0, 5.0), 5: update(-9.0, 0.0)}, 2) == [0, 1, 2, 3]


def test_krum_looks_at_uploads_too_where_no_model_moves() -> None:
    """Sites of FCFL send gradients beside the model as they got it."""

    def gradient(first: float, second: float) -> ClientUpdate:
        uploads = {"loss": {"w": torch.tensor([first, second])}}
        return ClientUpdate(dict(SENT.model), None, 0.0, 0.0, uploads)

    honest = [gradient(1.0, 0.0), gradient(1.2, 0.2), gradient(0.8, 0.1), gradient(1.1, -0.1)]
    assert nearest(SENT, dict(enumerate([gradient(-4.0, 0.0), *honest])), 1) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([100, 100, 10**8], 0.5, [100, 100, 200]),
        ([100, 100, 100, 10**8], 0.4, [100, 100, 100, 200]),
        ([10, 10**8, 10**8, 10], 0.4, [10, 40, 40, 10]),
        ([100, 120, 110], 0.4, [100, 120, 110]),
        ([0, 100, 10**8], 0.6, [0, 100, 150]),
        ([100, 150, 900], 0.3, [100, 100, 100]),
    ],
)
def test_no_site_counts_for_more_than_its_share(sizes: list[int], share: float, expected: list[int]) -> None:
    rows = torch.tensor([[[size // 2, size - size // 2], [0, 0]] for size in sizes])
    found = capped(rows, share)
    assert found.sum((-1, -2)).tolist() == expected
    assert bool((found <= rows).all()) and bool((found >= 0).all())


@pytest.mark.parametrize("rule", ["clip", "trimmed", "median", "krum"])
def test_one_liar_of_four_does_not_steer_a_federation(tmp_path: Path, rule: str) -> None:
    plan = config(
        NAMES, rules={"aggregation": rule, "max_share": 0.4}, training={"rounds": 2}, model={"name": "linear"}
    )
    lie = with_model(lambda model: {name: -9 * value for name, value in model.items()})
    sites = world(tmp_path, (60, 50, 55, 50), mishaps={("west", round): lie for round in (1, 2)})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert outcome.diverged is None and len(outcome.history) == 2
    if rule == "krum":
        assert all("west" in record["quarantined"] for record in outcome.history)


@pytest.mark.parametrize("loss", [1.7e308, 1e30, -1e300])
def test_false_training_losses_neither_end_a_run_nor_show_in_it(tmp_path: Path, loss: float) -> None:
    def lie(message: Message) -> Message:
        return replace(message, facts={**message.facts, "loss": loss})

    plan = config(NAMES, rules={"aggregation": "trimmed", "max_share": 0.4}, training={"rounds": 3})
    sites = world(tmp_path, (60, 50, 55, 50), mishaps={("west", 2): lie})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert outcome.diverged is None and len(outcome.history) == 3
    assert all(0 < record["train_loss"] < 5 for record in outcome.history)
    assert [list(record["quarantined"]) for record in outcome.history] == [[], ["west"], []]


@pytest.mark.parametrize("loss", [1.7e308, 1e30])
def test_false_losses_on_test_rows_do_not_show_in_the_result(tmp_path: Path, loss: float) -> None:
    def lie(message: Message) -> Message:
        if "test" not in message.tensors:
            return message
        test = message.tensors["test"]
        return replace(
            message, tensors={**message.tensors, "test": {**test, "loss": torch.full_like(test["loss"], loss)}}
        )

    sites = world(tmp_path, (60, 50, 55, 50), mishaps={("west", 0): lie})
    outcome = coordinate(config(NAMES, training={"rounds": 1}), tmp_path / "run", sites, pause=0.001)
    assert 0 < outcome.test["loss"] < 5 and 0 <= outcome.test["loss_gap"] < 5
    notes = json.loads((tmp_path / "run" / "result.json").read_text())["notes"]
    assert any("'west'" in note and "loss" in note for note in notes), notes


def test_robust_rules_and_hidden_answers_exclude_each_other() -> None:
    with pytest.raises(UserError, match="compares single answers, which secure aggregation hides"):
        config(rules={"aggregation": "median", "secure": True})
    with pytest.raises(UserError, match="take the rule 'aggregation'"):
        config(rules={"aggregation": "median"}, privacy={"noise": 1.0})
    with pytest.raises(UserError, match="'max_share' of rules must be above 0"):
        config(rules={"max_share": 0.0})

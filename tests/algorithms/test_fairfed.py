"""FairFed: hand-worked weights, the pooled metric, fallback, and FedAvg as its special case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract import TASK, report_of
from torch import Tensor

import ffalm
from ffalm import metrics
from ffalm.algorithms import Measure, RoundReport
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.fairness.group_metrics import signed_dpd

Rows = tuple[list[int], list[int], list[int]]
Metric = Literal["dpd", "eod"]


def tally_of(rows: Rows) -> Tally:
    """The Tally of (labels, predictions, groups), with room for two labels and groups whatever they hold."""
    y, prediction, s = (torch.tensor(values) for values in rows)
    return Tally.of(prediction, torch.zeros(len(y)), y, s, (2, 2))


def selected(of_0: tuple[int, int], of_1: tuple[int, int]) -> Rows:
    """Rows of which (k of n) are predicted 1 in group 0 and in group 1; half the labels are right."""
    prediction = [1] * of_0[0] + [0] * (of_0[1] - of_0[0]) + [1] * of_1[0] + [0] * (of_1[1] - of_1[0])
    return [0, 1] * (len(prediction) // 2) + [0] * (len(prediction) % 2), prediction, [0] * of_0[1] + [1] * of_1[1]


def report(clients: list[Rows], sizes: list[int] | None = None, part: list[bool] | None = None) -> RoundReport:
    rows = sizes or [len(client[0]) for client in clients]
    taking_part = torch.tensor(part or [True] * len(clients))
    return report_of(1, torch.tensor(rows), taking_part, Tally.stack([tally_of(client) for client in clients]))


def moved(algorithm: ffalm.FairFed, before: list[float], told: RoundReport) -> list[float]:
    state = {"client_weights": torch.tensor(before, dtype=torch.float64)}
    return [float(weight) for weight in algorithm.update(state, told)[0]]


def random_clients(seed: int, clients: int) -> list[Rows]:
    """Clients in which every label meets every group."""
    draws = np.random.default_rng(seed)

    def noise() -> list[int]:
        return [int(value) for value in draws.integers(0, 2, 30)]

    return [([0, 1, 0, 1, *noise()], [0, 1, 0, 1, *noise()], [0, 0, 1, 1, *noise()]) for _ in range(clients)]


def test_the_worked_weights() -> None:
    """Weights (0.1, 0.3, 0.6); local gaps (0.1, 0.3, 0.2) and the pooled one 0.2."""
    clients = [selected((5, 10), (4, 10)), selected((6, 10), (3, 10)), selected((6, 10), (4, 10))]
    told = report(clients)
    assert told.tally is not None
    assert signed_dpd(told.tally).tolist() == pytest.approx([0.1, 0.3, 0.2])
    assert float(signed_dpd(told.tally.pooled())) == pytest.approx(0.2)
    found = moved(ffalm.FairFed(step=0.5), [0.1, 0.3, 0.6], told)
    assert found == pytest.approx([0.083333, 0.283333, 0.633333], abs=1e-6)


def test_the_authors_variant_has_its_own_worked_weights() -> None:
    """Their global metric is the size-weighted mean of local unsigned joint gaps: 0.1, 0.3, 0.2 with shares
    0.1, 0.3, 0.6 give 0.22."""
    clients = [selected((5, 10), (3, 10)), selected((8, 10), (2, 10)), selected((1, 10), (5, 10))]
    told = report(clients, sizes=[10, 30, 60])
    found = moved(ffalm.FairFed(step=0.5, variant="authors"), [0.1, 0.3, 0.6], told)
    assert found == pytest.approx([0.076667, 0.296667, 0.626667], abs=1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), metric=st.sampled_from(["dpd", "eod"]))
def test_the_rule_holds_on_random_clients_with_the_metric_of_the_concatenated_rows(seed: int, metric: Metric) -> None:
    clients = random_clients(seed, 4)
    before = np.random.default_rng(seed).dirichlet([5.0] * 4)

    def signed(rows: Rows) -> float:
        y, prediction, s = (np.array(values) for values in rows)
        use = y == 1 if metric == "eod" else y >= 0
        return float(prediction[use & (s == 0)].mean() - prediction[use & (s == 1)].mean())

    y, prediction, s = ([value for client in clients for value in client[i]] for i in range(3))
    gaps = np.array([abs(signed((y, prediction, s)) - signed(client)) for client in clients])
    expected = np.maximum(before - 0.5 * (gaps - gaps.mean()), 0)
    found = moved(ffalm.FairFed(step=0.5, metric=metric), before.tolist(), report(clients))
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-12)


def test_the_nearest_client_gains_the_farthest_loses_and_the_sum_stays_one() -> None:
    clients = [selected((5, 10), (4, 10)), selected((6, 10), (3, 10)), selected((6, 10), (4, 10))]
    found = moved(ffalm.FairFed(step=0.3), [1 / 3] * 3, report(clients))
    assert found[2] > 1 / 3 > max(found[:2])
    assert sum(found) == pytest.approx(1, abs=1e-15)


def test_a_client_that_tells_no_cell_keeps_its_weight() -> None:
    told = report([selected((5, 10), (4, 10)), selected((6, 10), (3, 10)), selected((6, 10), (4, 10))])
    assert told.tally is not None
    silent = torch.tensor([False, True, False])
    confusion = told.tally.confusion.masked_fill(silent.view(3, 1, 1, 1), 0)
    found = moved(ffalm.FairFed(), [0.2, 0.5, 0.3], replace(told, tally=Tally(confusion, told.tally.loss)))
    assert found[1] == pytest.approx(0.5, abs=1e-15) and sum(found) == pytest.approx(1, abs=1e-15)


def test_a_client_that_sits_a_round_out_keeps_its_weight_and_those_that_train_are_compared_among_themselves() -> None:
    clients = [selected((5, 10), (4, 10)), selected((6, 10), (3, 10)), selected((6, 10), (4, 10))]
    told = report([*clients, clients[0]], part=[True, True, True, False])
    assert told.tally is not None
    there = told.taking_part
    absent = Tally(told.tally.confusion * there.view(4, 1, 1, 1), told.tally.loss * there.view(4, 1, 1))
    state = {"client_weights": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)}
    weights, after = ffalm.FairFed(step=0.5).update(state, replace(told, tally=absent))
    assert after["client_weights"].tolist() == pytest.approx([0.083333, 0.183333, 0.333333, 0.4], abs=1e-6)
    assert weights.tolist() == pytest.approx([0.138889, 0.305556, 0.555556, 0.0], abs=1e-6)


def test_a_client_that_comes_late_begins_with_its_share_of_the_rows_and_the_others_keep_their_proportions() -> None:
    counts = torch.zeros(3, 2, 2, dtype=torch.int64)
    counts[:, 0, 0] = torch.tensor([10, 65, 25])
    state = {"client_weights": torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)}
    joined = ffalm.FairFed().recounted(state, TASK, counts, torch.tensor([False, False, True]))
    assert joined["client_weights"].tolist() == pytest.approx([0.45, 0.3, 0.25])


def test_a_client_that_lost_all_its_weight_is_not_taken_for_one_that_comes_late() -> None:
    counts = torch.zeros(3, 2, 2, dtype=torch.int64)
    counts[:, 0, 0] = torch.tensor([50, 25, 25])
    state = {"client_weights": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)}
    joined = ffalm.FairFed().recounted(state, TASK, counts, torch.tensor([False, False, True]))
    assert joined["client_weights"].tolist() == pytest.approx([0.75, 0.0, 0.25])


def test_the_weight_of_a_client_that_is_gone_goes_to_the_others() -> None:
    counts = torch.zeros(3, 2, 2, dtype=torch.int64)
    counts[:, 0, 0] = torch.tensor([50, 0, 25])
    state = {"client_weights": torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)}
    left = ffalm.FairFed().recounted(state, TASK, counts, torch.zeros(3, dtype=torch.bool))
    assert left["client_weights"].tolist() == pytest.approx([0.625, 0.0, 0.375])


def test_equal_gaps_leave_the_weights_alone() -> None:
    found = moved(ffalm.FairFed(step=5.0), [0.2, 0.3, 0.5], report([selected((5, 10), (4, 10))] * 3))
    assert found == pytest.approx([0.2, 0.3, 0.5], abs=1e-15)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), step=st.floats(0, 1000))
def test_weights_are_never_negative_and_sum_to_one(seed: int, step: float) -> None:
    algorithm, told = ffalm.FairFed(step=step), report(random_clients(seed, 5))
    state = algorithm.start(TASK, torch.ones(5, 2, 2, dtype=torch.int64))
    for _ in range(3):
        weights, state = algorithm.update(state, told)
        assert (weights >= 0).all()
        assert (state["client_weights"] >= 0).all()
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


def test_a_clipped_client_has_weight_zero_and_the_rest_are_renormalised() -> None:
    clients = [selected((5, 10), (4, 10)), selected((10, 10), (0, 10)), selected((5, 10), (4, 10))]
    found = moved(ffalm.FairFed(step=2.0), [0.3, 0.3, 0.4], report(clients))
    assert found[1] == 0
    # Local metrics 0.1, 1.0, 0.1 lie 0.3, 0.6, 0.3 from the pooled 0.4, so 2 * 0.1 is gained, lost and gained.
    assert found == pytest.approx([0.5 / 1.1, 0.0, 0.6 / 1.1], abs=1e-12)


@pytest.mark.parametrize("metric", ["dpd", "eod"])
def test_an_undefined_local_metric_is_replaced_by_the_accuracy_gap(metric: Metric) -> None:
    lacking = ([0, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0])
    full = ([0, 1, 0, 1, 0, 1, 0, 1], [1, 1, 0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1])
    found = moved(ffalm.FairFed(step=0.5, metric=metric), [0.5, 0.5], report([lacking, full]))
    whole = metrics.tally(*(lacking[i] + full[i] for i in range(3)))
    if metric == "dpd":
        pooled, local = (1 + 1 + 1 + 0 + 3) / 8 - 1 / 4, 3 / 4 - 1 / 4
    else:
        pooled, local = (2 + 2) / 5 - 1 / 2, 1 - 1 / 2
    gaps = np.array([abs(whole.accuracy() - 0.5), abs(pooled - local)])
    np.testing.assert_allclose(found, 0.5 - 0.5 * (gaps - gaps.mean()), atol=1e-12)


def test_a_client_that_is_more_accurate_than_all_is_as_far_from_them_as_one_that_is_less() -> None:
    """Its accuracy is 1, that of all 10/12; the other client's gap is the pooled one, 1/2."""
    lacking = ([0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0])
    full = ([0, 1, 0, 1, 0, 1, 0, 1], [1, 1, 0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1])
    found = moved(ffalm.FairFed(step=0.5), [0.5, 0.5], report([lacking, full]))
    assert found == pytest.approx([0.5 - 0.5 / 12, 0.5 + 0.5 / 12])


def test_where_every_weight_is_clipped_the_sizes_decide() -> None:
    told = report([selected((5, 10), (4, 10))] * 3, sizes=[10, 20, 30])
    assert moved(ffalm.FairFed(step=0.5), [0.0, 0.0, 0.0], told) == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_where_all_weight_is_with_a_client_that_sits_out_the_sizes_of_the_others_decide() -> None:
    told = report([selected((5, 10), (4, 10))] * 3, sizes=[10, 30, 60], part=[True, True, False])
    assert moved(ffalm.FairFed(step=0.5), [0.0, 0.0, 1.0], told) == pytest.approx([0.25, 0.75, 0.0])


def test_clients_that_sit_out_weigh_nothing_now_and_keep_their_weight_for_later() -> None:
    clients = [selected((5, 10), (4, 10)), selected((6, 10), (3, 10)), selected((0, 10), (9, 10))]
    state = {"client_weights": torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)}
    silent = Tally.stack([tally_of(clients[0]), tally_of(clients[1]), Tally.zeros((2, 2))])
    told = report_of(1, torch.tensor([20, 20, 20]), torch.tensor([True, True, False]), silent)
    weights, after = ffalm.FairFed(step=0.5).update(state, told)
    assert float(weights[2]) == 0
    assert float(weights.sum()) == pytest.approx(1)
    assert float(after["client_weights"][2]) == pytest.approx(0.5)
    assert weights[:2].tolist() == pytest.approx([0.4, 0.6])  # both are 0.1 from the pooled 0.2: no move


def test_the_authors_variant_takes_clients_that_sit_out_as_without_a_gap() -> None:
    """Joint gaps 0.1 and 0.3 with shares 1/4 and 3/4 give 0.25; distances 0.15 and 0.05, their mean 0.1."""
    silent = Tally.stack(
        [tally_of(selected((5, 10), (3, 10))), tally_of(selected((8, 10), (2, 10))), Tally.zeros((2, 2))]
    )
    told = report_of(1, torch.tensor([10, 30, 60]), torch.tensor([True, True, False]), silent)
    state = {"client_weights": torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)}
    weights, after = ffalm.FairFed(step=0.5, variant="authors").update(state, told)
    assert after["client_weights"].tolist() == pytest.approx([0.175, 0.325, 0.5])
    assert weights.tolist() == pytest.approx([0.35, 0.65, 0.0])


@pytest.mark.parametrize("variant", ["pooled", "authors"])
@pytest.mark.parametrize("metric", ["dpd", "eod"])
def test_several_seeds_at_once_give_what_each_gives_alone(
    metric: Metric, variant: Literal["pooled", "authors"]
) -> None:
    lacking = ([0, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0])  # its metric is undefined: the fallback is on the path too
    algorithm = ffalm.FairFed(step=0.4, metric=metric, variant=variant)
    alone = [
        report([*random_clients(seed, 3), lacking], part=part)
        for seed, part in ((0, [True] * 4), (1, [True, False, True, True]))
    ]
    before = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3]], dtype=torch.float64)
    tallies = [one.tally for one in alone if one.tally is not None]
    together = report_of(
        1,
        torch.stack([one.sizes for one in alone]),
        torch.stack([one.taking_part for one in alone]),
        Tally.stack(tallies),
    )
    weights, after = algorithm.update({"client_weights": before}, together)
    for seed, one in enumerate(alone):
        own, carried = algorithm.update({"client_weights": before[seed]}, one)
        torch.testing.assert_close(weights[seed], own, rtol=0, atol=1e-15)
        torch.testing.assert_close(after["client_weights"][seed], carried["client_weights"], rtol=0, atol=1e-15)


def test_it_starts_from_the_shares_of_the_training_rows_and_measures_the_received_model() -> None:
    counts = torch.tensor([[[1, 2], [3, 4]], [[10, 10], [5, 5]]])
    assert ffalm.FairFed().start(TASK, counts)["client_weights"].tolist() == [0.25, 0.75]
    assert ffalm.FairFed().measure is Measure.RECEIVED
    assert (ffalm.FairFed().step, ffalm.FairFed().metric) == (0.5, "dpd")


@pytest.mark.parametrize("wrong", [{"step": -0.1}, {"metric": "dqd"}, {"variant": "mine"}])
def test_settings_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ffalm.FairFed(**wrong)


def arrays(seed: int = 0, sizes: tuple[int, ...] = (21, 29, 41, 25, 48)) -> list[tuple[Any, Any, Any]]:
    draws = np.random.default_rng(seed)
    owned = []
    for client, rows in enumerate(sizes):
        group = np.r_[0, 0, 1, 1, draws.integers(0, 2, rows - 4)]
        y = np.r_[0, 1, 0, 1, draws.random(rows - 4) < 0.2 + 0.1 * client + 0.2 * group[4:]].astype(int)
        owned.append((draws.normal(size=(rows, 5)) + 0.7 * y[:, None] + 0.5 * group[:, None], y, group))
    return owned


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", ["pooled", "authors"])
def test_with_step_0_it_is_fedavg_bit_for_bit(dtype: torch.dtype, variant: str) -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Linear(5, 2).to(dtype)

    owned = ffalm.Federation.from_arrays(arrays(sizes=(40, 19, 46, 59, 11, 44, 47)))  # shares that sum to 1 - 1e-16
    run: dict[str, Any] = {"model": model, "rounds": 8, "batch_size": 8, "engine": "loop", "device": "cpu"}
    plain = ffalm.simulate(ffalm.FedAvg(), owned, **run)
    fair = ffalm.simulate(ffalm.FairFed(step=0, variant=variant), owned, **run)  # type: ignore[arg-type]
    assert same(plain.state_dict, fair.state_dict)
    assert plain.history[-1]["weights"] == fair.history[-1]["weights"]


def test_its_weights_belong_to_clients_and_not_to_places_in_the_list() -> None:
    """With full batches nothing else tells one client from another, so permuting them permutes the weights."""
    run: dict[str, Any] = {
        "model": lambda: torch.nn.Linear(5, 2).double(),
        "rounds": 6, "batch_size": None, "local_steps": 3, "lr": 0.5, "engine": "loop", "device": "cpu",
    }  # fmt: skip
    order = [3, 0, 4, 1, 2]
    clients = arrays()
    one = ffalm.simulate(ffalm.FairFed(), ffalm.Federation.from_arrays(clients), **run)
    other = ffalm.simulate(ffalm.FairFed(), ffalm.Federation.from_arrays([clients[i] for i in order]), **run)
    for name, value in one.state_dict.items():
        torch.testing.assert_close(value, other.state_dict[name], rtol=1e-10, atol=1e-12)
    for before, after in zip(one.history, other.history, strict=True):
        assert [before["weights"][i] for i in order] == pytest.approx(after["weights"], abs=1e-12)
    assert np.ptp(np.array(one.history[-1]["weights"]) - np.array(one.history[0]["weights"])) > 1e-3


def test_the_first_rounds_weights_follow_from_the_untrained_model_by_hand() -> None:
    clients = arrays()
    run: dict[str, Any] = {"rounds": 1, "engine": "loop", "device": "cpu", "model": frozen_start}
    weights = ffalm.simulate(ffalm.FairFed(step=0.2), ffalm.Federation.from_arrays(clients), **run).history[0][
        "weights"
    ]
    start = frozen_start()
    with torch.no_grad():
        predictions = [start(torch.tensor(x).float()).argmax(-1).numpy() for x, _, _ in clients]
    sizes = np.array([len(y) for _, y, _ in clients])

    def signed(prediction: Any, s: Any) -> float:
        return float(prediction[s == 0].mean() - prediction[s == 1].mean())

    pooled = signed(np.concatenate(predictions), np.concatenate([s for _, _, s in clients]))
    gaps = np.array([abs(pooled - signed(p, s)) for p, (_, _, s) in zip(predictions, clients, strict=True)])
    expected = np.maximum(sizes / sizes.sum() - 0.2 * (gaps - gaps.mean()), 0)
    np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-12)
    assert gaps.std() > 0.01


def frozen_start() -> torch.nn.Module:
    """A linear model whose first weights are the same whatever the seed."""
    module = torch.nn.Linear(5, 2)
    with torch.no_grad():
        module.weight.copy_(torch.linspace(-1, 1, 10).view(2, 5).sin())
        module.bias.zero_()
    return module

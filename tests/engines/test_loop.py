"""The reference engine: plain SGD by hand, averaging, participation, resuming, and what must not change a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ffalm
from ffalm.engines import Job, Round, Snapshot, Training
from ffalm.engines.common import row_losses
from ffalm.engines.loop import LoopEngine
from ffalm.engines.sampling import batches, participants
from ffalm.engines.server import average
from ffalm.errors import UserError

Arrays = tuple[Any, Any, Any]
FAST: dict[str, Any] = {"engine": "loop", "device": "cpu", "threads": 1}


def arrays(seed: int, rows: int, shape: tuple[int, ...] = (4,)) -> Arrays:
    """Rows in which every label meets every group."""
    draws = np.random.default_rng(seed)
    group = np.r_[0, 0, 1, 1, draws.integers(0, 2, rows - 4)]
    y = np.r_[0, 1, 0, 1, draws.random(rows - 4) < 0.3 + 0.4 * group[4:]].astype(int)
    x = draws.normal(size=(rows, *shape)) + 0.8 * y.reshape(-1, *[1] * len(shape))
    return x.astype(np.float32), y, group


def federation(sizes: tuple[int, ...] = (21, 34, 13), shape: tuple[int, ...] = (4,), **parts: Any) -> ffalm.Federation:
    clients = [arrays(number, rows, shape) for number, rows in enumerate(sizes)]
    scored = {"validation": arrays(90, 30, shape), "test": arrays(91, 30, shape), **parts}
    return ffalm.Federation.from_arrays(clients, **scored)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def start_of(model: Callable[[], nn.Module], fed: ffalm.Federation, seed: int = 0) -> dict[str, Tensor]:
    """The model before round 1, which a learning rate of 0 leaves as it is."""
    return ffalm.simulate(ffalm.FedAvg(), fed, model=model, rounds=1, lr=0.0, seed=seed, **FAST).state_dict


def sgd(
    module: nn.Module, rows: tuple[Tensor, Tensor], cut: list[Tensor], lr: float, clip: float | None
) -> dict[str, Tensor]:
    """Local training with torch's own optimiser and clipping."""
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)
    for taken in cut:
        optimiser.zero_grad()
        cross_entropy(module(rows[0][taken]), rows[1][taken]).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()
    return {name: value.clone() for name, value in module.state_dict().items()}


# --- local training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("model", [mlp, batchnorm])
def test_one_client_is_plain_sgd(model: Callable[[], nn.Module], clip: float | None) -> None:
    fed = federation((35,))
    plan = Training(rounds=4, batch_size=8, local_epochs=2, lr=0.2, lr_step=2, lr_decay=0.1, clip=clip)
    module = model()
    module.load_state_dict(start_of(model, fed, seed=5))
    for name, buffer in model().named_buffers():  # a learning rate of 0 does move BatchNorm statistics
        module.get_buffer(name).copy_(buffer)
    rows = fed.clients[0].x, fed.clients[0].y
    for round in range(1, 5):
        lr = 0.2 if round <= 2 else 0.02
        expected = sgd(module, rows, batches(5, round, 0, 35, plan), lr, clip)
    result = ffalm.simulate(
        ffalm.FedAvg(), fed, model=model, seed=5, rounds=4, batch_size=8, local_epochs=2, lr=0.2, lr_step=2,
        lr_decay=0.1, clip=clip, **FAST,
    )  # fmt: skip
    for name, value in expected.items():
        torch.testing.assert_close(result.state_dict[name], value, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_clipped_to_exactly_the_bound_over_all_parameters_together() -> None:
    fed = federation((30,))
    before = start_of(mlp, fed)
    run: dict[str, Any] = {"model": mlp, "rounds": 1, "batch_size": None, **FAST}
    after = ffalm.simulate(ffalm.FedAvg(), fed, lr=0.5, clip=0.01, **run).state_dict
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert float(moved.norm()) == pytest.approx(0.5 * 0.01, rel=1e-4)
    free = ffalm.simulate(ffalm.FedAvg(), fed, lr=0.5, clip=None, **run).state_dict
    loose = ffalm.simulate(ffalm.FedAvg(), fed, lr=0.5, clip=1e6, **run).state_dict
    assert same(free, loose)


def test_the_learning_rate_follows_the_global_round() -> None:
    plan = Training()
    assert [plan.lr_at(round) for round in (1, 50, 51, 70, 100, 101)] == [0.05, 0.05, 0.025, 0.025, 0.025, 0.0125]


def test_a_learning_rate_of_zero_changes_nothing_but_batchnorm_statistics() -> None:
    fed = federation()
    run: dict[str, Any] = {"model": batchnorm, "lr": 0.0, "batch_size": 8, **FAST}
    one, three = (ffalm.simulate(ffalm.FFALM(), fed, rounds=rounds, **run).state_dict for rounds in (1, 3))
    for name in one:
        statistic = "running" in name or "tracked" in name
        assert torch.equal(one[name], three[name]) != statistic, name


def test_bytes_of_images_reach_the_model_as_numbers_from_0_to_1() -> None:
    seen: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return self.layer(x)  # type: ignore[no-any-return]

    _, y, s = arrays(0, 12)
    x = np.tile(np.array([0, 51, 255, 102], dtype=np.uint8), (12, 1))
    ffalm.simulate(ffalm.FedAvg(), ffalm.Federation.from_arrays([(x, y, s)]), model=Watching, rounds=1, **FAST)
    for batch in seen:
        torch.testing.assert_close(batch[0], torch.tensor([0.0, 0.2, 1.0, 0.4]))


def test_the_loss_is_softmax_cross_entropy_over_two_logits() -> None:
    """Logits (0.3, -1.2) and label 1 cost 1.70141; the paper's formula taken literally would say 1.46328."""
    logits = torch.tensor([[0.3, -1.2], [0.3, -1.2]])
    losses, given = row_losses(nn.Identity(), logits, torch.tensor([1, 0]), 2)
    assert losses.tolist() == pytest.approx([1.70141, 0.20141], abs=5e-6)
    assert torch.equal(given, logits)


def test_frozen_parameters_stay_and_the_others_train() -> None:
    def model() -> nn.Module:
        module = mlp()
        for parameter in module[0].parameters():  # type: ignore[index]
            parameter.requires_grad_(False)
        return module

    fed = federation()
    before = start_of(model, fed)
    after = ffalm.simulate(ffalm.FFALM(), fed, model=model, rounds=3, **FAST).state_dict
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert torch.equal(before["0.bias"], after["0.bias"])
    assert not torch.equal(before["2.weight"], after["2.weight"])


def test_a_parameter_that_the_output_does_not_depend_on_is_no_obstacle() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    fed = federation()
    before = start_of(Spare, fed)
    after = ffalm.simulate(ffalm.FedAvg(), fed, model=Spare, rounds=2, **FAST).state_dict
    assert torch.equal(before["unused.weight"], after["unused.weight"])
    assert not torch.equal(before["used.weight"], after["used.weight"])


def test_a_model_with_nothing_to_train_is_refused() -> None:
    def model() -> nn.Module:
        return mlp().requires_grad_(False)

    with pytest.raises(UserError, match="train"):
        ffalm.simulate(ffalm.FedAvg(), federation(), model=model, rounds=1, **FAST)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_model_with_the_wrong_number_of_logits_is_refused(outputs: int) -> None:
    with pytest.raises(UserError, match=r"one logit per label, of shape \(rows, 2\)"):
        ffalm.simulate(ffalm.FedAvg(), federation(), model=lambda: nn.Linear(4, outputs), rounds=1, **FAST)


def test_a_model_with_an_axis_too_many_is_refused() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 2), nn.Unflatten(1, (1, 2)))

    with pytest.raises(UserError, match="one logit per label"):
        ffalm.simulate(ffalm.FedAvg(), federation(), model=model, rounds=1, **FAST)


# --- averaging --------------------------------------------------------------------------------------------------------


def test_models_are_averaged_in_float64_and_counters_take_the_largest() -> None:
    """1e8 + 1 - 1e8 is 0 in float32; only a float64 sum keeps the 1."""
    big = 2.0**25
    models = [
        {"w": torch.tensor([big]), "tracked": torch.tensor(3)},
        {"w": torch.tensor([3.0]), "tracked": torch.tensor(9)},
        {"w": torch.tensor([-big]), "tracked": torch.tensor(4)},
    ]
    mean = average(models, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert float(mean["w"]) == 1.0
    assert mean["w"].dtype == torch.float32
    assert int(mean["tracked"]) == 9
    assert mean["tracked"].dtype == torch.int64


def test_batchnorm_statistics_are_averaged_by_size_like_weights() -> None:
    fed = federation((20, 40, 10))
    run: dict[str, Any] = {"model": batchnorm, "rounds": 1, "batch_size": 10, "lr": 0.1, "seed": 2, **FAST}
    result = ffalm.simulate(ffalm.FedAvg(), fed, **run)
    plan = Training(batch_size=10)
    start = start_of(batchnorm, fed, seed=2)
    locals_ = []
    for number, client in enumerate(fed.clients):
        module = batchnorm()
        weights = {name: value for name, value in start.items() if "running" not in name and "tracked" not in name}
        module.load_state_dict(weights, strict=False)
        cut = batches(2, 1, number, len(client), plan)
        locals_.append(sgd(module, (client.x, client.y), cut, 0.1, 1.0))
    for name, value in result.state_dict.items():
        if value.dtype.is_floating_point:
            mean = sum(rows / 70 * local[name].double() for rows, local in zip((20, 40, 10), locals_, strict=True))
            torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)
    assert int(result.state_dict["1.num_batches_tracked"]) == 4  # the largest client's four batches


@pytest.mark.parametrize("algorithm", [ffalm.FedAvg(), ffalm.FFALM(), ffalm.FPFL(), ffalm.FairFed()])
def test_identical_clients_with_full_batches_are_one_client(algorithm: ffalm.Algorithm) -> None:
    rows = arrays(0, 30)
    run: dict[str, Any] = {
        "model": lambda: mlp().double(), "rounds": 5, "batch_size": None, "local_steps": 3, "lr": 0.3, **FAST,
    }  # fmt: skip
    one, five = (ffalm.simulate(algorithm, ffalm.Federation.from_arrays([rows] * clients), **run) for clients in (1, 5))
    for name, value in one.state_dict.items():
        torch.testing.assert_close(value, five.state_dict[name], rtol=1e-12, atol=1e-12)
    for name in set(one.state) - {"client_weights"}:
        torch.testing.assert_close(one.state[name], five.state[name], rtol=1e-12, atol=1e-12)


def test_the_order_of_clients_does_not_matter_beyond_rounding() -> None:
    sizes, order = (21, 34, 13), (2, 0, 1)
    clients = [arrays(number, rows) for number, rows in enumerate(sizes)]
    run: dict[str, Any] = {
        "model": lambda: mlp().double(), "rounds": 5, "batch_size": None, "local_steps": 2, "lr": 0.3, **FAST,
    }  # fmt: skip
    one = ffalm.simulate(ffalm.FFALM(), ffalm.Federation.from_arrays(clients), **run)
    other = ffalm.simulate(ffalm.FFALM(), ffalm.Federation.from_arrays([clients[i] for i in order]), **run)
    for name, value in one.state_dict.items():
        torch.testing.assert_close(value, other.state_dict[name], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("clients", [1, 300])
def test_one_client_and_three_hundred_both_run(clients: int) -> None:
    owned = [arrays(number, 5) for number in range(clients)]
    result = ffalm.simulate(ffalm.FFALM(), ffalm.Federation.from_arrays(owned), model=mlp, rounds=2, **FAST)
    assert len(result.history) == 2
    assert result.history[-1]["weights"] == pytest.approx([1 / clients] * clients)


# --- what must not change a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [mlp, batchnorm, dropout])
def test_the_same_seed_gives_the_same_bits_twice_and_another_seed_does_not(model: Callable[[], nn.Module]) -> None:
    run: dict[str, Any] = {"model": model, "rounds": 3, "batch_size": 8, **FAST}
    once = ffalm.simulate(ffalm.FFALM(), federation(), seed=4, **run)
    torch.rand(7)
    np.random.default_rng().random(3)
    again = ffalm.simulate(ffalm.FFALM(), federation(), seed=4, **run)
    other = ffalm.simulate(ffalm.FFALM(), federation(), seed=5, **run)
    assert same(once.state_dict, again.state_dict)
    assert once.test == again.test
    assert not same(once.state_dict, other.state_dict)


def test_a_run_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    ffalm.simulate(ffalm.FFALM(), federation(), model=dropout, rounds=2, **FAST)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("model", [batchnorm, dropout])
@pytest.mark.parametrize("algorithm", [ffalm.FFALM(), ffalm.FairFed()])
def test_validating_watching_and_testing_do_not_change_the_trajectory(
    model: Callable[[], nn.Module], algorithm: ffalm.Algorithm
) -> None:
    run: dict[str, Any] = {"model": model, "rounds": 3, "batch_size": 8, **FAST}
    watched: list[int] = []

    def on_round(record: dict[str, Any]) -> None:
        torch.rand(5)
        watched.append(record["round"])

    with_all = ffalm.simulate(algorithm, federation(), on_round=on_round, **run)
    without = ffalm.simulate(algorithm, federation(validation=None, test=None), **run)
    assert same(with_all.state_dict, without.state_dict)
    assert watched == [1, 2, 3]
    assert "accuracy" in with_all.history[0]
    assert "accuracy" not in without.history[0]
    assert without.test == {}


def test_measuring_the_dual_does_not_touch_batchnorm_statistics() -> None:
    """FFALM's pass over all local rows is in evaluation mode; without penalty and rate nothing of it may stay."""
    run: dict[str, Any] = {"model": batchnorm, "rounds": 3, "batch_size": 8, **FAST}
    plain = ffalm.simulate(ffalm.FedAvg(), federation(), **run)
    fair = ffalm.simulate(ffalm.FFALM(penalty=0, dual_lr=0), federation(), **run)
    assert same(plain.state_dict, fair.state_dict)


# --- participation ----------------------------------------------------------------------------------------------------


def watched_batches(participation: float, rounds: int = 4) -> dict[tuple[int, int], list[list[float]]]:
    """The row marks of every training batch, by (round, client); x[:, 0] is client * 1000 + row."""
    seen: list[list[float]] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and torch.is_grad_enabled():
                seen.append(x[:, 0].tolist())
            return self.layer(x * 1e-3)  # type: ignore[no-any-return]

    clients = []
    for client in range(4):
        _, y, s = arrays(client, 20)
        clients.append((np.stack([client * 20.0 + np.arange(20), y], 1).astype(np.float32), y, s))
    fed = ffalm.Federation.from_arrays(clients)
    run: dict[str, Any] = {"model": Watching, "rounds": rounds, "batch_size": 6, "participation": participation, **FAST}
    history = ffalm.simulate(ffalm.FedAvg(), fed, **run).history
    found: dict[tuple[int, int], list[list[float]]] = {}
    remaining = iter(seen)
    for record in history:
        for client in (number for number, weight in enumerate(record["weights"]) if weight > 0):
            found[record["round"], client] = [next(remaining) for _ in range(4)]
            assert all(int(mark) // 20 == client for batch in found[record["round"], client] for mark in batch)
    assert next(remaining, None) is None
    return found


def test_clients_that_drop_out_leave_the_batches_of_the_others_alone() -> None:
    everybody, half = watched_batches(1.0), watched_batches(0.5)
    assert len(everybody) == 16
    assert len(half) == 8
    assert all(everybody[key] == taken for key, taken in half.items())


def test_partial_participation_averages_those_who_took_part_by_their_sizes() -> None:
    sizes = (21, 34, 13, 40)
    fed = federation(sizes)
    run: dict[str, Any] = {"model": mlp, "rounds": 1, "batch_size": None, "lr": 0.3, "clip": None, "seed": 1, **FAST}
    result = ffalm.simulate(ffalm.FedAvg(), fed, participation=0.5, **run)
    chosen = participants(1, 1, 4, 0.5)
    rows = sum(sizes[client] for client in chosen)
    expected = [sizes[client] / rows if client in chosen else 0.0 for client in range(4)]
    assert result.history[0]["weights"] == pytest.approx(expected, abs=1e-15)
    start = start_of(mlp, fed, seed=1)
    mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    for client in chosen:
        module = mlp()
        module.load_state_dict(start)
        everything = [torch.arange(sizes[client])]
        local = sgd(module, (fed.clients[client].x, fed.clients[client].y), everything, 0.3, None)
        for name, value in local.items():
            mean[name] += sizes[client] / rows * value.double()
    for name, value in result.state_dict.items():
        torch.testing.assert_close(value.double(), mean[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", [ffalm.FedAvg(), ffalm.FFALM(), ffalm.FPFL(), ffalm.FairFed()])
def test_every_algorithm_runs_with_partial_participation(algorithm: ffalm.Algorithm) -> None:
    history = ffalm.simulate(
        algorithm, federation((21, 34, 13, 40)), model=mlp, rounds=5, participation=0.5, **FAST
    ).history
    for record in history:
        weights = np.array(record["weights"])
        assert weights.sum() == pytest.approx(1)
        assert (weights > 0).sum() <= 2


# --- resuming ---------------------------------------------------------------------------------------------------------


def job(algorithm: ffalm.Algorithm, model: Callable[[], nn.Module], start: Snapshot | None = None) -> Job:
    plan = Training(rounds=6, batch_size=8, lr_step=3, lr=0.2, participation=0.7)
    return Job.of(algorithm, federation(), model, plan, 3, torch.device("cpu"), start)


@pytest.mark.parametrize("model", [batchnorm, dropout])
@pytest.mark.parametrize(
    "algorithm", [ffalm.FedAvg(), ffalm.FFALM.preset("released-code"), ffalm.FPFL(), ffalm.FairFed()]
)
def test_resuming_from_any_round_gives_the_uninterrupted_run_bit_for_bit(
    algorithm: ffalm.Algorithm, model: Callable[[], nn.Module]
) -> None:
    whole = [done for _, done in LoopEngine().train([job(algorithm, model)])]
    for stop in (1, 4):
        kept = whole[stop - 1].snapshot
        rest = [done for _, done in LoopEngine().train([job(algorithm, model, kept)])]
        assert [done.record["round"] for done in rest] == list(range(stop + 1, 7))
        assert same(rest[-1].snapshot.model, whole[-1].snapshot.model)
        assert same(rest[-1].snapshot.state, whole[-1].snapshot.state)
        for resumed, first in zip(rest, whole[stop:], strict=True):
            assert without_time(resumed) == without_time(first)


def test_a_snapshot_is_not_changed_by_the_rounds_after_it() -> None:
    rounds = LoopEngine().train([job(ffalm.FFALM(), batchnorm)])
    _, first = next(rounds)
    kept = {name: value.clone() for name, value in first.snapshot.model.items()}
    for _ in rounds:
        pass
    assert same(first.snapshot.model, kept)


def test_a_run_that_is_already_done_gives_no_more_rounds() -> None:
    last = [done for _, done in LoopEngine().train([job(ffalm.FedAvg(), mlp)])][-1].snapshot
    assert list(LoopEngine().train([job(ffalm.FedAvg(), mlp, last)])) == []


def without_time(done: Round) -> dict[str, Any]:
    return {name: value for name, value in done.record.items() if name != "seconds"}


# --- what a round records ---------------------------------------------------------------------------------------------


def test_a_round_records_metrics_duals_weights_and_seconds_in_plain_values() -> None:
    record = ffalm.simulate(ffalm.FFALM(), federation(), model=mlp, rounds=1, **FAST).history[0]
    assert {"round", "accuracy", "dpd", "eod", "loss", "loss_gap", "dual", "weights", "seconds"} <= set(record)
    assert record["round"] == 1
    assert isinstance(record["dual"], float)
    assert record["weights"] == pytest.approx([21 / 68, 34 / 68, 13 / 68])


def test_steps_in_which_some_row_weighs_less_than_nothing_are_counted() -> None:
    """A dual far above n1/n makes group 1's weight negative in every batch that holds both groups."""
    run: dict[str, Any] = {"model": mlp, "rounds": 1, "batch_size": None, **FAST}
    many = ffalm.simulate(ffalm.FFALM(dual_init=50.0), federation(), **run).history[0]
    none = ffalm.simulate(ffalm.FedAvg(), federation(), **run).history[0]
    assert many["negative_weight_share"] == 1
    assert none["negative_weight_share"] == 0


def test_the_recorded_metrics_are_those_of_the_averaged_model_on_the_validation_part() -> None:
    fed = federation()
    result = ffalm.simulate(ffalm.FedAvg(), fed, model=mlp, rounds=2, **FAST)
    module = mlp()
    module.load_state_dict(result.state_dict)
    module.eval()
    assert fed.validation is not None
    with torch.no_grad():
        logits = module(fed.validation.x)
    tally = ffalm.metrics.tally(
        fed.validation.y, logits.argmax(-1), fed.validation.group,
        losses=cross_entropy(logits, fed.validation.y, reduction="none"),
    )  # fmt: skip
    for name, value in tally.metrics().items():
        assert result.history[-1][name] == pytest.approx(value, rel=1e-5, abs=1e-7), name

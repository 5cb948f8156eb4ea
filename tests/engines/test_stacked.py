"""The stacked engine: which models it takes, how it lays work out, and that no layout changes the numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import TASK
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import Algorithm
from ffalm.engines import ClientSpec, Job, Round, Training
from ffalm.engines.loop import LoopEngine
from ffalm.engines.prepared_jobs import prepare_job, same_function
from ffalm.engines.stacked import StackedEngine, why_not_stacked
from ffalm.engines.stacked.binary_columns import binary_columns
from ffalm.engines.stacked.choose import kernel_for, values_per_row
from ffalm.engines.stacked.grouping import stacks
from ffalm.engines.stacked.kernels import Layered
from ffalm.engines.stacked.losses import losses_of, predictions, targets
from ffalm.engines.stacked.mapped import Mapped
from ffalm.engines.stacked.network import read_network
from ffalm.engines.stacked.onehot import OneHot
from ffalm.engines.stacked.schedule import ClientSlot, chunks, ordered, scoring_steps, training_steps
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.models import CNN, ResNet18

CPU = torch.device("cpu")
SPEC = ClientSpec(ffalm.FFALM(), nn.Identity, Training(), TASK, 0, CPU)


def federation(x_of: Callable[[int], Tensor], sizes: tuple[int, ...] = (30, 11, 50), seed: int = 0) -> Federation:
    draws = torch.Generator().manual_seed(seed)
    clients = [
        (x_of(rows), torch.randint(0, 2, (rows,), generator=draws), torch.randint(0, 2, (rows,), generator=draws))
        for rows in sizes
    ]
    return Federation.from_arrays(clients, validation=clients[0])


def numbers(rows: int) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)


def categories(columns: int) -> Callable[[int], Tensor]:
    """One column of numbers, then one-hot columns of which a row has two ones or fewer."""

    def made(rows: int) -> Tensor:
        draws = torch.Generator().manual_seed(rows)
        hot = torch.zeros(rows, columns, dtype=torch.float64)
        for _ in range(2):
            hot[torch.arange(rows), torch.randint(0, columns, (rows,), generator=draws)] = 1
        return torch.cat([torch.randn(rows, 1, generator=draws, dtype=torch.float64), hot], 1)

    return made


def images(rows: int) -> Tensor:
    return torch.randint(0, 256, (rows, 3, 8, 8), generator=torch.Generator().manual_seed(rows), dtype=torch.uint8)


def changed(one: Job, **changes: Any) -> Job:
    """A job whose clients are told something else."""
    return dataclasses.replace(one, spec=dataclasses.replace(one.spec, **changes))


def job(owned: Federation, model: Callable[[], nn.Module], seed: int = 0) -> Job:
    return Job.of(ffalm.FFALM(), owned, model, Training(rounds=2, batch_size=8, lr=0.2), seed, CPU)


def last(rounds: Iterator[tuple[int, Round]]) -> dict[int, dict[str, Tensor]]:
    """The last model of each job."""
    return {number: done.snapshot.model for number, done in rounds}


def assert_like_the_loop(jobs: list[Job], engine: StackedEngine | None = None) -> None:
    expected, found = last(LoopEngine().train(jobs)), last((engine or StackedEngine()).train(jobs))
    assert expected.keys() == found.keys()
    for number, model in expected.items():
        for name, entry in model.items():
            torch.testing.assert_close(found[number][name], entry, rtol=1e-9, atol=1e-9)


class Mixing(nn.Module):
    """Looks across the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x - x.mean(0))  # type: ignore[no-any-return]


class Branching(Mixing):
    """Does one thing or another, depending on values."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x if x.sum() > 0 else -x)  # type: ignore[no-any-return]


class Remembering(Mixing):
    """Keeps a statistic of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.seen, Tensor)
        if self.training:
            self.seen.mul_(0.9).add_(x[0])
        return self.out(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "'1' (BatchNorm1d) mixes the rows"),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2)), "'1' (Dropout) draws at random"),
        (Mixing(), "mixes the rows of a batch"),
        (Branching(), "torch.func cannot map it"),
        (Remembering(), "changes its buffers"),
    ],
)
def test_models_that_cannot_be_stacked_are_refused_by_name(model: nn.Module, reason: str) -> None:
    x = numbers(12).float()
    assert reason in str(why_not_stacked(model, x))
    owned = federation(lambda rows: numbers(rows).float())
    with pytest.raises(UserError, match=f"The model {type(model).__name__} cannot be stacked.*engine='loop'"):
        list(StackedEngine().train([job(owned, lambda: model)]))


def test_batch_norm_of_resnet_is_named() -> None:
    model = ResNet18().build((3, 32, 32), 2)
    assert "'bn1' (BatchNorm2d)" in str(why_not_stacked(model, torch.zeros(2, 3, 32, 32)))


def test_refusing_a_model_leaves_it_as_it_was() -> None:
    model = Remembering()
    why_not_stacked(model, numbers(5).float())
    assert torch.equal(model.get_buffer("seen"), torch.zeros(6))
    assert model.training


def test_a_model_with_the_wrong_number_of_logits_is_refused() -> None:
    with pytest.raises(UserError, match="one logit per label"):
        list(StackedEngine().train([job(federation(numbers), lambda: nn.Linear(6, 3).double())]))


def test_bfloat16_is_refused() -> None:
    wanted = changed(job(federation(numbers), lambda: nn.Linear(6, 2).double()), precision="bf16")
    with pytest.raises(UserError, match="bfloat16"):
        list(StackedEngine().train([wanted]))


def test_the_fastest_kernel_that_fits_is_chosen() -> None:
    mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    assert isinstance(kernel_for(mlp, [numbers(20)], SPEC), Layered)
    wide = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 2))
    assert isinstance(kernel_for(wide, [categories(12)(20)], SPEC), OneHot)
    assert isinstance(kernel_for(CNN((4,)).build((3, 8, 8), 2), [images(4)], SPEC), Mapped)


def test_numbers_that_only_look_binary_in_one_part_are_not_looked_up() -> None:
    hot = categories(12)(20)
    other = hot.clone()
    other[3, 5] = 0.5
    assert 5 in binary_columns([hot]).binary
    assert 5 not in binary_columns([hot, other]).binary


def test_columns_of_mostly_ones_are_listed_only_if_no_list_is_longer_for_it() -> None:
    codes = torch.tensor([0, 0, 0, 1, 2] * 4)
    hot = nn.functional.one_hot(codes, 3).double()
    every = binary_columns([hot])
    assert (every.binary.tolist(), every.ones, every.even) == ([0, 1, 2], 1, True)
    some = binary_columns([torch.cat([hot, hot[:, :1].roll(1, 0)], 1)])
    assert (some.binary.tolist(), some.plain.tolist(), some.even) == ([1, 2], [0, 3], False)
    lacking = binary_columns([torch.cat([hot, torch.zeros(1, 3)])])
    assert (lacking.binary.tolist(), lacking.ones, lacking.even) == ([0, 1, 2], 1, False)


class Branches(nn.Module):
    """Two rectified layers side by side, which share one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 2)
        self.aside = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.relu(self.left(x)) + torch.relu(self.right(x))
        self.aside(both)
        return self.out(both)  # type: ignore[no-any-return]


def test_layers_side_by_side_and_layers_without_effect_give_the_loops_numbers() -> None:
    network = read_network(Branches(), (6,))
    assert network is not None
    assert [step.rectified for step in network.operations if step.linear in ("left", "right")] == [True, True]
    assert_like_the_loop([job(federation(numbers), lambda: Branches().double(), seed) for seed in range(2)])


def test_a_network_is_read_out_of_a_users_own_module() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(48, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(nn.functional.relu(self.hidden(x.flatten(1)), inplace=True))  # type: ignore[no-any-return]

    network = read_network(Own(), (3, 4, 4))
    assert network is not None
    assert [step.linear for step in network.operations] == ["hidden", "out"]
    assert [step.rectified for step in network.operations] == [True, False]
    assert network.entered_by() == "hidden"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1), nn.Linear(6, 2)),
        nn.Sequential(nn.Linear(6, 4), nn.PReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.ReLU()),
    ],
)
def test_a_module_of_other_layers_is_not_read_as_a_network(model: nn.Module) -> None:
    assert read_network(model, (6,)) is None


def test_a_layer_that_others_see_too_is_not_rectified_in_place() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.hidden(x)
            return self.out(torch.relu(hidden) + hidden)  # type: ignore[no-any-return]

    network = read_network(Shared(), (6,))
    assert network is not None
    assert not any(step.rectified for step in network.operations)
    assert_like_the_loop([job(federation(numbers), lambda: Shared().double())])


@pytest.mark.parametrize("columns", [12, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_one_hot_columns_give_the_loops_numbers(columns: int, bias: bool) -> None:
    def model() -> nn.Module:
        hidden = nn.Linear(columns + 1, 20, bias=bias)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    owned = federation(categories(columns))
    assert isinstance(kernel_for(model(), [client.x for client in owned.clients], SPEC), OneHot)
    assert_like_the_loop([job(owned, model, seed) for seed in range(2)])


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_columns_that_are_all_one_hot_give_the_loops_numbers(bias: bool, labels: int) -> None:
    owned = federation(lambda rows: categories(40)(rows)[:, 1:])
    owned = dataclasses.replace(owned, task=dataclasses.replace(owned.task, label_names=tuple("abc"[:labels])))
    model: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(40, labels, bias=bias)).double()  # noqa: E731
    assert isinstance(kernel_for(model(), [client.x for client in owned.clients], SPEC), OneHot)
    assert_like_the_loop([job(owned, model)])


@pytest.mark.parametrize("bias", [True, False])
def test_a_logistic_model_of_lists_of_unequal_length_gives_the_loops_numbers(bias: bool) -> None:
    owned = federation(categories(16))
    model: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(17, 2, bias=bias)).double()  # noqa: E731
    assert isinstance(kernel_for(model(), [client.x for client in owned.clients], SPEC), OneHot)
    assert_like_the_loop([job(owned, model)])


def test_images_as_bytes_give_the_loops_numbers() -> None:
    assert_like_the_loop([job(federation(images), lambda: CNN((4,)).build((3, 8, 8), 2).double())])
    flat = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double()  # noqa: E731
    assert_like_the_loop([job(federation(images), flat)])


def test_bytes_beside_numbers_give_the_loops_numbers() -> None:
    owned = federation(images)
    validation = dataclasses.replace(owned.clients[0], x=owned.clients[0].x.float() / 255)
    mixed = dataclasses.replace(owned, clients=(validation, *owned.clients[1:]))
    assert_like_the_loop([job(mixed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double())])


def test_float32_is_close_to_the_loop_after_a_round() -> None:
    owned = federation(lambda rows: numbers(rows).float())
    wanted = job(owned, lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    expected, found = last(LoopEngine().train([wanted])), last(StackedEngine().train([wanted]))
    for name, entry in expected[0].items():
        torch.testing.assert_close(found[0][name], entry, rtol=1e-4, atol=1e-5)


def test_a_small_budget_of_memory_changes_no_number() -> None:
    model = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double()  # noqa: E731
    jobs = [job(federation(numbers, seed=seed), model, seed) for seed in range(2)]
    assert_like_the_loop(jobs, StackedEngine(budget=1))


def test_the_same_jobs_give_the_same_bits_twice() -> None:
    model = lambda: nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
    jobs = [job(federation(categories(12), seed=seed), model, seed) for seed in range(2)]
    first, second = last(StackedEngine().train(jobs)), last(StackedEngine().train(jobs))
    assert all(torch.equal(first[n][name], second[n][name]) for n in first for name in first[n])


@pytest.mark.parametrize("cls", [one for one in ffalm.algorithms().values() if one.server_settings])
def test_runs_that_differ_in_settings_of_the_server_alone_share_a_stack_and_keep_the_loops_numbers(
    cls: type[Algorithm],
) -> None:
    usual, metric = cls(), "eo" if cls is ffalm.FedFB else "eod"
    others = {"constraint": "dp,accuracy", "metric": metric, "variant": "authors", "dual_bound": 0.1, "multiplier": 0.4,
              "normalised_gap": True, "dual_step_cap": 0.1, "sufficient_decrease": 0.9}  # fmt: skip
    numbers_of = {name: others.get(name, getattr(usual, name)) for name in cls.server_settings}
    settings = [{name: value / 2 + 0.1 if isinstance(value, float) else value} for name, value in numbers_of.items()]
    settings = [{**given, "penalty_growth": 1.1} if "sufficient_decrease" in given else given for given in settings]
    owned = federation(numbers)
    one = job(owned, lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double())
    jobs = [changed(one, algorithm=algorithm) for algorithm in (usual, *(cls(**given) for given in settings))]
    assert len(stacks([prepare_job(number, own) for number, own in enumerate(jobs)])) == 1
    assert_like_the_loop(jobs)


def test_a_subclass_may_read_its_settings_anywhere_and_shares_no_stack() -> None:
    class Own(ffalm.FFALM):
        name = "own"

    assert ffalm.FFALM(penalty=1.0).trains_like(ffalm.FFALM(penalty=2.0))
    assert not ffalm.FFALM().trains_like(ffalm.FFALM(dual_data="last_batch"))
    assert not Own(penalty=1.0).trains_like(Own(penalty=2.0)) and not Own().trains_like(ffalm.FFALM())
    assert Own(penalty=1.0).trains_like(Own(penalty=1.0))


def lane(rows: int, *sizes: int) -> ClientSlot:
    return ClientSlot(0, 0, 0, rows, np.concatenate([np.arange(size) for size in sizes]), np.array(sizes))


def test_chunks_keep_within_the_budget_and_part_unequal_batches() -> None:
    even = [lane(8, 8) for _ in range(5)]
    assert [len(chunk) for chunk in chunks(even, lane_bytes=100, row_bytes=1, budget=220)] == [2, 2, 1]
    assert [len(chunk) for chunk in chunks(even, lane_bytes=100, row_bytes=1, budget=1)] == [1] * 5
    uneven = [lane(100, 100), lane(30, 30), lane(9, 9)]
    assert [len(chunk) for chunk in chunks(uneven, 1, 1, 10**9)] == [2, 1]


def test_a_step_runs_on_the_lanes_that_still_have_batches() -> None:
    lanes = ordered([lane(3, 3), lane(10, 4, 4, 2), lane(6, 4, 2)])
    steps = training_steps(lanes, CPU)
    assert [span.lanes for span in steps.spans] == [3, 2, 1]
    assert [span.whole for span in steps.spans] == [False, False, False]
    assert steps.lanes.tolist() == [0, 1, 2, 0, 1, 0]
    assert steps.mask().sum(1).tolist() == [4, 4, 3, 4, 2, 2]
    windows = list(steps.windows(4))
    assert [(window.first, len(window.rows)) for window in windows] == [(0, 3), (3, 3)]


def test_large_lanes_are_scored_alone_and_small_ones_together() -> None:
    found = list(scoring_steps([(0, 25), (25, 4), (40, 3), (50, 2), (60, 2)], 10, CPU))
    rows = [(first, steps.rows[steps.mask()].tolist()) for first, steps in found]
    assert rows[:3] == [(0, list(range(10))), (0, list(range(10, 20))), (0, list(range(20, 25)))]
    assert rows[3:] == [(1, [25, 26, 27, 28, 40, 41, 42]), (3, [50, 51, 60, 61])]


@pytest.mark.parametrize("labels", [2, 3])
def test_losses_and_their_slope_are_cross_entropys(labels: int) -> None:
    draws = torch.Generator().manual_seed(0)
    logits = (30 * torch.randn(2, 5, labels, generator=draws, dtype=torch.float64)).requires_grad_()
    y = torch.randint(0, labels, (2, 5), generator=draws)
    weights = torch.randn(2, 5, generator=draws, dtype=torch.float64)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(2, 5)
    (slope,) = torch.autograd.grad(expected, logits, weights)
    found, of = losses_of(logits.detach(), targets(y, labels, torch.float64))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of(weights), slope, rtol=1e-12, atol=1e-12)
    assert torch.equal(predictions(logits.detach()).long(), logits.argmax(-1))


def test_one_number_a_row_stands_for_two_logits() -> None:
    logits = torch.tensor([[[0.3, 1.0], [2.0, -1.0]]])
    y, weights = torch.tensor([[1, 1]]), torch.tensor([[0.2, -0.5]])
    both, of_both = losses_of(logits, targets(y, 2, logits.dtype))
    half = (logits[..., 1] - logits[..., 0]) / 2
    one, of_one = losses_of(half, targets(y, 2, logits.dtype, scale=2.0))
    torch.testing.assert_close(one, both)
    torch.testing.assert_close(of_one(weights), 2 * of_both(weights)[..., 1])
    assert torch.equal(predictions(half), predictions(logits))


def test_modules_that_differ_in_a_setting_are_not_the_same_function() -> None:
    assert same_function(nn.Linear(3, 2), nn.Linear(3, 2))
    assert not same_function(nn.Linear(3, 2), nn.Linear(3, 2, bias=False))
    assert not same_function(nn.LeakyReLU(0.1), nn.LeakyReLU(0.2))
    assert not same_function(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU(), nn.ReLU()))
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    first.mark, second.mark = torch.ones(1), torch.zeros(1)
    assert not same_function(first, second)


def test_memory_is_planned_by_what_a_row_leaves_on_its_way() -> None:
    assert values_per_row(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), numbers(3)) == 6 + 8 + 8 + 2


@pytest.mark.parametrize("x_of", [numbers, categories(5)], ids=["dense", "one-hot"])
def test_a_run_from_a_snapshot_gives_the_same_bits(x_of: Callable[[int], Tensor]) -> None:
    model = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
    longer = Training(rounds=4, batch_size=8, lr=0.2)
    owned = [federation(lambda rows: x_of(rows).float(), seed=seed) for seed in range(2)]
    jobs = [changed(job(owned[seed], model, seed), training=longer) for seed in range(2)]
    whole = {(number, done.snapshot.round): done.snapshot for number, done in StackedEngine().train(jobs)}
    started = [dataclasses.replace(one, start=whole[number, 2]) for number, one in enumerate(jobs)]
    for number, model_then in last(StackedEngine().train(started)).items():
        for name, entry in whole[number, 4].model.items():
            assert torch.equal(model_then[name], entry)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("x_of", "model"),
    [
        (numbers, lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double()),
        (categories(12), lambda: nn.Sequential(nn.Linear(13, 8), nn.GELU(), nn.Linear(8, 2)).double()),
        (images, lambda: CNN((4,)).build((3, 8, 8), 2).double()),
    ],
    ids=["mlp", "one-hot", "cnn"],
)
@pytest.mark.parametrize(
    "algorithm",
    [
        *(ffalm.FFALM(dual_data=where) for where in ("full", "last_batch", "epoch_mean")),
        ffalm.FCFL(minimax_rounds=1),
        ffalm.QFFL(),
    ],
    ids=str,
)
def test_a_gpu_gives_the_cpus_numbers(
    x_of: Callable[[int], Tensor], model: Callable[[], nn.Module], algorithm: Algorithm
) -> None:
    jobs = [changed(job(federation(x_of, seed=seed), model, seed), algorithm=algorithm) for seed in range(2)]
    expected = last(StackedEngine().train(jobs))
    found = last(StackedEngine().train([changed(one, device=torch.device("cuda")) for one in jobs]))
    for number, entries in expected.items():
        for name, entry in entries.items():
            torch.testing.assert_close(found[number][name].cpu(), entry, rtol=1e-9, atol=1e-9)

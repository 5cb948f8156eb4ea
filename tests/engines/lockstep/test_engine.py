"""The lockstep engine gives the loop engine's numbers, for every algorithm that it carries, in one call for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engines.graphed.test_engine import federation
from tests.engines.test_conformance import assert_same_record, by_job
from tests.variants import variants
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import Algorithm
from ffalm.engines import Job, Round, Training
from ffalm.engines.lockstep import LockstepEngine, lane_stack, why_not_lockstep
from ffalm.engines.lockstep.lane_network import LaneNetwork
from ffalm.engines.lockstep.lane_weights import LaneWeights
from ffalm.engines.loop import LoopEngine
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.models import CNN, ResNet18
from ffalm.privacy import Privacy

CLOSE = 1e-9
CARRIED = [algorithm for algorithm in variants() if LockstepEngine.lacks(algorithm) is None]


class Residual(nn.Module):
    """Every kind of layer and function that lanes share, on a few pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.conv, self.norm = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6, momentum=0.3)
        self.skip, self.second = nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6)
        self.alone = nn.BatchNorm2d(6)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.hidden, self.out = nn.Linear(6, 5, bias=False), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(self.stem(x)))
        x = torch.relu(self.skip_of(x) + self.norm(self.conv(x)))
        x = self.alone(x) + self.pool(nn.functional.avg_pool2d(x, 3, stride=1, padding=1)).mean((-2, -1), keepdim=True)
        return self.out(nn.functional.relu(self.hidden(torch.flatten(x.mean((2, 3)), 1))))  # type: ignore[no-any-return]

    def skip_of(self, x: Tensor) -> Tensor:
        return self.second(self.skip(x))  # type: ignore[no-any-return]


class UsedTwice(nn.Module):
    """Normalisations whose results go through a ReLU and elsewhere too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)
        self.second, self.third = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(self.conv(x))
        second = self.second(first)
        summed = self.third(second) + second
        rows = torch.relu(first) + torch.relu(summed) + torch.relu(second + first) + summed
        return self.out(rows.mean((-2, -1)))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "used twice": lambda: UsedTwice().double(),
    "residual": lambda: Residual().double(),
    "cnn": lambda: CNN((4, 6)).build((3, 16, 16), 2).double(),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2)).double(),
    "normalised images": lambda: nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    ).double(),
}


def jobs_of(
    algorithms: list[Algorithm], model: Callable[[], nn.Module] = MODELS["residual"], seeds: int = 1, **training: Any
) -> list[Job]:
    """Algorithms on one federation of images for each seed."""
    plan = Training(**{"rounds": 2, "batch_size": 8, "lr": 0.2, **training})
    jobs = []
    for seed in range(seeds):
        owned = federation((21, 11, 8), pixels=16)
        jobs += [Job.of(one, owned, model, plan, seed, torch.device("cpu")) for one in algorithms]
    return jobs


def assert_same_numbers(jobs: list[Job]) -> None:
    """The engine's models, states and records are the reference's."""
    expected, found = by_job(LoopEngine().train(jobs)), by_job(LockstepEngine().train(jobs))
    assert expected.keys() == found.keys()
    assert expected
    for key, reference in expected.items():
        assert_same_round(found[key], reference)


def assert_same_round(done: Round, reference: Round) -> None:
    assert done.diverged == reference.diverged
    assert list(done.snapshot.model) == list(reference.snapshot.model)
    for name, entry in reference.snapshot.model.items():
        assert entry.dtype == done.snapshot.model[name].dtype
        torch.testing.assert_close(done.snapshot.model[name], entry, rtol=CLOSE, atol=CLOSE, msg=name)
    for name, value in reference.snapshot.state.items():
        torch.testing.assert_close(done.snapshot.state[name], value, rtol=CLOSE, atol=CLOSE, msg=name)
    assert_same_record(done.record, reference.record)


def test_all_algorithms_in_one_call_give_the_reference_numbers() -> None:
    assert len(CARRIED) > 20
    assert_same_numbers(jobs_of(CARRIED))


def test_few_lanes_score_more_rows_at_a_time_in_the_memory_that_all_lanes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[tuple[int, int]] = []
    logits = LaneNetwork.logits

    def noted(self: LaneNetwork, weights: LaneWeights, x: Tensor, training: bool) -> Tensor:
        if not training:
            scored.append((len(weights), len(x)))
        return logits(self, weights, x, training)

    monkeypatch.setattr(LaneNetwork, "logits", noted)
    owned, plan = federation((1100, 12), pixels=8), Training(rounds=1, batch_size=16)
    trained = [ffalm.FairFed(), *(ffalm.FedAvg() for _ in range(5))]
    jobs = [Job.of(one, owned, MODELS["normalised images"], plan, 0, torch.device("cpu")) for one in trained]
    assert_same_numbers(jobs)
    assert [rows for lanes, rows in scored if lanes == 1] == [1024, 76, 12]
    assert max(lanes * rows for lanes, rows in scored) <= 6 * 256


SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {"local_epochs": 2},
    "steps": {"local_steps": 3},
    "full batch": {"batch_size": None},
    "no clip": {"clip": None, "lr": 0.05},
    "some clients": {"participation": 0.5, "rounds": 4, "lr_step": 2},
}
SEVERAL = [
    ffalm.FedAvg(), ffalm.FFALM(dual_data="last_batch"), ffalm.FPFL(), ffalm.FairFed(), ffalm.FFALM(),
    ffalm.FFALM(dual_data="epoch_mean"),
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_way_of_local_training_gives_the_reference_numbers(setting: str) -> None:
    assert_same_numbers(jobs_of(SEVERAL, **SETTINGS[setting]))


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model_gives_the_reference_numbers(model: str) -> None:
    assert_same_numbers(jobs_of(SEVERAL, MODELS[model], seeds=2))


def test_one_run_of_a_convolution_with_one_output_gives_the_reference_numbers() -> None:
    model = lambda: nn.Sequential(nn.Conv2d(3, 1, 3, stride=2), nn.Flatten(), nn.Linear(49, 2)).double()  # noqa: E731
    assert_same_numbers(jobs_of([ffalm.FedAvg()], model))


@pytest.mark.parametrize("head", ["pooled", "fairalm"])
def test_resnet18_gives_the_reference_numbers(head: Any) -> None:
    pixels = 32 if head == "pooled" else 72
    plan, rows = Training(rounds=1, batch_size=4, lr=0.05), federation((6, 3), pixels).clients
    owned = Federation.from_arrays([(one.x, one.y, one.group) for one in rows])
    model = lambda: ResNet18(head).build((3, pixels, pixels), 2).double()  # noqa: E731
    jobs = [Job.of(one, owned, model, plan, 0, torch.device("cpu")) for one in SEVERAL[:2]]
    assert_same_numbers(jobs)


def test_without_held_out_rows_it_gives_the_reference_numbers() -> None:
    bare = [(rows.x, rows.y, rows.group) for rows in federation((12, 9), 16).clients]
    owned = Federation.from_arrays(bare)
    jobs = [replace(job, federation=owned) for job in jobs_of([ffalm.FedAvg(), ffalm.FPFL()])]
    assert_same_numbers(jobs)


def test_a_run_that_diverges_ends_and_the_others_go_on() -> None:
    wild = ffalm.FFALM(dual_lr=1e300, dual_lr_growth=1e9)
    jobs = jobs_of([ffalm.FedAvg(), wild, ffalm.FPFL()], rounds=3)
    assert_same_numbers(jobs)
    found = by_job(LockstepEngine().train(jobs))
    assert any(done.diverged for (number, _), done in found.items() if number == 1)
    assert {number for number, round in found if round == 3} >= {0, 2}


def test_runs_go_on_from_snapshots_as_if_nothing_had_happened() -> None:
    jobs = jobs_of(SEVERAL[:3], rounds=3)
    whole = by_job(LockstepEngine().train(jobs))
    resumed = [replace(job, start=whole[number, 1].snapshot) for number, job in enumerate(jobs)]
    for key, done in by_job(LockstepEngine().train(resumed)).items():
        reference = whole[key]
        assert all(torch.equal(done.snapshot.model[name], value) for name, value in reference.snapshot.model.items())


def test_seeds_and_rounds_are_kept_apart_on_one_federation() -> None:
    (first, second) = jobs_of([ffalm.FedAvg(), ffalm.FPFL()])
    later = by_job(LoopEngine().train([first]))[0, 1].snapshot
    other = replace(second, spec=replace(second.spec, seed=5))
    assert_same_numbers([first, other, second, replace(first, start=later)])


def test_a_snapshot_is_not_written_over_by_later_rounds() -> None:
    kept = [(done, {name: value.clone() for name, value in done.snapshot.model.items()})
            for _, done in LockstepEngine().train(jobs_of(SEVERAL[:2], rounds=3))]  # fmt: skip
    for done, before in kept:
        assert all(torch.equal(done.snapshot.model[name], value) for name, value in before.items())


def test_runs_that_do_not_fit_together_are_computed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Counted(lane_stack.LaneStack):
        def __init__(self, jobs: Any, layers: Any) -> None:
            sizes.append(len(jobs))
            super().__init__(jobs, layers)

    monkeypatch.setattr("ffalm.engines.lockstep.LaneStack", Counted)
    monkeypatch.setattr("ffalm.engines.lockstep.free", lambda device, processes: 1)
    assert_same_numbers(jobs_of(SEVERAL[:2]))
    assert sizes == [1, 1]


def test_sizes_of_batches_are_forgotten_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.engines.lockstep.lane_steps._SIZES_KEPT", 1)
    assert_same_numbers(jobs_of(SEVERAL[:2]))


def test_what_it_cannot_carry_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_of([ffalm.FedAvg()])

    def said(changed: Job) -> str:
        return str(LockstepEngine().refusal(changed))

    assert LockstepEngine().refusal(job) is None
    assert "SCAFFOLD needs more of clients or server" in said(
        replace(job, spec=replace(job.spec, algorithm=ffalm.algorithms()["scaffold"]()))
    )
    adam = replace(job.spec, training=Training(optimizer="adam"))
    assert "trains by plain SGD" in said(replace(job, spec=adam))
    assert "no noise" in said(replace(job, privacy=Privacy(noise=1.0)))
    assert "on a GPU only" in said(replace(job, spec=replace(job.spec, precision="bf16")))
    on_gpu = replace(job.spec, device=torch.device("cuda"))
    assert "use precision 'bf16'" in said(replace(job, spec=on_gpu))
    on_gpu = replace(on_gpu, precision="bf16")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "no products in bfloat16" in said(replace(job, spec=on_gpu))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("ffalm.engines.lockstep.find_spec", lambda name: None)
    assert "needs triton" in said(replace(job, spec=on_gpu))
    with pytest.raises(UserError, match="trains by plain SGD"):
        list(LockstepEngine().train([replace(job, spec=adam)]))


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def _tied() -> nn.Module:
    layer = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Flatten(), nn.Linear(48, 2))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    model[0].requires_grad_(False)
    return model


def _tied_weights() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


UNREADABLE: dict[str, tuple[nn.Module, str]] = {
    "mixes rows": (nn.Sequential(Centred(), nn.Flatten(), nn.Linear(4, 2)), "operation 'mean'"),
    "unknown function": (nn.Sequential(nn.Conv2d(3, 4, 3), Squared()), "operation 'mul'"),
    "dropout": (nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), r"layer '0' (Dropout)"),
    "groups": (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "has groups"),
    "oblong": (nn.Sequential(nn.Conv2d(4, 4, (3, 1))), "not the same in both directions"),
    "padding in words": (nn.Sequential(nn.Conv2d(4, 4, 3, padding="same")), "not the same in both directions"),
    "no running mean": (nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), "normalisation '0'"),
    "no weights": (nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 2, 1)), "normalisation '0'"),
    "used twice": (_tied(), "used twice"),
    "tied weights": (_tied_weights(), "used twice"),
    "frozen": (_frozen(), "frozen"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_models_that_lanes_cannot_share_are_refused(name: str) -> None:
    model, reason = UNREADABLE[name]
    assert reason in str(why_not_lockstep(model, by_kernels=False))


def test_kernels_take_channels_by_sixteens_but_for_the_first_layer() -> None:
    assert why_not_lockstep(ResNet18().build((3, 64, 64), 2), by_kernels=True) is None
    assert why_not_lockstep(CNN((16, 32)).build((3, 64, 64), 2), by_kernels=True) is None
    odd = CNN((16, 24, 32)).build((3, 64, 64), 2)
    assert "convolution '3'" in str(why_not_lockstep(odd, by_kernels=True))
    assert why_not_lockstep(odd, by_kernels=False) is None


def test_a_last_batch_of_one_row_that_batchnorm_cannot_take_is_told_in_a_sentence() -> None:
    model = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(3, 4, 16), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)
    ).double()
    with pytest.raises(UserError, match="BatchNorm cannot train on the single row"):
        list(LockstepEngine().train(jobs_of([ffalm.FedAvg()], model, batch_size=10)))

"""Every engine gives the reference engine's numbers, for every algorithm, however the federation is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from tests.every_feature import EveryFeature, EveryGradient
from tests.variants import variants
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import FCFL, Algorithm
from ffalm.engines import ENGINES, Engine, Job, Round, Training
from ffalm.engines.loop import LoopEngine
from ffalm.engines.stacked import StackedEngine
from ffalm.federation import Federation
from ffalm.privacy import Privacy

FEATURES = 9
CLOSE = 1e-9
UNCOMPARED = {"seconds"}


def part(seed: int, rows: int, group: int | None = None, label: int | None = None, labels: int = 2) -> Any:
    """Random rows, half of the columns one-hot, in which the label depends on the first feature."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=draws, dtype=torch.float64)
    groups = (torch.rand(rows, generator=draws) < 0.4).long()
    y = ((x[:, 0] + 0.4 * groups + 0.5 * torch.randn(rows, generator=draws)).sigmoid() * labels).long()
    hot = nn.functional.one_hot(torch.randint(0, FEATURES - 4, (rows,), generator=draws), FEATURES - 4)
    groups = groups if group is None else torch.full_like(groups, group)
    y = y if label is None else torch.full_like(y, label)
    return torch.cat([x, hot.double()], 1), y.clamp(max=labels - 1), groups


@cache
def federation(seed: int, clients: int = 5, labels: int = 2) -> Federation:
    """Uneven clients; the second lacks a group, the third a label, the fourth is smaller than a batch."""
    sizes = [27, 20, 40, 5, 49, 23][:clients]
    owned = [
        part(100 * seed + i, rows, group=0 if i == 1 else None, label=1 if i == 2 else None, labels=labels)
        for i, rows in enumerate(sizes)
    ]
    return Federation.from_arrays(owned, validation=part(100 * seed + 99, 50, labels=labels))


def mlp() -> nn.Module:
    """What most jobs train."""
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 2)).double()


def jobs_of(
    algorithm: Algorithm,
    model: Callable[[], nn.Module] = mlp,
    seeds: int = 2,
    labels: int = 2,
    **training: Any,
) -> list[Job]:
    """Several seeds, each with a federation of its own, of unequal numbers of clients."""
    plan = Training(**{"rounds": 3, "batch_size": 16, "lr": 0.2, **training})
    return [
        Job.of(algorithm, federation(seed, 5 + seed % 2, labels), model, plan, seed, torch.device("cpu"))
        for seed in range(seeds)
    ]


def by_job(rounds: Iterator[tuple[int, Round]]) -> dict[tuple[int, int], Round]:
    """Rounds by (job, number of the round)."""
    return {(number, done.snapshot.round): done for number, done in rounds}


def assert_same_numbers(engine: str, jobs: list[Job]) -> None:
    """The engine's models, states and records are the reference's."""
    expected, found = by_job(LoopEngine().train(jobs)), by_job(COMPARED[engine]().train(jobs))
    assert expected.keys() == found.keys()
    assert expected
    for key, reference in expected.items():
        done = found[key]
        assert done.diverged == reference.diverged
        assert done.snapshot.model.keys() == reference.snapshot.model.keys()
        for name, entry in reference.snapshot.model.items():
            assert entry.dtype == done.snapshot.model[name].dtype
            torch.testing.assert_close(done.snapshot.model[name], entry, rtol=CLOSE, atol=CLOSE, msg=f"{key} {name}")
        for name, value in reference.snapshot.state.items():
            torch.testing.assert_close(done.snapshot.state[name], value, rtol=CLOSE, atol=CLOSE, msg=f"{key} {name}")
        for kind in ("vectors", "client_vectors"):
            vectors, others = getattr(reference.snapshot, kind), getattr(done.snapshot, kind)
            assert vectors.keys() == others.keys()
            for name, vector in vectors.items():
                assert vector.keys() == others[name].keys()
                for part, value in vector.items():
                    torch.testing.assert_close(others[name][part], value, rtol=CLOSE, atol=CLOSE, msg=f"{key} {name}")
        assert_same_record(done.record, reference.record)


def assert_same_record(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every entry but times is equal, NaN to NaN."""
    assert found.keys() == expected.keys()
    for name in expected.keys() - UNCOMPARED:
        a, b = torch.tensor(found[name], dtype=torch.float64), torch.tensor(expected[name], dtype=torch.float64)
        torch.testing.assert_close(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True, msg=name)


COMPARED: dict[str, type[Engine]] = {**ENGINES, StackedEngine.name: StackedEngine}
ELSEWHERE = ("loop", "graphed", "lockstep", "flower")  # the reference, and engines with conformance tests of their own
others = pytest.mark.parametrize("engine", [name for name in COMPARED if name not in ELSEWHERE])
SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {"rounds": 2, "local_epochs": 2},
    "steps": {"rounds": 2, "local_steps": 3},
    "many steps": {"rounds": 2, "local_steps": 9, "clip": None},
    "full batch": {"rounds": 2, "batch_size": None},
    "some clients": {"participation": 0.5, "rounds": 4, "lr_step": 2},
    "adam": {"rounds": 2, "optimizer": "adam", "lr": 0.01, "local_epochs": 2},
    "momentum": {"rounds": 2, "momentum": 0.9, "lr": 0.05, "weight_decay": 0.01},
}


WITHOUT_TRAINING = ("full batch", "some clients")  # the settings that matter where clients upload gradients
OF_VARIANTS = ("epochs", "some clients")  # besides the defaults of each algorithm, which are tried with all settings
CASES = [
    (setting, algorithm)
    for setting in SETTINGS
    for algorithm in variants()
    if (not algorithm.gradients or setting in WITHOUT_TRAINING)
    and (algorithm == type(algorithm)() or setting in OF_VARIANTS)
]


@others
@pytest.mark.parametrize(("setting", "algorithm"), CASES, ids=str)
def test_every_algorithm_gives_the_reference_numbers(engine: str, algorithm: Algorithm, setting: str) -> None:
    assert_same_numbers(engine, jobs_of(algorithm, **SETTINGS[setting]))


class Residual(nn.Module):
    """Layers and functions that are not in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(FEATURES, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = hidden + nn.functional.gelu(self.second(hidden)) * 0.5
        return self.out(hidden)  # type: ignore[no-any-return]


class Opaque(nn.Module):
    """A module with a frozen and a raw parameter, buffers and a normalisation over each row."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(FEATURES))
        self.frozen = nn.Parameter(torch.rand(FEATURES), requires_grad=False)
        self.register_buffer("shift", torch.rand(FEATURES))
        self.register_buffer("unsaved", torch.rand(1), persistent=False)
        self.register_buffer("count", torch.tensor(3))
        self.norm, self.out = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.shift, Tensor)
        assert isinstance(self.unsaved, Tensor)
        return self.out(self.norm(x * self.scale + self.shift * self.frozen * self.unsaved))  # type: ignore[no-any-return]


def tied() -> nn.Module:
    """Two layers that share their weights."""
    first = nn.Linear(FEATURES, FEATURES)
    second = nn.Linear(FEATURES, FEATURES)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(FEATURES, 2)).double()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(FEATURES, 2).double(),
    "linear without bias": lambda: nn.Sequential(nn.Linear(FEATURES, 2, bias=False)).double(),
    "deep": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(FEATURES, 20), nn.ELU(inplace=True)), nn.Dropout(0.0), nn.Identity(),
        nn.Linear(20, 18, bias=False), nn.ReLU(inplace=True), nn.Linear(18, 2),
    ).double(),
    "functions first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(FEATURES, 2)).double(),
    "residual": lambda: Residual().double(),
    "opaque": lambda: Opaque().double(),
    "tied": tied,
}  # fmt: skip


@others
@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model_gives_the_reference_numbers(engine: str, model: str) -> None:
    assert_same_numbers(engine, jobs_of(ffalm.FFALM(), MODELS[model]))


@others
@pytest.mark.parametrize("algorithm", ["scaffold", "fedprox", "fedadam"])
@pytest.mark.parametrize("model", MODELS)
def test_model_sized_state_of_every_kind_of_model_gives_the_reference_numbers(
    engine: str, algorithm: str, model: str
) -> None:
    assert_same_numbers(engine, jobs_of(ffalm.algorithms()[algorithm](), MODELS[model], rounds=2))


FULL: dict[str, dict[str, Any]] = {
    "some clients": SETTINGS["some clients"],
    "adam": {**SETTINGS["adam"], "clip": None},
    "momentum": SETTINGS["momentum"],
    "no learning rate": {"lr": 0.0},
}


@others
@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("setting", FULL)
def test_an_algorithm_with_every_feature_gives_the_reference_numbers(engine: str, setting: str, logits: bool) -> None:
    assert_same_numbers(engine, jobs_of(EveryFeature(logits), **FULL[setting]))


@pytest.mark.parametrize("model", MODELS)
def test_an_algorithm_with_every_feature_gives_the_reference_numbers_a_client_at_a_time(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMPARED, "stacked", lambda: StackedEngine(1))
    assert_same_numbers("stacked", jobs_of(EveryFeature(), MODELS[model], local_epochs=2))


@pytest.mark.parametrize("privacy", [None, Privacy(2.0)])
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_tied_parameters_stay_tied_through_a_server_step_and_noise(
    engine: type[Engine], privacy: Privacy | None
) -> None:
    jobs = [dataclasses.replace(job, privacy=privacy) for job in jobs_of(ffalm.FedAdam(server_lr=0.1), tied)]
    for done in by_job(engine().train(jobs)).values():
        model = done.snapshot.model
        torch.testing.assert_close(model["0.weight"], model["2.weight"], rtol=0, atol=0)


@others
@pytest.mark.parametrize("model", MODELS)
def test_gradients_instead_of_training_of_every_kind_of_model_give_the_reference_numbers(
    engine: str, model: str
) -> None:
    assert_same_numbers(engine, jobs_of(FCFL(minimax_rounds=1), MODELS[model], rounds=3, participation=0.6))


@others
@pytest.mark.parametrize("logits", [True, False])
def test_gradients_by_logits_or_losses_beside_a_tally_give_the_reference_numbers(engine: str, logits: bool) -> None:
    assert_same_numbers(engine, jobs_of(EveryGradient(logits), participation=0.6, local_epochs=3))


@others
def test_gradients_of_a_client_at_a_time_give_the_reference_numbers(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMPARED, "stacked", lambda: StackedEngine(1))
    assert_same_numbers(engine, jobs_of(FCFL(minimax_rounds=1, constraint="eo", epsilon=0.01)))


@others
@pytest.mark.parametrize("algorithm", ["ffalm", "fpfl", "fcfl"])
def test_three_groups_give_the_reference_numbers(engine: str, algorithm: str) -> None:
    jobs = jobs_of(ffalm.algorithms()[algorithm](), local_epochs=2)
    assert_same_numbers(engine, [three_groups(job) for job in jobs])


def three_groups(job: Job) -> Job:
    """The same job, some rows of group 1 being of a third group."""
    owned = [
        (rows.x, rows.y, torch.where(torch.arange(len(rows)) % 3 == 0, 2 * rows.group, rows.group))
        for rows in job.federation.clients
    ]
    federation = Federation.from_arrays(owned)
    assert federation.task.groups == 3
    spec = dataclasses.replace(job.spec, task=federation.task)
    return dataclasses.replace(job, federation=federation, spec=spec)


@others
@pytest.mark.parametrize("compared", [2, 3])
@pytest.mark.parametrize("algorithm", list(variants()), ids=str)
def test_groups_that_are_not_compared_give_the_reference_numbers(
    engine: str, algorithm: Algorithm, compared: int
) -> None:
    if isinstance(algorithm, ffalm.FairFed) and compared == 3:
        pytest.skip("FairFed compares two groups")
    jobs = [unknown_groups(job, compared) for job in jobs_of(algorithm, seeds=1, rounds=2)]
    assert_same_numbers(engine, jobs)


def unknown_groups(job: Job, compared: int) -> Job:
    """The same job, every fifth row being of a group that is not compared."""
    federation = job.federation
    assert federation.validation is not None
    *owned, held_out = (
        (rows.x, rows.y, torch.where(torch.arange(len(rows)) % 5 == 0, -1, (rows.group + rows.y) % compared))
        for rows in (*federation.clients, federation.validation)
    )
    federation = Federation.from_arrays(owned, validation=held_out, unknown=-1)
    assert (federation.task.groups, federation.task.compared) == (compared + 1, compared)
    spec = dataclasses.replace(job.spec, task=federation.task)
    return dataclasses.replace(job, federation=federation, spec=spec)


@others
@pytest.mark.parametrize(
    "algorithm", [ffalm.FFALM(dual_data="epoch_mean"), ffalm.Reweighing("local"), ffalm.FedGFT("odds")], ids=str
)
def test_more_than_two_labels_give_the_reference_numbers(engine: str, algorithm: Algorithm) -> None:
    model = lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, 3)).double()  # noqa: E731
    assert_same_numbers(engine, jobs_of(algorithm, model, labels=3))


@others
def test_jobs_of_different_kinds_in_one_call_give_the_reference_numbers(engine: str) -> None:
    jobs = [
        *jobs_of(ffalm.FFALM()),
        *jobs_of(ffalm.FedAvg(), MODELS["deep"], rounds=2),
        *jobs_of(ffalm.FFALM(penalty=1.0), clip=None),
    ]
    assert_same_numbers(engine, jobs)


@others
def test_a_job_goes_on_from_a_snapshot_as_if_nothing_had_happened(engine: str) -> None:
    jobs = jobs_of(ffalm.FFALM(), rounds=4)
    whole = by_job(COMPARED[engine]().train(jobs))
    started = [dataclasses.replace(job, start=whole[number, 1 + number].snapshot) for number, job in enumerate(jobs)]
    for key, done in by_job(COMPARED[engine]().train(started)).items():
        for name, entry in whole[key].snapshot.model.items():
            torch.testing.assert_close(done.snapshot.model[name], entry, rtol=CLOSE, atol=CLOSE)
        assert_same_record(done.record, whole[key].record)


@others
def test_a_job_that_diverges_ends_and_leaves_the_others_alone(engine: str) -> None:
    jobs = jobs_of(ffalm.FFALM(), rounds=4)
    lost = by_job(LoopEngine().train(jobs))[0, 1].snapshot
    state = {**lost.state, "dual": torch.tensor(math.inf, dtype=torch.float64)}
    whole = dataclasses.replace(by_job(LoopEngine().train(jobs))[1, 1].snapshot)
    jobs = [
        dataclasses.replace(jobs[0], start=dataclasses.replace(lost, state=state)),
        dataclasses.replace(jobs[1], start=whole),
    ]
    found = by_job(COMPARED[engine]().train(jobs))
    assert [key for key in found if key[0] == 0] == [(0, 2)]
    assert "diverged in round 2" in str(found[0, 2].diverged)
    assert [found[1, number].diverged for number in (2, 3, 4)] == [None] * 3
    assert_same_numbers(engine, jobs[1:])


@others
def test_a_federation_without_validation_is_trained_and_not_scored(engine: str) -> None:
    jobs = jobs_of(ffalm.FedAvg())
    bare = [dataclasses.replace(jobs[0], federation=dataclasses.replace(jobs[0].federation, validation=None)), jobs[1]]
    assert_same_numbers(engine, bare)

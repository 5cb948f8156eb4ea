"""Which engine `auto` is, and why, in words for the run's first line."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import ffalm
from ffalm.engines import Job, Together, Training, choice, choose, why_loop
from ffalm.engines.graphed import GraphedEngine
from ffalm.engines.lockstep import LockstepEngine
from ffalm.engines.stacked.needs import needs_of
from ffalm.errors import UserError
from ffalm.federation import Federation


def job(model: nn.Module | None = None) -> Job:
    draws = torch.Generator().manual_seed(0)
    clients = [(torch.randn(40, 6, generator=draws), *torch.randint(0, 2, (2, 40), generator=draws)) for _ in range(30)]
    built = model or nn.Sequential(nn.Linear(6, 800), nn.ReLU(), nn.Linear(800, 2))
    made = lambda: copy.deepcopy(built)  # noqa: E731
    return Job.of(ffalm.FedAvg(), Federation.from_arrays(clients), made, Training(), 0, torch.device("cpu"))


def with_free(monkeypatch: pytest.MonkeyPatch, left: int | None) -> None:
    monkeypatch.setattr(choice, "free", lambda device, processes: left)


@pytest.mark.parametrize("left", [2**40, None])
def test_a_small_model_is_stacked_where_there_is_memory_or_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, left: int | None
) -> None:
    with_free(monkeypatch, left)
    engine, reason = choose("auto", job(), {Together.CLIENTS: 10})
    assert (engine.name, reason) == ("stacked", "clients and seeds of a small model fit on one tensor")


def test_runs_that_do_not_fit_together_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    one = job()
    with_free(monkeypatch, int(1.3 * needs_of([one] * 3, one.spec.model()).total))
    engine, reason = choose("auto", one, {Together.CLIENTS: 10})
    assert engine.name == "stacked"
    assert "one tensor, in 4 stacks since" in reason
    assert reason.endswith(" MB of memory are free")


def test_a_run_that_does_not_fit_into_a_stack_is_left_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 10**7)
    engine, reason = choose("auto", job())
    assert engine.name == "loop"
    assert "a stack of one run needs" in reason
    assert reason.endswith("and 10.0 MB of memory are free")


def test_a_model_that_cannot_be_stacked_is_left_to_the_loop() -> None:
    engine, reason = choose("auto", job(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))))
    assert engine.name == "loop"
    assert "cannot be stacked: its layer '1' (BatchNorm1d)" in reason


def test_an_engine_that_is_asked_for_is_taken_whatever_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 0)
    engine, reason = choose("stacked", job())
    assert (engine.name, reason) == ("stacked", "as asked")
    assert choose(engine, job()) == (engine, "as given")


def test_what_cannot_be_stacked_is_refused_as_the_engine_is_chosen() -> None:
    with pytest.raises(UserError, match=r"Sequential cannot be stacked: its layer '1' \(BatchNorm1d\).*engine='loop'"):
        choose("stacked", job(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))))
    with pytest.raises(UserError, match="does not compute in bfloat16"):
        choose("stacked", replace(job(), spec=replace(job().spec, precision="bf16")))


def test_a_private_run_of_a_small_model_is_stacked() -> None:
    engine, _ = choose("auto", replace(job(), privacy=ffalm.Privacy(noise=1.0)))
    assert engine.name == "stacked"


def test_an_engine_that_lacks_what_an_algorithm_asks_of_clients_is_refused_and_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ffalm.algorithms()["fcfl"]()
    given = job(nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    gradients = replace(given, spec=replace(given.spec, algorithm=asked))
    monkeypatch.setattr(choice, "why_not_graphed", lambda model, device: None)
    assert choose("auto", given)[0].name == "graphed"
    engine, reason = choose("auto", gradients)
    assert (engine.name, reason) == ("loop", "convolutions, and clients upload gradients instead of training")
    assert gradients.spec.training.batch_size is None
    assert why_loop(asked, given) == reason and why_loop(ffalm.FedAvg(), given) is None
    assert "FCFL upload gradients instead of training" in str(GraphedEngine.lacks(asked))


def test_gradients_are_no_reason_for_loop_where_no_engine_would_be_faster() -> None:
    images = job(nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    fcfl = ffalm.algorithms()["fcfl"]()
    assert why_loop(fcfl, images) is None and why_loop(fcfl, job()) is None


def test_several_runs_of_one_seed_take_their_steps_together_where_all_algorithms_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = job(nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    monkeypatch.setattr(choice, "why_not_graphed", lambda model, device: None)
    monkeypatch.setattr(LockstepEngine, "refusal", lambda self, job: None)

    def chosen(runs: int, *algorithms: ffalm.Algorithm) -> str:
        return choose("auto", given, {Together.SEED: runs, Together.CLIENTS: 9}, algorithms)[0].name

    assert [chosen(runs, ffalm.FedAvg(), ffalm.FPFL()) for runs in (1, 3, 4, 28)] == [
        "graphed", "graphed", "lockstep", "lockstep",
    ]  # fmt: skip
    assert chosen(28, ffalm.FedAvg(), ffalm.algorithms()["scaffold"]()) == "graphed"
    monkeypatch.setattr(LockstepEngine, "refusal", lambda self, job: "No.")
    assert chosen(28, ffalm.FedAvg()) == "graphed"


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UserError, match="engine 'fast'"):
        choose("fast", job())

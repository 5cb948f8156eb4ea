"""How a study is cut into tasks, and from where tasks resume after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ffalm.algorithms import Algorithm
from ffalm.config import parse
from ffalm.engines import Engine, Job, Round, Together, choose
from ffalm.engines.loop import LoopEngine
from ffalm.errors import UserError
from ffalm.models import CNN, MLP
from ffalm.simulation import ArchitectureFactory, placed
from ffalm.studies import execution
from ffalm.studies.execution import _calls, execute, plan_execution, resumable
from ffalm.studies.grid import plans, run_of
from ffalm.system import hardware

SMALL: dict[str, Any] = {"data": {"source": "census", "rows": 600}, "partition": {"clients": 3, "alpha": [1.0, 5.0]}}


def test_runs_that_can_be_computed_together_are_split_only_to_keep_processes_busy() -> None:
    grid = plans(parse({**SMALL, "seeds": [0, 1, 2], "algorithms": {"fedavg": {}}}))
    assert [len(task) for task in _calls(grid, together=Together.NONE, processes=2)] == [1] * 6
    assert [len(task) for task in _calls(grid, together=Together.CLIENTS, processes=2)] == [3, 3]
    assert [len(task) for task in _calls(grid, together=Together.CLIENTS, processes=4)] == [2, 2, 1, 1]
    tasks = _calls(grid, together=Together.CLIENTS, processes=64)
    assert sorted(plan.folder_name for task in tasks for plan in task) == sorted(plan.folder_name for plan in grid)


def test_runs_that_differ_in_settings_of_the_server_alone_are_computed_together() -> None:
    knobs = {f"l-{value}": {"name": "lagrangian", "tolerance": value} for value in (0.0, 0.05, 0.1)}
    other = {"trained": {"name": "lagrangian", "measured": "train"}}
    grid = plans(parse({**SMALL, "partition": {}, "seeds": [0, 1], "algorithms": {**knobs, **other}}))
    assert [len(task) for task in _calls(grid, together=Together.CLIENTS, processes=1)] == [6, 2]
    assert [len(task) for task in _calls(grid, together=Together.CLIENTS, processes=2)] == [3, 3, 2]


def test_algorithms_of_one_seed_and_skew_are_computed_together_where_an_engine_takes_steps_for_all_of_them() -> None:
    several: dict[str, Any] = {"fedavg": {}, "fpfl": {}, "ffalm": {}}
    tasks = _calls(plans(parse({**SMALL, "seeds": [0, 1], "algorithms": several})), Together.SEED, processes=1)
    assert [len(task) for task in tasks] == [3, 3, 3, 3]
    assert all(len({(plan.alpha, plan.seed) for plan in task}) == 1 for task in tasks)


def test_memory_is_planned_for_as_many_processes_as_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def chosen(name: str, job: Job, together: dict[Together, int], algorithms: list[Algorithm]) -> tuple[Engine, str]:
        asked.append((job.processes, together[Together.CLIENTS]))
        return choose(name, job, together, algorithms)

    monkeypatch.setattr(execution, "choose", chosen)
    for workers in (1, 3, 64):
        machine = {"workers": workers, "device": "cpu"}
        plan_execution(parse({**SMALL, **machine, "seeds": [0, 1, 2], "algorithms": {"fedavg": {}}}))
    assert asked == [(1, 3), (3, 2), (6, 1)]


def test_small_models_of_tables_are_spread_over_the_cores_even_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(hardware, "cores", lambda: 4)
    config = parse({**SMALL, "seeds": [0, 1], "algorithms": {"fedavg": {}}})
    assert plan_execution(config).devices == ["cpu"] * 4
    assert run_of(config, plans(config)[0]).jobs[0].spec.device.type == "cpu"


def test_auto_leaves_large_models_images_and_models_of_users_to_the_gpu() -> None:
    assert placed("auto", ArchitectureFactory(MLP(), (100,), 2)) == "cpu"
    assert placed("cuda", ArchitectureFactory(MLP(), (100,), 2)) == "cuda"
    assert placed("auto", ArchitectureFactory(MLP(hidden=(1000, 1000)), (100,), 2)) == "auto"
    assert placed("auto", ArchitectureFactory(CNN(), (3, 8, 8), 2)) == "auto"
    assert placed("auto", lambda: nn.Linear(4, 2)) == "auto"


def test_runs_know_how_many_processes_share_their_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = parse({**SMALL, "workers": 2, "device": "cpu", "algorithms": {"fedavg": {}}})
    spread = plan_execution(config)
    known: list[int] = []

    class Noting(LoopEngine):
        def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
            known.extend(job.processes for job in jobs)
            raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        execute(config, tmp_path, replace(spread.tasks[0], engine=Noting()), spread, lambda plan, record: None, "cpu")
    assert known == [2]


def test_what_cannot_run_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match="takes images"):
        plan_execution(parse({**SMALL, "model": {"name": "cnn"}, "algorithms": {"fedavg": {}}}))


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ([[0]], [0]),
        ([[0, 6, 7]], [7]),
        ([[0, 6, 7], [0, 6, 7]], [7, 7]),
        ([[0, 6, 7], [0, 5, 6]], [6, 6]),
        ([[0, 1], [0]], [0, 0]),
        ([[0, 6, 7], [0, 2, 3]], [7, 3]),  # the second diverged in round 4 and is on its own since
        ([[0, 6, 7], [0, 5, 6], [0, 2, 3]], [6, 6, 3]),
        ([], []),
    ],
)
def test_runs_computed_together_go_on_from_a_common_round(saved: list[list[int]], expected: list[int]) -> None:
    assert resumable(saved) == expected


def test_where_a_checkpoint_is_damaged_all_runs_of_a_task_go_back_to_one_that_all_have() -> None:
    assert resumable([[0, 4, 5], [0, 4]], damaged=True) == [4, 4]
    assert resumable([[0, 5, 6], [0, 4], [0, 4, 5]], damaged=True) == [0, 0, 0]
    assert resumable([], damaged=True) == []

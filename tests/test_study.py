"""The grid of runs, how it is cut into tasks, and where tasks go on after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ffalm
from ffalm import study
from ffalm.config import parse, settings_of
from ffalm.engines import Engine, Job, Round, choose
from ffalm.engines.loop import LoopEngine
from ffalm.errors import UserError
from ffalm.study import _tasks, execute, fitting, job_of, layout, left_out, plans, resumable

SMALL: dict[str, Any] = {"data": {"source": "census", "rows": 600}, "partition": {"clients": 3, "alpha": [1.0, 5.0]}}


def test_the_grid_runs_over_skews_then_algorithms_then_seeds() -> None:
    grid = plans(parse({**SMALL, "seeds": [4, 2], "algorithms": {"fedavg": {}, "fpfl": {}}}))
    assert [plan.folder_name for plan in grid][:5] == [
        "fedavg-alpha-1-seed-4",
        "fedavg-alpha-1-seed-2",
        "fpfl-alpha-1-seed-4",
        "fpfl-alpha-1-seed-2",
        "fedavg-alpha-5-seed-4",
    ]
    assert len(grid) == 8


def test_skews_that_look_alike_when_rounded_have_folders_of_their_own() -> None:
    config = {**SMALL, "partition": {"clients": 3, "alpha": [1000000.0, 1000001.0]}, "algorithms": {"fedavg": {}}}
    assert len({plan.folder_name for plan in plans(parse(config))}) == 2


def test_a_partition_without_skew_is_run_once_whatever_the_alphas() -> None:
    config = {**SMALL, "partition": {"kind": "iid", "alpha": [1.0, 5.0]}, "algorithms": {"fedavg": {}}}
    assert [plan.folder_name for plan in plans(parse(config))] == ["fedavg-seed-0"]


def test_runs_that_can_be_computed_together_are_split_only_to_keep_processes_busy() -> None:
    grid = plans(parse({**SMALL, "seeds": [0, 1, 2], "algorithms": {"fedavg": {}}}))
    assert [len(task) for task in _tasks(grid, together=False, processes=2)] == [1] * 6
    assert [len(task) for task in _tasks(grid, together=True, processes=2)] == [3, 3]
    assert [len(task) for task in _tasks(grid, together=True, processes=4)] == [2, 1, 2, 1]
    tasks = _tasks(grid, together=True, processes=64)
    assert sorted(plan.folder_name for task in tasks for plan in task) == sorted(plan.folder_name for plan in grid)


def test_memory_is_planned_for_as_many_processes_as_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def chosen(name: str, job: Job, together: int) -> tuple[Engine, str]:
        asked.append((job.processes, together))
        return choose(name, job, together)

    monkeypatch.setattr(study, "choose", chosen)
    for workers in (1, 3, 64):
        layout(parse({**SMALL, "seeds": [0, 1, 2], "workers": workers, "device": "cpu", "algorithms": {"fedavg": {}}}))
    assert asked == [(1, 3), (3, 2), (6, 1)]


def test_runs_know_how_many_processes_share_their_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = parse({**SMALL, "workers": 2, "device": "cpu", "algorithms": {"fedavg": {}}})
    spread = layout(config)
    known: list[int] = []

    class Noting(LoopEngine):
        def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
            known.extend(job.processes for job in jobs)
            raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        execute(config, tmp_path, spread.tasks[0], replace(spread, engine=Noting()), lambda plan, record: None, "cpu")
    assert known == [2]


def test_what_cannot_run_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match="takes images"):
        layout(parse({**SMALL, "model": {"name": "cnn"}, "algorithms": {"fedavg": {}}}))


def with_four(**more: Any) -> Any:
    return parse({**SMALL, "algorithms": {name: {} for name in ("fedavg", "fairfed", "fpfl", "ffalm")}, **more})


def test_a_study_leaves_out_what_nobody_named_and_cannot_take_the_data_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = with_four(privacy={"noise": 1.0})
    assert fitting(config, {"fairfed", "ffalm"}) == config
    monkeypatch.setattr(ffalm.FairFed, "start", _refusing("FairFed wants quiet: turn the noise off."))
    monkeypatch.setattr(ffalm.FPFL, "start", _refusing("FPFL is tired."))
    fitted = fitting(config, {"fedavg", "fairfed", "fpfl"})
    assert [contender.key for contender in fitted.contenders] == ["fedavg", "ffalm"]
    assert left_out(fitted) == [
        "Left out of the usual algorithms: FairFed wants quiet (turn the noise off); FPFL is tired."
    ]
    assert left_out(config) == []
    assert parse(settings_of(fitted)) == fitted
    with pytest.raises(UserError, match="FPFL is tired"):
        layout(fitting(config, {"fedavg", "fairfed"}))
    monkeypatch.undo()
    assert left_out(fitted) == []  # as on other data, which they would take


def test_a_study_of_which_nothing_would_be_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffalm.FedAvg, "start", _refusing("FedAvg is tired."))
    with pytest.raises(UserError, match="FedAvg is tired"):
        fitting(parse({**SMALL, "algorithms": {"fedavg": {}}}), {"fedavg"})


def _refusing(why: str) -> Any:
    def start(self: ffalm.Algorithm, counts: torch.Tensor) -> dict[str, torch.Tensor]:
        raise UserError(why)

    return start


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


def test_each_seed_can_draw_its_own_data() -> None:
    settings = {**SMALL, "seeds": [0, 1], "algorithms": {"fedavg": {}}}
    tests = [
        [job_of(config, plan).federation.test for plan in plans(config)[:2]]
        for config in (parse(settings), parse({**settings, "fresh_data": True}))
    ]
    assert tests[0][0] is not None
    assert torch.equal(tests[0][0].x, tests[0][1].x)  # type: ignore[union-attr]
    assert not torch.equal(tests[1][0].x, tests[1][1].x)  # type: ignore[union-attr]
    assert torch.equal(tests[0][0].x, tests[1][0].x)  # type: ignore[union-attr]

"""A study with an algorithm that only `loop` can compute: the others keep the fast engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

import ffalm
from ffalm.algorithms.registry import _REGISTERED
from ffalm.config import StudyConfig, parse
from ffalm.engines import choice
from ffalm.errors import UserError
from ffalm.studies.execution import ExecutionPlan, plan_execution
from ffalm.studies.grid import plans, run_folder
from ffalm.studies.study import compute_study

SMALL: dict[str, Any] = {
    "data": {"source": "census", "rows": 600},
    "partition": {"clients": 3},
    "seeds": [0, 1],
    "device": "cpu",
    "training": {"rounds": 3},
    "workers": 1,
}


@dataclass(frozen=True)
class OneClient(ffalm.Algorithm):
    """A mean over all that it is given, and so right for one client at a time."""

    name: ClassVar[str] = "one-client"
    title: ClassVar[str] = "One client"

    def objective(self, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
        """The mean loss of the batch."""
        return batch.losses.mean()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    ffalm.register(OneClient)
    yield
    del _REGISTERED["one-client"]


def study(*names: str, **settings: Any) -> StudyConfig:
    return parse({**SMALL, "algorithms": {name: {} for name in names}, **settings})


def calls(planned: ExecutionPlan) -> list[tuple[str, list[str]]]:
    return [(task.engine.name, [plan.folder_name for plan in task.runs]) for task in planned.tasks]


def test_only_the_algorithm_that_needs_it_is_computed_by_loop() -> None:
    alone, together = (
        [f"one-client-alpha-5-seed-{seed}" for seed in (0, 1)],
        [f"fedavg-alpha-5-seed-{seed}" for seed in (0, 1)],
    )
    planned = plan_execution(study("one-client", "fedavg"))
    assert calls(planned) == [("stacked", together), ("loop", alone[:1]), ("loop", alone[1:])]
    assert planned.engines.startswith(
        "stacked (clients and seeds of a small model fit on one tensor; One client by loop: "
    )
    assert "The objective of One client" in planned.engines


def test_several_processes_begin_with_what_takes_longest() -> None:
    planned = plan_execution(study("fedavg", "one-client", workers=2))
    assert [name for name, _ in calls(planned)] == ["loop", "loop", "stacked", "stacked"]
    assert planned.processes == 2


def test_a_study_of_such_algorithms_alone_says_why_it_is_slow() -> None:
    planned = plan_execution(study("one-client"))
    assert {name for name, _ in calls(planned)} == {"loop"}
    assert planned.engines.startswith("loop (The objective of One client")


def test_where_loop_computes_everything_no_algorithm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "free", lambda device, processes: 10**5)
    planned = plan_execution(study("fedavg", "one-client"))
    assert {name for name, _ in calls(planned)} == {"loop"}
    assert planned.engines.startswith("loop (a stack of one run needs") and "One client" not in planned.engines


def test_an_engine_that_is_asked_for_must_take_every_algorithm() -> None:
    with pytest.raises(UserError, match="The objective of One client"):
        plan_execution(study("fedavg", "one-client", engine="stacked"))
    assert {name for name, _ in calls(plan_execution(study("fedavg", "one-client", engine="loop")))} == {"loop"}


def weights_in(folder: Path, config: StudyConfig) -> dict[str, bytes]:
    found = {plan.folder_name: run_folder(config, folder, plan).path for plan in plans(config)}
    return {name: (path / "model.safetensors").read_bytes() for name, path in found.items()}


def test_each_algorithm_has_the_model_that_its_engine_gives_alone(tmp_path: Path) -> None:
    both = study("fedavg", "one-client")
    compute_study(both, tmp_path / "both")
    fast, slow = study("fedavg"), study("one-client", engine="loop")
    compute_study(fast, tmp_path / "fast")
    compute_study(slow, tmp_path / "slow")
    expected = weights_in(tmp_path / "fast", fast) | weights_in(tmp_path / "slow", slow)
    assert weights_in(tmp_path / "both", both) == expected


class Stopped(BaseException):
    """The process ends here."""


def test_a_resumed_study_keeps_both_engines_even_if_memory_is_short_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = study("fedavg", "one-client")
    whole = compute_study(config, tmp_path / "whole")

    def stop(plan: Any, record: Any) -> None:
        if plan.entry.key == "one-client":
            raise Stopped

    with pytest.raises(Stopped):
        compute_study(config, tmp_path / "cut", on_round=stop)
    monkeypatch.setattr(choice, "free", lambda device, processes: 10**5)
    resumed = compute_study(config, tmp_path / "cut", existing="resume")
    assert weights_in(tmp_path / "cut", config) == weights_in(tmp_path / "whole", config)
    assert (resumed.record.engine, whole.record.engine) == ("stacked", "stacked")
    assert [run.test for run in resumed.results] == [run.test for run in whole.results]

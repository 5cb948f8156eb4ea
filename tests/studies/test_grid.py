"""The grid of runs, and which algorithms are left out of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ffalm
from ffalm.config import parse
from ffalm.errors import UserError
from ffalm.outcome import LeftOut
from ffalm.studies.execution import plan_execution
from ffalm.studies.grid import _state_of_files, drop_incompatible, forget_changed_data, plans, run_of

SETTINGS: dict[str, Any] = {"seeds": 1, "clients": 2, "rounds": 1, "target": None, "engine": "loop", "model": "linear"}
SMALL: dict[str, Any] = {"data": {"source": "census", "rows": 600}, "partition": {"clients": 3, "alpha": [1.0, 5.0]}}


def test_a_study_reads_a_file_that_has_changed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(count: int) -> int:
        lines = [f"{number},{'mf'[number % 2]},{number // 2 % 2}" for number in range(count)]
        Path("loans.csv").write_text("\n".join(["score,sex,paid", *lines]))
        study = ffalm.compare("loans.csv", "fedavg", label="paid", group="sex", favourable=1, **SETTINGS)
        return sum(np.array(study.results[0].confusion).ravel())

    monkeypatch.chdir(tmp_path)
    assert [rows(200), rows(300)] == [40, 60]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")  # where the same name is another file
    assert rows(400) == 80


def test_files_in_the_folder_of_a_source_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "faces").mkdir()
    (tmp_path / "adult.data").write_text("39, State-gov")
    source = SimpleNamespace(root=str(tmp_path))
    states = [_state_of_files(source)]
    (tmp_path / "adult.data").write_text("39, State-gov, Bachelors")
    states.append(_state_of_files(source))
    (tmp_path / "faces" / "1_0_0.jpg").touch()
    states.append(_state_of_files(source))
    assert states[0] != states[1] != states[2] == _state_of_files(source)


def test_another_thread_may_read_data_while_a_study_looks_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"first": [()], "second": [()]}

    def of_a_file(source: str) -> list[tuple[Any, ...]]:
        states[f"{source}, of another thread"] = [()]
        return [()]

    monkeypatch.setattr("ffalm.studies.grid._states_when_read", states)
    monkeypatch.setattr("ffalm.studies.grid._state_of_files", of_a_file)
    forget_changed_data()
    assert len(states) == 4


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


def with_four(**more: Any) -> Any:
    return parse({**SMALL, "algorithms": {name: {} for name in ("fedavg", "fairfed", "fpfl", "ffalm")}, **more})


def test_a_study_leaves_out_what_nobody_named_and_cannot_take_the_data_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = with_four(privacy={"noise": 1.0})
    assert drop_incompatible(config, {"fairfed", "ffalm"}) == (config, [])
    monkeypatch.setattr(ffalm.FairFed, "start", _refusing("FairFed wants quiet: turn the noise off."))
    monkeypatch.setattr(ffalm.FPFL, "start", _refusing("FPFL is tired."))
    fitted, left_out = drop_incompatible(config, {"fedavg", "fairfed", "fpfl"})
    assert [entry.key for entry in fitted.entries] == ["fedavg", "ffalm"]
    assert left_out == [
        LeftOut("FairFed", "FairFed wants quiet: turn the noise off."),
        LeftOut("FPFL", "FPFL is tired."),
    ]
    assert parse(fitted.to_plain()) == fitted
    with pytest.raises(UserError, match="FPFL is tired"):
        plan_execution(drop_incompatible(config, {"fedavg", "fairfed"})[0])


def test_a_study_of_which_nothing_would_be_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffalm.FedAvg, "start", _refusing("FedAvg is tired."))
    with pytest.raises(UserError, match="FedAvg is tired"):
        drop_incompatible(parse({**SMALL, "algorithms": {"fedavg": {}}}), {"fedavg"})


def _refusing(why: str) -> Any:
    def start(self: ffalm.Algorithm, *_: object) -> dict[str, torch.Tensor]:
        raise UserError(why)

    return start


def test_each_seed_can_draw_its_own_data() -> None:
    settings = {**SMALL, "seeds": [0, 1], "algorithms": {"fedavg": {}}}
    tests = [
        [run_of(config, plan).jobs[0].federation.test for plan in plans(config)[:2]]
        for config in (parse(settings), parse({**settings, "fresh_data": True}))
    ]
    assert tests[0][0] is not None
    assert torch.equal(tests[0][0].x, tests[0][1].x)  # type: ignore[union-attr]
    assert not torch.equal(tests[1][0].x, tests[1][1].x)  # type: ignore[union-attr]
    assert torch.equal(tests[0][0].x, tests[1][0].x)  # type: ignore[union-attr]

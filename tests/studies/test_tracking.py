"""Rounds in TensorBoard's and MLflow's own files, where these libraries are installed."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ffalm.config import entry_of
from ffalm.errors import UserError
from ffalm.outcome import Record
from ffalm.studies.grid import RunPlan
from ffalm.studies.tracking import TRACKERS, check_tracker, tracked

PLANS = [RunPlan(entry_of(name, {}), 5.0, seed, True) for name, seed in (("fedavg", 0), ("ffalm", 1))]
ROUNDS: list[Record] = [
    {"round": 1, "accuracy": 0.5, "dpd": math.nan, "weights": [0.5, 0.5]},
    {"round": 2, "accuracy": 0.75, "dpd": 0.25, "weights": [0.5, 0.5]},
]


def record_with(name: str, folder: Path) -> None:
    with tracked(name, folder, len(ROUNDS)) as tracker:
        assert tracker is not None
        for record in ROUNDS:
            for plan in PLANS:
                tracker(plan, record)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_finds_every_run(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    record_with("tensorboard", tmp_path)
    for plan in PLANS:
        found = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / plan.folder_name)).Reload()
        assert [(one.step, one.value) for one in found.Scalars("accuracy")] == [(1, 0.5), (2, 0.75)]
        assert [one.step for one in found.Scalars("dpd")] == [2]
        assert set(found.Tags()["scalars"]) == {"accuracy", "dpd"}


@pytest.mark.filterwarnings("ignore")
def test_mlflow_finds_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which newer versions ask for
    record_with("mlflow", tmp_path)
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("ffalm").experiment_id])
    assert {run.info.run_name for run in runs} == {plan.title for plan in PLANS}
    assert {run.info.status for run in runs} == {"FINISHED"}
    history = client.get_metric_history(runs[0].info.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 0.75)]


@pytest.mark.filterwarnings("ignore")
def test_runs_of_mlflow_say_how_they_ended_and_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    def runs_after(server: str, end: BaseException | None, *records: Record) -> list[tuple[str, list[int]]]:
        """The status and rounds of each run on the server after a study that recorded these rounds and ended so."""
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / server).as_uri())
        with suppress(KeyboardInterrupt, ValueError), tracked("mlflow", tmp_path, len(ROUNDS)) as tracker:
            assert tracker is not None
            for record in records:
                tracker(PLANS[0], record)
            if end is not None:
                raise end
        client = mlflow.MlflowClient()
        found = client.search_runs([client.get_experiment_by_name("ffalm").experiment_id])
        rounds = [client.get_metric_history(run.info.run_id, "accuracy") for run in found]
        return [(run.info.status, [one.step for one in own]) for run, own in zip(found, rounds, strict=True)]

    assert runs_after("first", KeyboardInterrupt(), ROUNDS[0]) == [("KILLED", [1])]
    assert runs_after("first", ValueError(), ROUNDS[0]) == [("FAILED", [1, 1])]
    assert runs_after("first", KeyboardInterrupt(), ROUNDS[1]) == [("FINISHED", [1, 1, 2])]
    assert runs_after("second", None, ROUNDS[1]) == [("FINISHED", [2])]  # a server that does not know the run
    assert runs_after("third", None, ROUNDS[0]) == [("FAILED", [1])]  # a run that diverged


@pytest.mark.filterwarnings("ignore")
def test_mlflow_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for address in ("http://127.0.0.1:9", "nothing://here"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(UserError, match=r"MLflow cannot record the rounds .*: check MLFLOW_TRACKING_URI"):
            record_with("mlflow", tmp_path)


@pytest.mark.parametrize("name", TRACKERS)
def test_without_its_library_a_tracker_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'ffalm\[track\]'"):
        check_tracker(name)


def test_no_tracker_is_none_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    with tracked(None, tmp_path, 2) as tracker:
        assert tracker is None
    with pytest.raises(UserError, match="did you mean 'mlflow'"):
        check_tracker("mlflo")

"""Rounds recorded by an experiment tracker, TensorBoard or MLflow: one of its runs for each run of a study."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ffalm.errors import UserError, look_up, require
from ffalm.outcome import Record
from ffalm.studies.grid import RunPlan
from ffalm.system.files import json_text, read_json, write_atomic

_EXPERIMENT = "ffalm"


class TensorBoardTracker:
    """Event files in the folder `tensorboard` of the study: `tensorboard --logdir FOLDER/tensorboard`."""

    def __init__(self, folder: Path, rounds: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder, self._writer = folder / "tensorboard", SummaryWriter
        self._writers: dict[RunPlan, Any] = {}

    def __call__(self, plan: RunPlan, record: Record) -> None:
        if plan not in self._writers:
            self._writers[plan] = self._writer(str(self._folder / plan.folder_name))
        for name, value in _numbers(record).items():
            self._writers[plan].add_scalar(name, value, record["round"])

    def close(self, unfinished: str) -> None:
        """Close the event files; these say nothing of how a run ended."""
        for writer in self._writers.values():
            writer.close()


class MLflowTracker:
    """Runs of the experiment "ffalm" on the server that MLflow's own settings name (MLFLOW_TRACKING_URI).

    The study's folder keeps their ids in `mlflow.json`, so that a study that is resumed continues them.
    """

    def __init__(self, folder: Path, rounds: int) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._folder, self._metric, self._file = folder, Metric, folder / "mlflow.json"
        self._rounds = rounds
        self._known: dict[str, str] = read_json(self._file) if self._file.exists() else {}
        self._runs: dict[RunPlan, str] = {}  # that have not ended
        with _reached():
            self._client = MlflowClient()
            known = self._client.get_experiment_by_name(_EXPERIMENT)
            self._experiment = self._client.create_experiment(_EXPERIMENT) if known is None else known.experiment_id

    def __call__(self, plan: RunPlan, record: Record) -> None:
        metrics = [self._metric(name, value, 0, record["round"]) for name, value in _numbers(record).items()]
        with _reached():
            if plan not in self._runs:
                self._runs[plan] = self._continued(plan) or self._created(plan)
            self._client.log_batch(self._runs[plan], metrics=metrics)
            if record["round"] == self._rounds:
                self._client.set_terminated(self._runs.pop(plan))

    def _continued(self, plan: RunPlan) -> str | None:
        """The run that recorded earlier rounds; None if there is none on this server."""
        from mlflow.exceptions import MlflowException

        known = self._known.get(plan.folder_name)
        if known is None:
            return None
        try:
            self._client.update_run(known, status="RUNNING")
        except MlflowException:  # of another server, or deleted
            return None
        return known

    def _created(self, plan: RunPlan) -> str:
        """A new run, whose id is kept."""
        facts = {"algorithm": plan.entry.label, "seed": str(plan.seed), "folder": str(self._folder)}
        made: str = self._client.create_run(self._experiment, run_name=plan.title, tags=facts).info.run_id
        self._known[plan.folder_name] = made
        write_atomic(self._file, json_text(self._known))
        return made

    def close(self, unfinished: str) -> None:
        """End the runs that lack their last round, with the status `unfinished`."""
        with _reached():
            for run in self._runs.values():
                self._client.set_terminated(run, status=unfinished)


@contextmanager
def _reached() -> Iterator[None]:
    """Turn MLflow's errors, such as an unreachable server, into a sentence."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise UserError(
            f"MLflow cannot record the rounds ({str(error).splitlines()[0].rstrip('.')}): check MLFLOW_TRACKING_URI, "
            "or leave --track out. The rounds computed so far are kept: continue with --resume."
        ) from None


Tracker = TensorBoardTracker | MLflowTracker
"""A listener to the rounds of a study."""

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoardTracker, "mlflow": MLflowTracker}


def check_tracker(name: str | None) -> None:
    """Refuse an unknown tracker, or one whose library is missing, before anything is computed."""
    if name is not None:
        look_up("tracker", name, TRACKERS)
        found = importlib.util.find_spec(name) is not None
        require(found, f"--track {name} needs the library {name}: pip install 'ffalm[track]'.")


@contextmanager
def tracked(name: str | None, folder: Path, rounds: int) -> Iterator[Tracker | None]:
    """The tracker of a study of so many rounds in this folder, closed at the end whatever happens; None without a name.

    A run that ends before its last round has failed (it diverged, or an error ended the study), or was killed with the
    study, by Ctrl-C or a signal.
    """
    if name is None:
        yield None
        return
    tracker, unfinished = look_up("tracker", name, TRACKERS)(folder, rounds), "FAILED"
    try:
        yield tracker
    except KeyboardInterrupt:
        unfinished = "KILLED"
        raise
    finally:
        tracker.close(unfinished)


def _numbers(record: Record) -> dict[str, float]:
    """The numbers of a round that a tracker can draw: finite ones, without lists."""
    return {
        name: float(value)
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }

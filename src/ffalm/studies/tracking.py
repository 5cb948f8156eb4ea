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

_EXPERIMENT = "ffalm"


class TensorBoardTracker:
    """Event files in the folder `tensorboard` of the study: `tensorboard --logdir FOLDER/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder, self._writer = folder / "tensorboard", SummaryWriter
        self._writers: dict[RunPlan, Any] = {}

    def __call__(self, plan: RunPlan, record: Record) -> None:
        if plan not in self._writers:
            self._writers[plan] = self._writer(str(self._folder / plan.folder_name))
        for name, value in _numbers(record).items():
            self._writers[plan].add_scalar(name, value, record["round"])

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()


class MLflowTracker:
    """Runs of the experiment "ffalm" on the server that MLflow's own settings name (MLFLOW_TRACKING_URI)."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._folder, self._metric = folder, Metric
        self._runs: dict[RunPlan, str] = {}
        with _reached():
            self._client = MlflowClient()
            known = self._client.get_experiment_by_name(_EXPERIMENT)
            self._experiment = self._client.create_experiment(_EXPERIMENT) if known is None else known.experiment_id

    def __call__(self, plan: RunPlan, record: Record) -> None:
        metrics = [self._metric(name, value, 0, record["round"]) for name, value in _numbers(record).items()]
        with _reached():
            if plan not in self._runs:
                facts = {"algorithm": plan.entry.label, "seed": str(plan.seed), "folder": str(self._folder)}
                made = self._client.create_run(self._experiment, run_name=plan.title, tags=facts)
                self._runs[plan] = made.info.run_id
            self._client.log_batch(self._runs[plan], metrics=metrics)

    def close(self) -> None:
        """End the runs."""
        with _reached():
            for run in self._runs.values():
                self._client.set_terminated(run)


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
def tracked(name: str | None, folder: Path) -> Iterator[Tracker | None]:
    """The tracker of a study in this folder, closed at the end whatever happens; None if no name is given."""
    if name is None:
        yield None
        return
    tracker = look_up("tracker", name, TRACKERS)(folder)
    try:
        yield tracker
    finally:
        tracker.close()


def _numbers(record: Record) -> dict[str, float]:
    """The numbers of a round that a tracker can draw: finite ones, without lists."""
    return {
        name: float(value)
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }

"""Runs without running: a runner that makes outcomes up, and folders that look like data sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ffalm.config import StudyConfig
from ffalm.outcome import Outcome, StudyOutcome, StudyRecord
from ffalm.reproduce.request import Request
from ffalm.studies.grid import plans
from ffalm.studies.results import Study


def outcome(
    label: str = "FedAvg",
    algorithm: str = "fedavg",
    seed: int = 0,
    alpha: float | None = 0.3,
    history: list[dict[str, Any]] | None = None,
    diverged: str | None = None,
    **test: float,
) -> Outcome:
    """A run with these test metrics."""
    values = {"accuracy": 0.8, "dpd": 0.1, "eod": 0.2, "joint_dpd": 0.3, "joint_eod": 0.4, **test}
    return Outcome(label, algorithm, seed, alpha, values, {"dpd": (0.0, 0.2)}, history or [], 1.0, diverged)


def study(*outcomes: Outcome) -> StudyOutcome:
    """A study of these runs."""
    return StudyOutcome("title", {}, {}, [], [], outcomes=list(outcomes))


@dataclass
class FakeRunner:
    """Notes what it was asked for, and makes every metric a function of seed and algorithm."""

    asked: list[tuple[StudyConfig, Path]] = field(default_factory=list)

    def __call__(self, config: StudyConfig, folder: Path) -> Study:
        self.asked.append((config, folder))
        runs = [self._outcome(config, plan.entry.label, plan) for plan in plans(config)]
        choices = {one.label: "settings" for one in config.entries}
        return Study(StudyRecord("title", {}, choices, [], [], data_notes=("a note",)), runs, folder)

    def _outcome(self, config: StudyConfig, label: str, plan: Any) -> Outcome:
        algorithm = plan.entry.algorithm
        shift = 0.01 * len(label) + 0.001 * plan.seed + 0.05 * (config.partition.kind == "plain")
        rounds = [
            {"round": number, "accuracy": 0.7, "dpd": shift, "eod": shift, "dual": -2.0 * number, "seconds": 0.1}
            for number in (1, 2)
        ]
        return outcome(label, algorithm.name, plan.seed, plan.alpha, rounds, dpd=shift, eod=2 * shift)


@pytest.fixture
def runner() -> FakeRunner:
    """A runner that computes nothing."""
    return FakeRunner()


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    """A data root with UTKFace/ in it and no CelebA."""
    (tmp_path / "data" / "UTKFace").mkdir(parents=True)
    return tmp_path / "data"


@pytest.fixture
def tiny() -> Request:
    """A smoke run that takes a second."""
    settings = {
        "data": {"rows": 200},
        "partition": {"clients": 2},
        "model": {"channels": [4]},
        "training": {"rounds": 2},
        "workers": 1,
    }
    return Request(scale="smoke", seeds=(0, 1), settings=settings)

"""What is known about a trained model, in plain values: all that its model card says."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.outcome import Counts, groups_text
from ffalm.system.files import read_json


@dataclass(frozen=True)
class ModelFacts:
    """How a model was trained, and how its predictions, thresholds included, fared on rows not trained on."""

    title: str
    algorithm: str
    seed: int
    rounds: int
    task: dict[str, str]  # "data", "label", "favourable", "groups"
    group_names: tuple[str, ...]
    favourable: int
    excluded: int = 0  # how many of the last groups are not compared
    clients: int | None = None
    training_rows: int | None = None
    counts: Counts | None = None  # scored rows by prediction, label and group
    part: Literal["test", "validation"] = "test"  # whose rows were scored
    target: str | None = None
    verdict: str | None = None
    ends: dict[str, float] = field(default_factory=dict)  # one-sided 95 % confidence bounds of the target's metrics
    epsilon: float | None = None  # of differential privacy
    delta: float | None = None
    settings: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""

    @classmethod
    def read(cls, file: Path) -> ModelFacts:
        """The facts in a file."""
        try:
            values = read_json(file)
            known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
            return cls(**{**known, "group_names": tuple(known["group_names"]), "notes": tuple(known.get("notes", ()))})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"The facts about a model in {file} cannot be read ({error}): save the model again."
            ) from None


def task_facts(task: Task) -> dict[str, str]:
    """What is predicted and for whom, as reports and model cards name it."""
    return {
        "data": task.name,
        "label": task.label,
        "favourable": task.label_names[task.favourable],
        "groups": groups_text(task.group, task.group_names, task.excluded),
    }

"""A federation's model put to use, under the name that it had before `ffalm.load_model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ffalm.data.decode import Recipe
from ffalm.data.preprocessing import Data, Preprocessing
from ffalm.data.types import Task
from ffalm.errors import require
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.federation_config import SharedImages
from ffalm.settings import to_plain
from ffalm.targets.repair import Repair
from ffalm.trained_models.model_description import ModelDescription
from ffalm.trained_models.trained_model import ENCODING, TrainedModel


@dataclass(frozen=True)
class Trained:
    """A model with the encoding that it was trained under and, of a federation with a target, its thresholds."""

    agreement: Agreement
    module: nn.Module
    repair: Repair | None = None

    @classmethod
    def load(cls, folder: str | Path) -> Trained:
        """The model of a finished run, from its run folder or from the federation folder around it."""
        run = Path(folder)
        run = run / "run" if (run / "run" / ENCODING).exists() else run
        require((run / ENCODING).exists(), f"There is no federation's model in {folder}: {ENCODING} is missing.")
        model = TrainedModel.read(run)
        return cls(Agreement.load(run / ENCODING), model.module, model.repair)

    @property
    def task(self) -> Task:
        """What is predicted, and for whom."""
        return self.agreement.task

    @property
    def model(self) -> TrainedModel:
        """The same as `ffalm.load_model` gives it."""
        agreed = self.agreement
        recipe = Recipe(agreed.data.size, agreed.data.crop) if isinstance(agreed.data, SharedImages) else None
        description = ModelDescription(
            agreed.task,
            agreed.shape,
            to_plain(agreed.model),
            Preprocessing(agreed.encoding, recipe),
            "float32" if recipe is None else "uint8",
        )
        return TrainedModel(self.module, description, self.repair)

    def probabilities(self, data: Data) -> Tensor:
        """P(label) of each row, of shape (rows, labels), whatever the thresholds: see `TrainedModel.predict_proba`."""
        return torch.from_numpy(self.model.predict_proba(data)).float()

    def predict(self, data: Data, group: str | Sequence[object] | None = None) -> list[str]:
        """The name of the label that is predicted for each row: see `TrainedModel.predict`."""
        return [str(label) for label in self.model.predict(data, group)]

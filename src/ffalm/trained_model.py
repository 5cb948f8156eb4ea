"""A trained model that takes new rows, for the answers that predict: `ffalm.fair` and `ffalm.blind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ffalm.algorithms import FedAvg
from ffalm.arrays import numbers
from ffalm.engines import ClientSpec
from ffalm.engines.common import built_model, logits_of
from ffalm.errors import UserError, require
from ffalm.federation import Federation
from ffalm.run_settings import RunSettings
from ffalm.simulation import RunKeywords, job_of


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained module with the settings under which it computes, and what its features are like."""

    module: nn.Module
    spec: ClientSpec
    like: Tensor  # no rows of the federation's features

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], federation: Federation, settings: RunKeywords) -> TrainedModel:
        """The model, built anew from the settings that made it."""
        spec = job_of(RunSettings.from_keywords(settings), FedAvg(), federation, 0).spec
        module = built_model(spec)
        try:
            module.load_state_dict(weights)
        except RuntimeError:
            raise UserError(
                "The trained model is another than these settings make: give the settings with which it was trained."
            ) from None
        return cls(module, spec, federation.first_rows(0).x)

    def rows(self, x: Any) -> Tensor:
        """Features as the federation has them: of its shape, and a table's bytes as numbers, not as pixels."""
        rows = numbers(x, "features")
        require(
            rows.shape[1:] == self.like.shape[1:],
            f"The model takes rows of shape {tuple(self.like.shape[1:])}; got {tuple(rows.shape[1:])}.",
        )
        return rows.to(self.like.dtype) if self.like.dtype.is_floating_point else rows

    def logits(self, rows: Tensor) -> Tensor:
        """One row of logits for each row of features."""
        return logits_of(self.module, rows, self.spec)

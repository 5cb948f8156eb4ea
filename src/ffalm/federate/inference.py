"""A federation's model put to use: the saved encoding and the final weights, applied to rows that came later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ffalm.data.decode import Recipe, decode_bytes
from ffalm.data.table_files import read_table
from ffalm.data.types import Task
from ffalm.engines.common import dtype_of, inputs
from ffalm.errors import UserError, require
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.federation_config import SharedImages

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Trained:
    """A model with the encoding that it was trained under."""

    agreement: Agreement
    module: nn.Module

    @classmethod
    def load(cls, folder: str | Path) -> Trained:
        """The model of a finished run, from its run folder or from the federation folder around it."""
        run = Path(folder)
        run = run / "run" if (run / "run" / "encoding.json").exists() else run
        require(
            (run / "encoding.json").exists(), f"There is no federation's model in {folder}: encoding.json is missing."
        )
        agreement = Agreement.load(run / "encoding.json")
        module = agreement.model.build(agreement.shape, agreement.task.labels)
        try:
            module.load_state_dict(load_file(run / "model.safetensors"))
        except FileNotFoundError:
            raise UserError(f"The run in {run} has no final model yet: run it to its end.") from None
        except (SafetensorError, RuntimeError, OSError) as error:
            raise UserError(f"The model in {run} cannot be used: {str(error).splitlines()[0]}.") from None
        return cls(agreement, module.eval())

    @property
    def task(self) -> Task:
        """What is predicted, and for whom."""
        return self.agreement.task

    def probabilities(self, data: pd.DataFrame | str | Path | Sequence[str | Path]) -> Tensor:
        """P(label) of each row, of shape (rows, labels).

        `data` is a table or the name of a file with one; for a model of images, a list of image files.
        """
        x = self._encoded(data)
        dtype = dtype_of(self.module)
        with torch.inference_mode():
            logits = [self.module(inputs(rows, dtype)) for rows in torch.split(x, _ROWS_AT_ONCE)]
        return torch.cat(logits).softmax(-1)

    def predict(self, data: pd.DataFrame | str | Path | Sequence[str | Path]) -> list[str]:
        """The name of the label that is most probable for each row."""
        return [self.task.label_names[place] for place in self.probabilities(data).argmax(-1).tolist()]

    def _encoded(self, data: pd.DataFrame | str | Path | Sequence[str | Path]) -> Tensor:
        shared = self.agreement.data
        if isinstance(shared, SharedImages):
            if isinstance(data, pd.DataFrame | str | Path):
                raise UserError("This model takes images: give a list of image files.")
            recipe = Recipe(shared.size, shared.crop)
            return torch.from_numpy(np.stack([_decoded(Path(str(file)), recipe) for file in data]))
        if isinstance(data, str | Path):
            data = read_table(str(data))[0]
        if not isinstance(data, pd.DataFrame):
            raise UserError("This model takes a table: give a DataFrame or the name of a file.")
        assert self.agreement.encoding is not None
        return self.agreement.encoding.encode(data)


def _decoded(file: Path, recipe: Recipe) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        return decode_bytes(file.read_bytes(), recipe)
    except Exception as error:  # Pillow's plugins raise nearly anything on broken bytes
        raise UserError(f"The image {file} cannot be used: {error}.") from None

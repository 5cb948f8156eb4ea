"""A federation's model put to use: the saved encoding, the final weights and the thresholds of the answer to its
fairness target, applied to rows that came later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ffalm.data.decode import Recipe, decode_bytes
from ffalm.data.group_settings import group_columns
from ffalm.data.table_files import read_table
from ffalm.data.table_groups import group_column
from ffalm.data.table_values import place_of
from ffalm.data.types import Task
from ffalm.engines.common import dtype_of, inputs
from ffalm.errors import UserError, require
from ffalm.fairness.histograms import scores_of
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federation_answer import REPAIR
from ffalm.federate.federation_config import SharedImages
from ffalm.targets.repair import Repair, draws_of

_ROWS_AT_ONCE = 1024

Data: TypeAlias = pd.DataFrame | str | Path | Sequence[str | Path]
"""A table or the name of a file with one; for a model of images, a list of image files."""


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
        return cls(agreement, module.eval(), _thresholds(run / REPAIR))

    @property
    def task(self) -> Task:
        """What is predicted, and for whom."""
        return self.agreement.task

    def probabilities(self, data: Data) -> Tensor:
        """P(label) of each row, of shape (rows, labels), whatever the thresholds.

        `data` is a table or the name of a file with one; for a model of images, a list of image files.
        """
        return self._logits(self._encoded(self._read(data))).softmax(-1)

    def predict(self, data: Data, group: str | Sequence[object] | None = None) -> list[str]:
        """The name of the label that is predicted for each row.

        That is the most probable one or, of a federation with a fairness target, the one that the thresholds of its
        answer give. Thresholds by group need `group`: the table's column of it (several with commas are crossed), or
        its value for each row. Rows of an unknown group or of one that is not compared, and all rows without `group`,
        get the answer's single threshold.
        """
        data = self._read(data)
        x = self._encoded(data)
        logits, task, repair = self._logits(x), self.task, self.repair
        groups = None if group is None else self._groups(data, group, len(x))
        if repair is None:
            labels = logits.argmax(-1)
        else:
            scores, fallback = scores_of(logits, task.favourable)
            draws = draws_of(row.numpy().tobytes() for row in x)
            labels = torch.where(repair.favourable(scores, groups, draws), task.favourable, fallback)
        return [task.label_names[place] for place in labels.tolist()]

    def _read(self, data: Data) -> Data:
        """The table in a file, where its name was given."""
        tables = not isinstance(self.agreement.data, SharedImages)
        return read_table(str(data))[0] if tables and isinstance(data, str | Path) else data

    def _logits(self, x: Tensor) -> Tensor:
        dtype = dtype_of(self.module)
        with torch.inference_mode():
            return torch.cat([self.module(inputs(rows, dtype)) for rows in torch.split(x, _ROWS_AT_ONCE)])

    def _groups(self, data: Data, group: str | Sequence[object], rows: int) -> Tensor:
        """The index of each row's group; -1 where it is none of the federation's."""
        require(
            self.repair is not None,
            "This model has no thresholds by group, since its federation had no fairness target with an answer: leave "
            "`group` out.",
        )
        if isinstance(group, str):
            require(isinstance(data, pd.DataFrame), "Images have no column of groups: give a group for each image.")
            assert isinstance(data, pd.DataFrame)
            columns = (group,) if group in data.columns else group_columns(group)
            group = group_column(data, columns, "data").tolist()
        values = pd.Series(group, dtype=object)
        require(len(values) == rows, f"Give one group for each row: there are {len(values)} for {rows} rows.")
        known = {value: place_of(value, self.task.group_names) for value in values.dropna().unique()}
        return torch.tensor([known.get(value, -1) for value in values])

    def _encoded(self, data: Data) -> Tensor:
        shared = self.agreement.data
        if isinstance(shared, SharedImages):
            if isinstance(data, pd.DataFrame | str | Path):
                raise UserError("This model takes images: give a list of image files.")
            recipe = Recipe(shared.size, shared.crop)
            return torch.from_numpy(np.stack([_decoded(Path(str(file)), recipe) for file in data]))
        if not isinstance(data, pd.DataFrame):
            raise UserError("This model takes a table: give a DataFrame or the name of a file.")
        assert self.agreement.encoding is not None
        return self.agreement.encoding.encode(data)


def _thresholds(file: Path) -> Repair | None:
    """The thresholds in a file; none where a federation had no target."""
    if not file.exists():
        return None
    try:
        return Repair.from_plain(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"The thresholds {file} cannot be read ({error}): run the federation again.") from None


def _decoded(file: Path, recipe: Recipe) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        return decode_bytes(file.read_bytes(), recipe)
    except Exception as error:  # Pillow's plugins raise nearly anything on broken bytes
        raise UserError(f"The image {file} cannot be used: {error}.") from None

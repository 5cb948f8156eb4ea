"""What must be known beside a model's weights to apply it: `encoding.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from ffalm.data.types import Task
from ffalm.engines.jobs import ModelFactory
from ffalm.errors import UserError, require
from ffalm.models import Architecture, architecture
from ffalm.run_settings import Precision
from ffalm.settings import build
from ffalm.system.files import read_json
from ffalm.system.torch_modes import TURN, usual_modes

if TYPE_CHECKING:
    from ffalm.data.preprocessing import Preprocessing  # it imports pandas, which sites avoid

CUSTOM = "custom"  # the name of an architecture that is a user's own function


@dataclass(frozen=True)
class ModelDescription:
    """The task, the architecture, and what turns rows into features."""

    task: Task
    shape: tuple[int, ...]  # of one row of features
    model: dict[str, Any]  # the architecture in plain values
    preprocessing: Preprocessing | None = None  # None if features were given as arrays
    dtype: Literal["float32", "float64", "uint8"] = "float32"  # of features; bytes are pixels, of which 255 counts as 1
    precision: Precision = "fp32"
    feature_names: tuple[str, ...] = ()  # the names of features that were given as data frames

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a file."""
        own = self.preprocessing and self.preprocessing.to_plain()
        return {**asdict(replace(self, preprocessing=None)), "preprocessing": own}

    @classmethod
    def read(cls, file: Path) -> ModelDescription:
        """The description in a file, or in a federation's agreement."""
        from ffalm.data.preprocessing import Preprocessing

        try:
            values = read_json(file)
            task = build(Task, values["task"], "task")
            if "preprocessing" not in values:
                return _agreed(task, values)
            return cls(
                task,
                tuple(values["shape"]),
                values["model"],
                values["preprocessing"] and Preprocessing.from_plain(values["preprocessing"]),
                values["dtype"],
                values["precision"],
                tuple(values.get("feature_names", ())),  # models of version 0.9 and earlier have none
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
            raise UserError(
                f"The file {file} cannot be read ({error}): restore it, or train the model again."
            ) from None

    def build(self, model: ModelFactory | Architecture | None = None) -> nn.Module:
        """A module of this architecture; `model` makes it if it is a user's own."""
        if model is None and self.model["name"] == CUSTOM:
            raise UserError(
                f"This model is made by a function of yours, {self.model.get('function', '')!r}: give it as "
                "load_model(folder, model=FUNCTION)."
            )
        require(
            model is None or callable(model) or hasattr(model, "build"),
            f"The model must be a function that makes a torch module; got a value of type {type(model).__name__}.",
        )
        settings = {key: value for key, value in self.model.items() if key not in ("name", "weights")}
        made: Any = model or architecture(self.model["name"], settings)
        with usual_modes(), TURN, torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten by weights
            try:
                module = made.build(self.shape, self.task.labels) if hasattr(made, "build") else made()
            except Exception as error:
                if model is None:
                    raise
                raise UserError(
                    f"The function that makes the model failed ({type(error).__name__}: {error})."
                ) from error
        made_of = type(module).__name__
        require(
            isinstance(module, nn.Module), f"The function that makes the model must return a module; got {made_of}."
        )
        return cast(nn.Module, module)


def _agreed(task: Task, values: Mapping[str, Any]) -> ModelDescription:
    """The description in a federation's agreement."""
    from ffalm.data.decode import Recipe
    from ffalm.data.encoding import TableEncoding
    from ffalm.data.preprocessing import Preprocessing

    data, encoding = values["data"], values["encoding"]
    if data["source"] == "images":
        preprocessing = Preprocessing(images=Recipe(data["size"], data["crop"]))
        return ModelDescription(task, (3, data["size"], data["size"]), values["model"], preprocessing, "uint8")
    table = TableEncoding.from_json(json.dumps(encoding))
    preprocessing = Preprocessing(table, missing=data.get("missing", "refuse"))  # which 0.9 and earlier did not have
    return ModelDescription(task, (len(table.features),), values["model"], preprocessing)

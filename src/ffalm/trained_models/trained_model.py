"""A trained model that takes new rows: the weights, what turns rows into features, and fitted thresholds.

    encoding.json      the task, the architecture and the preprocessing
    model.safetensors  the weights
    repair.json        the thresholds of the answer to a fairness target, or its blind rule, if there is one
    groups/            the model of the groups, for a blind rule: its encoding.json and model.safetensors
    facts.json         what a model card says
    card.md            the model card

A run folder holds these files, and so does what `TrainedModel.save` writes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor, nn

from ffalm.arrays import numbers, picked
from ffalm.data.types import Task
from ffalm.engines.common import dtype_of, inputs
from ffalm.engines.jobs import ModelFactory
from ffalm.errors import UserError, require
from ffalm.fairness.histograms import scores_of
from ffalm.models import Architecture
from ffalm.privacy import describe_guarantee
from ffalm.report.model_card import ModelUse, card
from ffalm.studies import checksums
from ffalm.system.files import folder_of, json_text, write_atomic
from ffalm.system.torch_modes import usual_modes
from ffalm.targets.blind import BlindRule
from ffalm.targets.predicted_rows import cells_of
from ffalm.targets.repair import GROUPS, REPAIR, Repair, draws_of_rows
from ffalm.targets.target import TITLES
from ffalm.trained_models.model_description import ModelDescription
from ffalm.trained_models.model_facts import ModelFacts

if TYPE_CHECKING:
    from ffalm.data.preprocessing import Data  # it imports pandas, which sites avoid

ENCODING, MODEL, FACTS = "encoding.json", "model.safetensors", "facts.json"
CARD = "card.md"

_VALUES_AT_ONCE = 2**24  # of features: bounds memory whatever their shape


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model that predicts, with the thresholds of its fairness target if it has one."""

    module: nn.Module
    description: ModelDescription
    repair: Repair | None = None
    facts: ModelFacts | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rule: BlindRule | None = None  # instead of thresholds, with the model of the groups that it needs
    groups: TrainedModel | None = None

    @classmethod
    def of(
        cls,
        weights: Mapping[str, Tensor],
        description: ModelDescription,
        model: ModelFactory | Architecture | None = None,
        repair: Repair | None = None,
        facts: ModelFacts | None = None,
        device: torch.device | str = "cpu",
    ) -> TrainedModel:
        """The module built anew, with these weights."""
        module = description.build(model)
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip().rstrip(".")  # torch lists the differences line by line
            raise UserError(
                "The stored weights do not fit this model: give the settings, or the function, with which it was "
                f"trained. {reason}."
            ) from None
        return cls(module.eval().to(device), description, repair, facts, torch.device(device))

    @classmethod
    def read(cls, folder: Path, model: ModelFactory | Architecture | None = None) -> TrainedModel:
        """The model in a folder that holds the files above."""
        require(
            (folder / ENCODING).exists(),
            f"There is no model to apply in {folder}: {ENCODING} is missing. Runs of 'local' train a model per "
            "client and have none for new rows.",
        )
        broken = checksums.damaged(folder)
        require(
            broken is None,
            f"The file {folder / str(broken)} of a trained model is missing or damaged: restore it, or train the model "
            "again.",
        )
        description = ModelDescription.read(folder / ENCODING)
        try:
            weights = load_file(folder / MODEL)
        except FileNotFoundError:
            raise UserError(f"The run in {folder} has no final model yet: run it to its end.") from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"The model in {folder} cannot be used: {str(error).splitlines()[0]}.") from None
        facts = ModelFacts.read(folder / FACTS) if (folder / FACTS).exists() else None
        fitted = _thresholds(folder / REPAIR)
        if not isinstance(fitted, BlindRule):
            return cls.of(weights, description, model, fitted, facts)
        return replace(cls.of(weights, description, model, None, facts), rule=fitted, groups=cls.read(folder / GROUPS))

    def __repr__(self) -> str:
        kind = "no thresholds" if self.repair is None else f"thresholds: {self.repair.kind}"
        kind = kind if self.rule is None else "blind rule"
        return f"TrainedModel({self.task.label} of {self.task.name}, {self.description.model['name']}, {kind})"

    @property
    def task(self) -> Task:
        """What is predicted, and for whom."""
        return self.description.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the columns of `predict_proba`."""
        return self.task.label_names

    @property
    def by_group(self) -> bool:
        """Whether thresholds differ between groups, so that predictions need the group."""
        return self.repair is not None and self.repair.by_group

    def predict_proba(self, data: Data) -> NDArray[np.float64]:
        """P(label) of each row, of shape (rows, labels), whatever the thresholds; `data` is as in `predict`."""
        return self.logits(self.features(data)).double().softmax(-1).numpy()

    def predict(self, data: Data, group: Any = None) -> NDArray[Any]:
        """The label that is predicted for each row: its name, or its number if labels were given as numbers.

        `data` is a table (a DataFrame, the name of a file, or a list with a dict for each row), image files (a list, or
        a folder), or an array of features like those the model was trained on. A category that training rows did not
        have counts as none of the known ones.

        The label is the most probable one or, for a model with a fairness target, the one that its thresholds give.
        Thresholds by group need `group`: a column of the table (several with commas are crossed), or each row's group
        by name (or by its number, from 0, if that is not a name). Rows of an unknown group or of one that is not
        compared, and all rows without `group`, get the single threshold; groups of which none is known are refused. A
        blind rule needs no group and uses none.

        Randomised thresholds are drawn by a row's features, and by how many rows before it have the same ones: the same
        rows in the same order get the same labels. Rows predicted one at a time share a draw if features are equal.
        """
        return self.named(self.decide(data, group))

    def named(self, codes: Tensor) -> NDArray[Any]:
        """Labels as they were given, from their numbers."""
        return codes.numpy() if self._numbered else np.array(self.labels, dtype=object)[codes.numpy()]

    def decide(self, data: Data, group: Any = None) -> Tensor:
        """The number of the label that `predict` names, for each row."""
        with usual_modes():
            rows = self._read(data, group)
            features, repair = self.features(rows), self.repair
            logits = self.logits(features)
            if self.rule is not None and self.groups is not None:
                cells = cells_of(self.groups.logits(features), self.task.groups)
                return self.rule.predict(logits, cells, self.task.favourable)
            if repair is None:
                require(
                    group is None,
                    "This model has no thresholds by group, since it has no answer to a fairness target: leave `group` "
                    "out.",
                )
                return logits.argmax(-1)
            groups = None if group is None else self.group_numbers(rows, features, group)
            scores, fallback = scores_of(logits, self.task.favourable)
            draws = draws_of_rows(row.tobytes() for row in features.numpy()) if repair.kind == "randomised" else None
            return torch.where(repair.favourable(scores, groups, draws), self.task.favourable, fallback)

    def features(self, data: Data) -> Tensor:
        """Rows as the model takes them."""
        rows, own = self._read(data), self.description.preprocessing
        if own is None or (hasattr(rows, "__array__") and not hasattr(rows, "columns")):
            names, shape = self.description.feature_names, self.description.shape
            known = " x ".join(map(str, shape))
            given = len(rows.columns) if hasattr(rows, "columns") else None
            require(
                given is None or bool(names) or (given,) == shape,
                f"The model was trained on {known} features without names: give it an array, or a table with those "
                f"columns alone, in their order; this table has {given}.",
            )
            return self._checked(numbers(picked(rows, names, "features"), "features"))
        return own.encode(rows)

    def to_onnx(self, file: str | Path) -> Path:
        """Write the model as ONNX with its preprocessing, thresholds and label names (`onnx_export.py`)."""
        from ffalm.trained_models.onnx_export import write_onnx

        require(
            self.rule is None,
            "A blind rule takes two models, which one ONNX file does not hold: export a model with thresholds.",
        )
        own = self.description
        module = copy.deepcopy(self.module).cpu()
        return write_onnx(file, module, self.task, own.shape, own.dtype == "uint8", own.preprocessing, self.repair)

    def card(self) -> str:
        """The model card in Markdown: use, data, groups, metrics, target, privacy and limits, from stored facts."""
        if self.facts is None:
            raise UserError("Nothing is stored about how this model was trained: load it from the folder of its run.")
        facts, own = self.facts, self.description.preprocessing
        guarantee = None if facts.epsilon is None else f"differential privacy, epsilon {facts.epsilon:.3g}"
        if facts.epsilon is not None and facts.delta is not None:
            guarantee = describe_guarantee(facts.epsilon, facts.delta)
        kind = "the most probable label" if self.repair is None else f"its thresholds ({TITLES[self.repair.kind]})"
        kind = kind if self.rule is None else "a blind rule, which uses a model of the groups instead of the group"
        shape = " x ".join(map(str, self.description.shape))
        takes = f"arrays of features of shape {shape}" if own is None else own.describe()
        columns = [] if own is None or own.table is None else [one.name for one in own.table.columns]
        seen = ", ".join(name for name in self.task.group.split(", ") if name in columns)
        images = own is not None and own.images is not None
        use = ModelUse(takes, kind, self.task.group, self.by_group, self.description.model, guarantee, seen, images)
        return card(facts, use)

    def _read(self, data: Data, group: Any = None) -> Data:
        own = self.description.preprocessing
        return data if own is None else own.read(data, group, self.task.group_names)

    def group_numbers(self, rows: Data, features: Tensor, group: Any) -> Tensor:
        """The number of each row's group; -1 where it is missing or none of the model's.

        If thresholds differ between groups, a `group` without any group of the model is refused: it is another column
        than in training, and every row would get the single threshold.
        """
        from ffalm.data.preprocessing import Preprocessing
        from ffalm.data.table_groups import in_stored_order

        given = rows if hasattr(rows, "columns") or isinstance(rows, list) else features
        own = self.description.preprocessing or Preprocessing()
        if isinstance(group, str) and group not in getattr(given, "columns", ()):
            group = in_stored_order(group, self.task.group)
        return own.groups(given, group, self.task.group_names, len(features), required=self.by_group)

    def logits(self, rows: Tensor) -> Tensor:
        """One row of logits for each row of features."""
        dtype, size = dtype_of(self.module), max(1, _VALUES_AT_ONCE // max(1, rows[:1].numel()))
        bf16 = self.description.precision == "bf16"
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            batches = (rows[first : first + size] for first in range(0, max(1, len(rows)), size))
            pieces = [self.module(inputs(one.to(self.device), dtype)).float() for one in batches]
        return torch.cat(pieces).cpu().clone()

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder, from which `ffalm.load_model` reads it again."""
        place = folder_of(folder)
        others = [name for name in (MODEL, REPAIR, FACTS, CARD) if (place / name).exists()]
        require(
            not others or (place / ENCODING).exists(),
            f"The folder {place} holds {', '.join(others)}, which would be lost, and no model: name another.",
        )
        weights = {name: value.detach().cpu().contiguous().clone() for name, value in self.module.state_dict().items()}
        contents: dict[str, bytes | str] = {
            ENCODING: json_text(self.description.to_plain(), 2) + "\n",
            MODEL: tensors_as_bytes(weights),
        }
        if self.repair is not None:
            contents[REPAIR] = checksums.with_checksum(self.repair.to_plain(self.task.group_names))
        elif self.rule is not None and self.groups is not None:
            contents[REPAIR] = checksums.with_checksum(self.rule.to_plain(self.task.group_names))
            self.groups.save(place / GROUPS)
        else:
            (place / REPAIR).unlink(missing_ok=True)
        if self.facts is not None:
            contents[FACTS] = json_text(asdict(self.facts), 2) + "\n"
            write_atomic(place / CARD, self.card())
        for name, content in contents.items():
            write_atomic(place / name, content)
        write_atomic(place / checksums.FILE, checksums.listing(contents))
        return place

    @property
    def _numbered(self) -> bool:
        """Whether labels and features were given as arrays of numbers."""
        numbered = self.labels == tuple(map(str, range(self.task.labels)))
        return self.description.preprocessing is None and numbered

    def _checked(self, rows: Tensor) -> Tensor:
        """Features of the right shape; a table's bytes are numbers, not pixels."""
        shape = self.description.shape
        require(rows.shape[1:] == shape, f"The model takes rows of shape {shape}; got {tuple(rows.shape[1:])}.")
        require(bool(rows.isfinite().all()), "Some features are missing or not finite: the model takes numbers only.")
        return rows if self.description.dtype == "uint8" else rows.to(getattr(torch, self.description.dtype))


def _thresholds(file: Path) -> Repair | BlindRule | None:
    """The thresholds or the blind rule in a file; none if there was no target."""
    if not file.exists():
        return None
    try:
        plain = checksums.read_checked(file)
        return BlindRule.from_plain(plain) if plain.get("kind") == "blind" else Repair.from_plain(plain)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"The thresholds in {file} cannot be read ({error}): restore the file, or write it again by `ffalm report`."
        ) from None

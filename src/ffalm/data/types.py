"""The types that every data source returns: examples with a label and a group, and their task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from ffalm.data.compact_features import CompactFeatures, take_rows
from ffalm.errors import UserError, require
from ffalm.settings import typed

if TYPE_CHECKING:
    from ffalm.data.preprocessing import Preprocessing


@typed
@dataclass(frozen=True)
class Task:
    """What is predicted, for which groups, and which label is the favourable outcome.

    Labels are 0..C-1 and groups 0..K-1 everywhere; the names are for display. The last `excluded` groups (rows whose
    group is unknown, groups of too few rows) train and are scored, but are not compared: no constraint, gap or group
    threshold is about them.
    """

    name: str
    label: str = "label"
    group: str = "group"
    label_names: tuple[str, ...] = ("0", "1")
    group_names: tuple[str, ...] = ("0", "1")
    favourable: int = 1
    excluded: int = field(default=0, repr=False)  # not part of the fingerprints of older studies

    def __post_init__(self) -> None:
        require(len(self.label_names) >= 2, f"The task {self.name!r} needs at least two labels.")
        require(
            self.excluded >= 0 and self.compared >= 2, f"The task {self.name!r} needs at least two groups to compare."
        )
        require(
            0 <= self.favourable < len(self.label_names),
            f"The favourable label of {self.name!r} must be one of 0..{len(self.label_names) - 1}.",
        )

    @property
    def labels(self) -> int:
        """Number of labels."""
        return len(self.label_names)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.group_names)

    @property
    def compared(self) -> int:
        """Number of groups that are compared: the first ones."""
        return self.groups - self.excluded

    def with_group_labels(self) -> Task:
        """The task of a model of P(label, group | x): its label is (favourable or not, group), crossed."""
        own = self.label_names[self.favourable]
        return replace(
            self,
            label=f"{self.label} and {self.group}",
            label_names=tuple(f"{label}, {group}" for label in (f"not {own}", own) for group in self.group_names),
            favourable=self.groups,
        )


@dataclass(frozen=True)
class Examples:
    """Rows with features `x`, label `y` and group `group`; images are uint8 (rows, channels, height, width)."""

    x: Tensor
    y: Tensor
    group: Tensor

    def __post_init__(self) -> None:
        tensors = isinstance(self.y, Tensor) and isinstance(self.group, Tensor)
        require(
            tensors and isinstance(self.x, Tensor | CompactFeatures) and len(self.x.shape) > 0,
            "Features, labels and groups of Examples must be tensors: Federation.from_arrays takes other types too.",
        )
        rows = self.x.shape[0]
        if self.y.shape != (rows,) or self.group.shape != (rows,):
            raise UserError(
                f"Features, labels and groups must have one entry per row; "
                f"got {rows}, {tuple(self.y.shape)} and {tuple(self.group.shape)}."
            )

    def __len__(self) -> int:
        return self.x.shape[0]

    def __repr__(self) -> str:
        """Number and shape of the rows; printing a federation must not print its data."""
        shape = " x ".join(map(str, self.x.shape[1:])) or "single numbers"
        return f"Examples({len(self)} rows, features {shape})"

    def take(self, rows: Tensor) -> Examples:
        """The examples at these row numbers."""
        return Examples(take_rows(self.x, rows), self.y[rows], self.group[rows])

    def to(self, device: torch.device) -> Examples:
        """The same examples on another device."""
        return Examples(self.x.to(device), self.y.to(device), self.group.to(device))

    def with_group_labels(self, task: Task) -> Examples:
        """The same rows with the labels of `Task.with_group_labels`: label * K + group, label 1 where favourable."""
        return replace(self, y=(self.y == task.favourable).long() * task.groups + self.group)

    def counts(self, task: Task) -> Tensor:
        """Number of rows per (label, group): all that a client sends before training."""
        cell = self.y * task.groups + self.group
        return torch.bincount(cell, minlength=task.labels * task.groups).view(task.labels, task.groups)


@dataclass(frozen=True)
class Dataset:
    """A source's examples in three parts, before they are partitioned into clients.

    `owners` has the natural silo of each row, part by part, if the source knows it: a number, -1 where the owner has no
    training rows.
    """

    task: Task
    train: Examples
    validation: Examples
    test: Examples
    _: KW_ONLY
    owners: Sequence[Tensor] | None = None
    owner_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # shown with the results: skipped rows, duplicates and the like
    preprocessing: Preprocessing | None = None  # that made the features, None if they were given


class Source(Protocol):
    """A data source: a frozen dataclass of its settings that can load itself."""

    name: ClassVar[str]
    about: ClassVar[str]  # what it is and where it comes from, for `ffalm data`
    asks: ClassVar[str]  # what is predicted, which outcome is favourable, and the groups
    needs_files: ClassVar[bool]  # whether the user must name a file or folder

    def __hash__(self) -> int: ...

    def load(self) -> Dataset:
        """Read, check and split the data; raises `UserError` if it cannot."""

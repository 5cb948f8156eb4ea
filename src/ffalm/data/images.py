"""Your own folder of images with a table of each image's label and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from ffalm.data.decode import ENDINGS, Crop, Recipe
from ffalm.data.group_settings import fewest_rows, group_columns
from ffalm.data.owners import code_owner
from ffalm.data.pictures import Codes, examples, existing_folder, load_usable, shared_content, split_by_content
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.splits import check_shares
from ffalm.data.table import check_training_labels, code_label, parts_of
from ffalm.data.table_files import read_table
from ffalm.data.table_groups import code_groups, group_column
from ffalm.data.table_values import Value, pick
from ffalm.data.types import Dataset, Task
from ffalm.errors import UserError, require


@dataclass(frozen=True)
class Images:
    """A folder of images and a CSV, TSV or Parquet file with one row per image.

    `file_column` is the column of file names within the folder (extensions may be omitted). `label`, `group`, `owner`,
    `split`, `groups`, `min_group_size` and `favourable` are as for a table.
    """

    name: ClassVar[str] = "images"
    about: ClassVar[str] = "your own folder of images with a table beside it"
    asks: ClassVar[str] = "your label column, favourable value and group column"
    needs_files: ClassVar[bool] = True

    folder: str
    labels: str
    label: str
    group: str | tuple[str, ...]
    file_column: str = "file"
    favourable: Value | None = None
    groups: tuple[Value, ...] = ()
    min_group_size: int | None = field(default=None, metadata={"least": 0})
    owner: str | None = None
    split: str | None = None
    size: int = 64
    crop: Crop = "centre"
    separator: str | None = None
    encoding: str | None = None
    validation: float = 0.1
    test: float = 0.2
    data_seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.group, str):
            object.__setattr__(self, "group", tuple(self.group))
        others = {role: (getattr(self, role),) for role in ("owner", "split", "file_column")}
        for role, columns in {"group": group_columns(self.group), **others}.items():
            require(
                self.label not in columns,
                f"The label and the {role} must be different columns; both are {self.label!r}.",
            )
        check_shares(self.validation, self.test, what="images")
        Recipe(self.size, self.crop)

    def load(self) -> Dataset:
        """Read the table, decode the images it names and split them, copies of one image together."""
        folder = existing_folder(self.folder, "name the folder that holds the images.")
        frame, notes = read_table(self.labels, self.separator, encoding=self.encoding)
        names = image_names(pick(frame, self.file_column, self.labels), folder, self.labels)
        y, labels, assumed = code_label(pick(frame, self.label, self.labels), self.favourable, self.labels)
        columns = group_columns(self.group)
        column = group_column(frame, columns, self.labels)
        found = code_groups(column, self.groups, (), self.labels)
        decoded, good, skipped = load_usable(folder, names, Recipe(self.size, self.crop), self.skip_bad)
        contents = [decoded.contents[row] for row in good]
        chosen, copies = self._parts(frame.iloc[good], contents, y[good], found.codes[good])
        parts = [good[part] for part in chosen]
        train = parts[0]
        unseen = check_training_labels(y[train], labels, self.label, self.labels)
        owners, owner_names, without = self._owners(frame, parts)
        found = found.with_small_last(train, fewest_rows(self.min_group_size, columns), self.labels)
        name = folder.name or "images"
        return Dataset(
            Task(name, self.label, str(column.name), labels, found.names, len(labels) - 1, found.excluded),
            *(examples(decoded, part, y, found.codes) for part in parts),
            owners=owners,
            owner_names=owner_names,
            notes=(*notes, *assumed, *unseen, *found.notes, *without, *skipped, *copies),
            preprocessing=Preprocessing(images=Recipe(self.size, self.crop)),
        )

    def _owners(
        self, frame: pd.DataFrame, parts: Sequence[Codes]
    ) -> tuple[list[Tensor] | None, tuple[str, ...], tuple[str, ...]]:
        if self.owner is None:
            return None, (), ()
        codes, names, notes = code_owner(pick(frame, self.owner, self.labels), parts[0], self.labels)
        return [torch.from_numpy(codes[rows]) for rows in parts], names, notes

    def _parts(
        self, frame: pd.DataFrame, contents: Sequence[str], y: Codes, group: Codes
    ) -> tuple[Sequence[Codes], tuple[str, ...]]:
        """The rows of each part, and a note on copies: a split column is followed even if it separates copies."""
        if self.split is None:
            return split_by_content(contents, y, group, self.validation, self.test, self.data_seed)
        column = pick(frame, self.split, self.labels)
        strata = y * (group.max() + 1) + group
        parts = parts_of(column, strata, self.validation, self.data_seed, self.labels)
        return parts, shared_content(contents, parts)


def image_names(column: pd.Series, folder: Path, file: str) -> list[str]:
    """The image names within the folder, one per row; each must exist, once, inside the folder."""
    where = f"The column {str(column.name)!r} of {file!r}"
    blank = column.isna() | (column.astype(str).str.strip() == "")
    public = "Its labels file does not name, in every row, one image of its folder that no other row names."
    require(not blank.any(), f"{where} names no image in {int(blank.sum())} rows.", public)
    names = [str(PurePosixPath(str(name).strip().replace("\\", "/"))) for name in column]
    outside = [name for name in names if _leaves(name)]
    if outside:
        raise UserError(f"{where} names {len(outside)} images outside {folder}, first {outside[0]!r}.", public)
    found = [_on_disk(folder, name) for name in names]
    missing = [name for name, there in zip(names, found, strict=True) if there is None]
    if missing:
        raise UserError(
            f"{where} names {len(missing)} images that are not in {folder}, first {missing[0]!r}: "
            f"add the files, write their names in full, or remove the rows.",
            public,
        )
    there = [name for name in found if name is not None]
    twice = pd.Index(there).duplicated()
    if twice.any():
        first = there[int(twice.argmax())]
        raise UserError(f"{where} names {int(twice.sum())} images again, first {first!r}: keep one row each.", public)
    return there


def _leaves(name: str) -> bool:
    """Whether a name points outside the folder."""
    return name.startswith("/") or ".." in PurePosixPath(name).parts or bool(PureWindowsPath(name).drive)


def _on_disk(folder: Path, name: str) -> str | None:
    """The name of the file on disk; tables often omit the extension."""
    try:
        for ending in ("", *ENDINGS, *(ending.upper() for ending in ENDINGS)):
            if (folder / (name + ending)).is_file():
                return name + ending
    except (OSError, ValueError):  # a name that is too long, or with a NUL byte
        return None
    return None

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
from ffalm.data.table import check_training_labels, code_label, parts_of, unused_shares
from ffalm.data.table_files import read_table
from ffalm.data.table_groups import code_groups, group_column
from ffalm.data.table_values import Value, pick
from ffalm.data.types import Dataset, Task
from ffalm.errors import UserError, require
from ffalm.settings import described


@dataclass(frozen=True)
class Images:
    """A folder of images and a CSV, TSV or Parquet file with one row per image."""

    name: ClassVar[str] = "images"
    about: ClassVar[str] = "your own folder of images with a table beside it"
    asks: ClassVar[str] = "your label column, favourable value and group column"
    needs_files: ClassVar[bool] = True

    folder: str = described("Folder of the images.")
    labels: str = described("Table with one row per image: CSV, TSV or Parquet.")
    label: str = described("Column of labels.")
    group: str | tuple[str, ...] = described("Column of groups; several are crossed: female, black.")
    file_column: str = described("Column of file names within the folder; extensions may be omitted.", "file")
    favourable: Value | None = field(
        default=None, metadata={"about": "Label for which fairness is measured; needed unless labels are 0 and 1."}
    )
    groups: tuple[Value, ...] = described("The groups in order; none: every value.", ())
    min_group_size: int | None = described(
        "Fewest training rows of a group that is compared; none: 30 for crossed columns, else 0.", None, least=0
    )
    owner: str | None = described("Column of data owners: each value is a client.", None)
    split: str | None = described("Column that says train, validation or test for each image.", None)
    size: int = described("Side of the images in pixels after cropping.", 64)
    crop: Crop = field(
        default="centre", metadata={"about": "Cut out the square in the centre, or squeeze the whole image."}
    )
    separator: str | None = described("Column separator of the table; none: detected from the first lines.", None)
    encoding: str | None = described("Encoding of the table; none: UTF-8.", None)
    validation: float = described(
        "Share of held-out images; with `split`, of its training images if it names no held-out ones.", 0.1
    )
    test: float = described("Share of test images, without `split`.", 0.2)
    data_seed: int = described("Seed of the split.", 0)
    skip_bad: bool = described("Leave out images that cannot be read, instead of refusing them.", False)

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
        columns = group_columns(self.group)
        codes = {*columns, *((self.owner,) if self.owner is not None else ())}
        frame, notes = read_table(
            self.labels, self.separator, encoding=self.encoding, texts=(self.file_column,), codes=codes
        )
        names = image_names(pick(frame, self.file_column, self.labels), folder, self.labels)
        y, labels, assumed = code_label(pick(frame, self.label, self.labels), self.favourable, self.labels)
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
        """The rows of each part, and notes: a split column is followed even if it separates copies."""
        if self.split is None:
            return split_by_content(contents, y, group, self.validation, self.test, self.data_seed)
        column = pick(frame, self.split, self.labels)
        strata = y * (group.max() + 1) + group
        parts = parts_of(column, strata, self.validation, self.data_seed, self.labels)
        return parts, (*unused_shares(self, column), *shared_content(contents, parts))


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

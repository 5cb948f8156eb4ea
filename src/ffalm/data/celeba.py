"""CelebA from its publishers' files: predict an attribute, by default Attractive, with another as the group.

Any two of the 40 attributes can be label and group. The official partition is the default; people recur in
CelebA, so the alternative splits by identity and never by image.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from ffalm.data.decode import Recipe
from ffalm.data.pictures import Codes, check_present, examples, existing_folder, load_usable, shared_content
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.splits import check_shares, split_by_key
from ffalm.data.types import Dataset, Task
from ffalm.errors import UserError, require, require_known
from ffalm.settings import described

ADVICE = (
    "download img_align_celeba, list_attr_celeba.txt and list_eval_partition.txt of CelebA from "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and give the folder that holds them."
)
PARTS = ("training", "validation", "test")
#: where the publishers' drive, its mirrors and people's own folders keep each file
_PLACES = ("", "Anno", "Eval", "Img", "celeba", "CelebA", "celeba/Anno", "celeba/Eval", "celeba/Img")


@dataclass(frozen=True)
class CelebA:
    """Aligned portraits; one attribute is the label (having it is favourable), another the group."""

    name: ClassVar[str] = "celeba"
    about: ClassVar[str] = "CelebA, portraits (the publishers' files)"
    asks: ClassVar[str] = "Attractive (favourable), by Male: female, male; or any two attributes"
    needs_files: ClassVar[bool] = True

    root: str = described("Folder that holds the images and the publishers' lists.")
    size: int = described("Side of the images in pixels.", 64)
    label: str = described("Attribute that is predicted.", "Attractive")
    group: str = described("Attribute that defines the groups.", "Male")
    split: Literal["official", "identity"] = described("The official parts, or a split by identity.", "official")
    validation: float = described("Share of images that is held out, in a split by identity.", 0.1)
    test: float = described("Share of test images, in a split by identity.", 0.1)
    data_seed: int = described("Seed of a split by identity.", 0)
    allow_missing: bool = described("Use the images that are there even if some are missing.", False)
    skip_bad: bool = described("Leave out images that cannot be read, instead of refusing them.", False)

    def __post_init__(self) -> None:
        require(self.label != self.group, f"Label and group are both {self.label!r}: choose two attributes.")
        if self.split == "identity":
            check_shares(self.validation, self.test, " of CelebA", "images")
        Recipe(self.size)

    def load(self) -> Dataset:
        """Read the portraits and split them by the official partition or by identity."""
        root = existing_folder(self.root, ADVICE)
        folder = _image_folder(root)
        table = _attributes(_file(root, "list_attr_celeba"), self.label, self.group)
        table, missing = _present(table, folder, self.allow_missing)
        decoded, good, notes = load_usable(folder, list(table.index), Recipe(self.size), self.skip_bad)
        y, group = table["label"].to_numpy(np.int64), table["group"].to_numpy(np.int64)
        task = _task(self.label, self.group)
        check_present(task, y[good], group[good], folder)
        if self.split == "official":
            parts = _official(_file(root, "list_eval_partition"), table.index[good])
        else:
            identity = _column(_file(root, "identity_CelebA"), table.index[good])
            fractions = (1 - self.validation - self.test, self.validation, self.test)
            parts = split_by_key(identity, (2 * y + group)[good], fractions, self.data_seed)
        copies = shared_content([decoded.contents[row] for row in good], parts)
        return Dataset(
            task,
            *(examples(decoded, good[part], y, group) for part in parts),
            notes=(*missing, *notes, *copies),
            preprocessing=Preprocessing(images=Recipe(self.size)),
        )


def _task(label: str, group: str) -> Task:
    group_names = ("female", "male") if group == "Male" else (f"not {group}", group)
    return Task("celeba", label, group, (f"not {label}", label), group_names)


def _file(root: Path, stem: str) -> Path:
    """The publishers' text file of that name, or the comma-separated copy that mirrors offer."""
    for place in _PLACES:
        for ending in (".txt", ".csv"):
            file = root / place / (stem + ending)
            if file.is_file():
                return file
    raise UserError(f"{root} holds no {stem}.txt: {ADVICE}")


def _image_folder(root: Path) -> Path:
    for place in _PLACES:
        folder = root / place / "img_align_celeba"
        if folder.is_dir():
            inner = folder / "img_align_celeba"
            return inner if inner.is_dir() else folder
    for place in _PLACES:
        packed = root / place / "img_align_celeba.zip"
        require(not packed.is_file(), f"The images are still packed: unpack {packed} where it lies.")
    raise UserError(f"{root} holds no folder img_align_celeba: {ADVICE}")


def _read(file: Path, titled: bool) -> pd.DataFrame:
    """A publishers' table, indexed by image name; `titled` ones begin with a row count and a header."""
    try:
        if file.suffix == ".csv":
            table = pd.read_csv(file, index_col=0)
        elif titled:
            table = pd.read_csv(file, sep=r"\s+", skiprows=1)
        else:
            table = pd.read_csv(file, sep=r"\s+", header=None, index_col=0)
    except (ValueError, OSError) as error:  # pandas' parser errors and wrong encodings are ValueErrors
        raise UserError(f"{file} is not a table as CelebA's publishers write it: {error}.") from error
    table.index = table.index.astype(str)
    repeated = int(table.index.duplicated().sum())
    require(repeated == 0, f"{file} names {repeated} images more than once.")
    return table


def _attributes(file: Path, label: str, group: str) -> pd.DataFrame:
    """The two attributes of every image as 0 (no) and 1 (yes)."""
    table = _read(file, titled=True)
    if file.suffix == ".txt":
        with open(file, encoding="utf-8") as lines:
            promised = lines.readline().strip()
        require(
            promised == str(len(table)),
            f"{file} says it has {promised!r} rows but has {len(table)}: download it again.",
        )
    chosen = {}
    for kind, attribute in (("label", label), ("group", group)):
        require_known("CelebA attribute", [*map(str, table.columns)], attribute)
        wrong = ~table[attribute].isin((-1, 0, 1))
        require(not wrong.any(), f"{int(wrong.sum())} values of {attribute} in {file} are neither -1 nor 1.")
        chosen[kind] = (table[attribute] == 1).astype(np.int64)
    return pd.DataFrame(chosen)


def _present(table: pd.DataFrame, folder: Path, allow_missing: bool) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows whose image is on disk, and a note about the others if they may be missing."""
    there = table.index.isin(os.listdir(folder))
    missing = len(table) - int(there.sum())
    if not missing:
        return table, ()
    what = f"{missing} of the {len(table)} images listed are not in {folder}, first {table.index[~there][0]}"
    require(missing < len(table), f"{what}: {ADVICE}")
    require(allow_missing, f"{what}: unpack them all, or set allow_missing to use those that are there.")
    return table[there], (f"{what}; left out.",)


def _column(file: Path, names: pd.Index) -> Codes:
    """The only column of a publishers' two-column table, for these images."""
    column = _read(file, titled=False).iloc[:, 0].reindex(names)
    absent = int(column.isna().sum())
    require(absent == 0, f"{file} lacks {absent} of the {len(names)} images.")
    try:
        return np.asarray(column.to_numpy(np.int64))
    except ValueError as error:
        raise UserError(f"{file} must hold whole numbers in its second column.") from error


def _official(file: Path, names: pd.Index) -> list[Codes]:
    """The rows of each part of the publishers' own partition."""
    part = _column(file, names)
    wrong = int((~np.isin(part, (0, 1, 2))).sum())
    require(wrong == 0, f"{file} must say 0, 1 or 2 for every image; {wrong} rows do not.")
    parts = [np.flatnonzero(part == code) for code in range(3)]
    for rows, kind in zip(parts, PARTS, strict=True):
        require(
            len(rows) > 0,
            f"None of the {len(names)} images is in the {kind} part of {file}: "
            f"use all of CelebA, or set split to 'identity'.",
        )
    return parts

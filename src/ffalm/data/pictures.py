"""Shared by the image sources: skipping bad images, keeping copies together, making examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ffalm.data.decode import Recipe
from ffalm.data.imagecache import Decoded, load_images
from ffalm.data.splits import split_by_key
from ffalm.data.types import Examples, Task
from ffalm.errors import UserError, require

Codes = NDArray[np.int64]

_BAD = "Some of its images cannot be decoded."


def load_usable(
    root: Path, names: Sequence[str], recipe: Recipe, skip_bad: bool
) -> tuple[Decoded, Codes, tuple[str, ...]]:
    """Decoded files, the rows that could be decoded, and notes; bad files are an error unless skipped."""
    decoded = load_images(root, names, recipe)
    if not decoded.bad:
        return decoded, np.arange(len(names)), decoded.notes
    first, reason = min(decoded.bad.items())
    count = f"{len(decoded.bad)} of {len(names)} images in {root}"
    what = f"{count} cannot be decoded, first {names[first]} ({reason})"
    if not skip_bad:
        raise UserError(f"{what}: repair or remove them, or set skip_bad to leave them out.", _BAD)
    require(len(decoded.bad) < len(names), f"{what}: none is left to learn from.", _BAD)
    good = np.setdiff1d(np.arange(len(names)), np.fromiter(decoded.bad, dtype=np.int64))
    return decoded, good, (*decoded.notes, f"{what}; left out.")


def split_by_content(
    contents: Sequence[str], y: Codes, group: Codes, validation: float, test: float, seed: int
) -> tuple[list[Codes], tuple[str, ...]]:
    """Rows of the train, validation and test parts, stratified by (label, group); equal files share a part.

    Otherwise a model could be tested on an image that it was trained on.
    """
    keys = np.asarray(contents)
    strata = y * (group.max() + 1) + group
    parts = split_by_key(keys, strata, (1 - validation - test, validation, test), seed)
    return parts, _duplicates(keys, y)


def shared_content(contents: Sequence[str], parts: Sequence[Codes]) -> tuple[str, ...]:
    """A note on held-out images of a given split that are byte-identical to training images."""
    keys = np.asarray(contents)
    train, *held_out = parts
    leaked = sum(int(np.isin(keys[rows], keys[train]).sum()) for rows in held_out)
    if not leaked:
        return ()
    return (f"{leaked} validation or test images are byte-identical to training images.",)


def _duplicates(keys: NDArray[np.str_], y: Codes) -> tuple[str, ...]:
    """A note on byte-identical files, and on how many of them have different labels."""
    _, first, key, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    groups = int((counts > 1).sum())
    if not groups:
        return ()
    differing = len(np.unique(key[y != y[first][key]]))
    images = int(counts[counts > 1].sum())
    note = f"{groups} groups of byte-identical images ({images} images) share a part each"
    return (f"{note}; {differing} of them disagree on the label." if differing else f"{note}.",)


def examples(decoded: Decoded, rows: Codes, y: Codes, group: Codes) -> Examples:
    """These rows as tensors; the pixels are copied, so that the cache file can be released."""
    pixels = torch.from_numpy(np.asarray(decoded.pixels)[rows])
    return Examples(pixels, torch.from_numpy(y[rows]), torch.from_numpy(group[rows]))


def check_present(task: Task, y: Codes, group: Codes, where: Path) -> None:
    """Refuse images in which a label or a group does not occur."""
    for codes, names, kind in ((y, task.label_names, task.label), (group, task.group_names, task.group)):
        missing = [name for code, name in enumerate(names) if not (codes == code).any()]
        if missing:
            raise UserError(f"No image in {where} has {kind} {missing[0]!r}: use more images.")


def existing_folder(root: str, advice: str) -> Path:
    """The folder, or a `UserError` with advice on where to get the data."""
    folder = Path(root).expanduser()
    require(folder.exists(), f"There is no folder {folder}: {advice}", "Its folder of images does not exist.")
    require(folder.is_dir(), f"{folder} is not a folder: {advice}", "Its folder of images is not a folder.")
    return folder

"""UTKFace: predict whether a person is under 20, with race or gender as the group.

The paper says "skin colour" without saying which races that groups together; Black against the rest is the grouping
whose base rates fit its tables best, so it is the default. In every `A_vs_B`, group 1 is A and group 0 is
B.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from ffalm.data.decode import ENDINGS, Recipe
from ffalm.data.pictures import Codes, check_present, examples, existing_folder, load_usable, split_by_content
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.splits import check_shares
from ffalm.data.types import Dataset, Task
from ffalm.errors import UserError
from ffalm.settings import described

ADVICE = (
    "download the aligned and cropped faces of UTKFace from https://susanqq.github.io/UTKFace/ "
    "and give the folder they are unpacked in."
)
RACES = ("White", "Black", "Asian", "Indian", "Other")
ADULT_AGE = 20

#: age_gender_race_stamp. Only the start counts: one stamp ends in a blank, one name lacks the dot of ".jpg".
_NAME = re.compile(r"(\d{1,3})_([01]?)_([0-4])_")

Sensitive = Literal[
    "black_vs_rest",
    "white_vs_rest",
    "asian_vs_rest",
    "indian_vs_rest",
    "other_vs_rest",
    "darker_vs_rest",
    "black_vs_white",
    "race",
    "gender",
]

_REST = "rest"
#: binary groupings of race: (name of group 0, its races), (name of group 1, its races)
_GROUPINGS: dict[str, tuple[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]]]] = {
    **{f"{one.lower()}_vs_rest": ((_REST, tuple(set(RACES) - {one})), (one, (one,))) for one in RACES},
    "darker_vs_rest": ((_REST, ("White", "Asian", "Other")), ("Black or Indian", ("Black", "Indian"))),
    "black_vs_white": (("White", ("White",)), ("Black", ("Black",))),
}


@dataclass(frozen=True)
class UTKFace:
    """The publishers' image files, named age_gender_race_stamp; the label is 1 for ages below 20."""

    name: ClassVar[str] = "utkface"
    about: ClassVar[str] = "UTKFace, aligned faces (the publishers' files)"
    asks: ClassVar[str] = (
        "under 20 (favourable), by race (Black and the rest unless another grouping is set) or by gender"
    )
    needs_files: ClassVar[bool] = True

    root: str = described("Folder that holds the images.")
    size: int = described("Side of the images in pixels.", 64)
    sensitive: Sensitive = field(default="black_vs_rest", metadata={"about": "Groups that are compared."})
    validation: float = described("Share of the images that is held out.", 0.1)
    test: float = described("Share of test images.", 0.1)
    data_seed: int = described("Seed of the split.", 0)
    skip_bad: bool = described("Leave out images that cannot be read, instead of refusing them.", False)

    def __post_init__(self) -> None:
        check_shares(self.validation, self.test, " of UTKFace", "images")
        Recipe(self.size)

    def load(self) -> Dataset:
        """Read the faces of the chosen groups and split them, copies of one image together."""
        folder, found = _find(existing_folder(self.root, ADVICE))
        names = [name for name in found if _parsed(name)]
        decoded, good, notes = load_usable(folder, names, Recipe(self.size), self.skip_bad)
        ages, genders, races = _fields(names)
        group_names, group = _grouped(self.sensitive, genders, races)
        task = _task(self.sensitive, group_names)
        chosen = good[group[good] >= 0]
        y = (ages < ADULT_AGE).astype(np.int64)
        check_present(task, y[chosen], group[chosen], folder)
        contents = [decoded.contents[row] for row in chosen]
        parts, duplicates = split_by_content(
            contents, y[chosen], group[chosen], self.validation, self.test, self.data_seed
        )
        skipped = _skipped(len(found) - len(names), len(good) - len(chosen), self.sensitive)
        return Dataset(
            task,
            *(examples(decoded, chosen[part], y, group) for part in parts),
            notes=(*notes, *skipped, *duplicates),
            preprocessing=Preprocessing(images=Recipe(self.size)),
        )


def _find(root: Path) -> tuple[Path, list[str]]:
    """The folder that holds the images and their names in it.

    That is the first of the usual places with any, else every folder below (the publishers' part1 to part3).
    Archives that people pass around hold some images twice, so of equal names below only the first counts.
    """
    for folder in (root, root / "UTKFace", root / "utkface", root / "utkface_aligned_cropped" / "UTKFace"):
        if folder.is_dir():
            names = _images(os.listdir(folder))
            if any(map(_parsed, names)):
                return folder, names
    files = (os.path.join(place, name) for place, _, names in os.walk(root) for name in names)
    below = _images(os.path.relpath(file, root) for file in files)
    once = list({os.path.basename(name): name for name in reversed(below)}.values())
    if not any(map(_parsed, once)):
        raise UserError(f"No image in {root} is named age_gender_race_stamp.jpg as UTKFace's are: {ADVICE}")
    return root, sorted(once)


def _parsed(name: str) -> re.Match[str] | None:
    return _NAME.match(os.path.basename(name))


def _images(names: Iterable[str]) -> list[str]:
    seen = (name for name in names if not os.path.basename(name).startswith("."))
    return sorted(name for name in seen if name.lower().endswith(ENDINGS))


def _fields(names: list[str]) -> tuple[Codes, Codes, Codes]:
    """Age, gender (-1 where a name lacks it) and race of every name."""
    fields = [match.groups() for match in map(_parsed, names) if match]
    table = [(int(age), int(gender or -1), int(race)) for age, gender, race in fields]
    ages, genders, races = np.asarray(table, dtype=np.int64).T
    return ages, genders, races


def _grouped(sensitive: str, genders: Codes, races: Codes) -> tuple[tuple[str, ...], Codes]:
    """The groups' names and every face's group, -1 where it is in none."""
    if sensitive == "race":
        return RACES, races
    if sensitive == "gender":  # the files say 0 for male; here as everywhere 0 is female
        return ("female", "male"), np.where(genders < 0, -1, 1 - genders)
    (name_0, members_0), (name_1, members_1) = _GROUPINGS[sensitive]
    group_of_race = np.full(len(RACES), -1, dtype=np.int64)
    group_of_race[[RACES.index(race) for race in members_0]] = 0
    group_of_race[[RACES.index(race) for race in members_1]] = 1
    return (name_0, name_1), group_of_race[races]


def _task(sensitive: str, group_names: tuple[str, ...]) -> Task:
    kind = sensitive if sensitive == "gender" else "race"
    return Task("utkface", "age", kind, (f"{ADULT_AGE} or older", f"under {ADULT_AGE}"), group_names)


def _skipped(unnamed: int, outside: int, sensitive: str) -> tuple[str, ...]:
    reasons = (
        (unnamed, "whose name lacks an age or a race"),
        (outside, f"in no group of {sensitive!r}"),
    )
    return tuple(f"{count} images {why} were left out." for count, why in reasons if count)

"""UCI Adult (census income, 1994) from the publishers' own two files."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from ffalm.data.encoding import RawTable
from ffalm.data.owners import with_owners
from ffalm.data.preprocessing import Preprocessing, merged_values
from ffalm.data.splits import split_rows
from ffalm.data.types import Dataset, Task
from ffalm.errors import UserError
from ffalm.settings import described

NUMERIC = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
FAVOURED = {"sex": "Male", "race": "White"}
GROUP_NAMES = {"sex": ("Female", "Male"), "race": ("non-White", "White")}


@dataclass(frozen=True)
class Adult:
    """Adult with the official test file as the test part.

    Every published column is a feature except `fnlwgt`, a survey weight that says nothing about the person. The
    sensitive attribute stays one, as in most published work, unless `use_group_as_feature` is false: leaving it out
    hides unfairness, because marital status and relationship reveal sex almost as well. A '?' is a category of its own.
    """

    name: ClassVar[str] = "adult"
    about: ClassVar[str] = "UCI Adult (files from UCI)"
    asks: ClassVar[str] = "income over 50K (favourable), by sex or by race: White and others"
    needs_files: ClassVar[bool] = True

    root: str = described("Folder that holds adult.data and adult.test.")
    sensitive: Literal["sex", "race"] = described("Attribute that defines the groups.", "sex")
    validation: float = described("Share of the training file that is held out.", 0.1, above=0, below=1)
    data_seed: int = described("Seed of that split.", 0)
    use_group_as_feature: bool = described("Whether the sensitive attribute is a feature too.", True)
    owner: str | None = described("Column of text whose values are the data owners.", None)

    def load(self) -> Dataset:
        """Read both files, carve the validation part out of the training file and encode."""
        return self.read().encoded()

    def read(self) -> RawTable:
        """The table before it is encoded."""
        folder = Path(self.root).expanduser()
        official_train, official_test = (_read(folder / name) for name in ("adult.data", "adult.test"))
        frame = pd.concat([official_train, official_test], ignore_index=True)
        y = (frame["income"] == ">50K").to_numpy(dtype=np.int64)
        group = (frame[self.sensitive] == FAVOURED[self.sensitive]).to_numpy(dtype=np.int64)
        boundary = len(official_train)
        fractions = (1 - self.validation, self.validation)
        train, validation = split_rows((2 * y + group)[:boundary], fractions, self.data_seed)
        table = RawTable(
            task=self._task(),
            features=frame.drop(columns=["fnlwgt", "income", *([] if self.use_group_as_feature else [self.sensitive])]),
            y=y,
            group=group,
            parts=(train, validation, np.arange(boundary, len(frame))),
            preprocessing=Preprocessing(
                group_values=merged_values(frame[self.sensitive], group, GROUP_NAMES[self.sensitive])
            ),
        )
        return with_owners(table, self.owner)

    def _task(self) -> Task:
        return Task(
            name="adult",
            label="income",
            group=self.sensitive,
            label_names=("at most 50K", "over 50K"),
            group_names=GROUP_NAMES[self.sensitive],
        )


def _read(path: Path) -> pd.DataFrame:
    """One of the two files; the test file opens with a comment line and ends its labels with a full stop."""
    if not path.is_file():
        raise UserError(
            f"There is no file {str(path)!r}: get it with `ffalm data get adult`, or set root to the folder "
            f"that holds adult.data and adult.test."
        )
    kinds = {name: np.float64 if name in NUMERIC else str for name in COLUMNS}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a first record with too many fields
            frame = pd.read_csv(
                path,
                header=None,
                names=list(COLUMNS),
                dtype=kinds,
                index_col=False,
                skipinitialspace=True,
                na_filter=False,
                comment="|",
            )
    except (ValueError, OSError, pd.errors.ParserWarning) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{str(path)!r} is not UCI's Adult file as published: {reason}.") from None
    frame["income"] = frame["income"].str.strip().str.removesuffix(".")
    unknown = frame[[*FAVOURED]].isin(["", "?"]).any(axis=1)  # would be in the other group
    strange = frame.index[~frame["income"].isin(["<=50K", ">50K"]) | unknown]
    if len(frame) == 0 or len(strange):
        where = f"record {strange[0] + 1} lacks a sex, a race or an income" if len(strange) else "it holds no records"
        raise UserError(f"{str(path)!r} is not UCI's Adult file as published: {where}.")
    return frame

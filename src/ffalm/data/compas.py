"""ProPublica's COMPAS recidivism records from the file they published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from ffalm.data.encoding import RawTable
from ffalm.data.owners import with_owners
from ffalm.data.preprocessing import Preprocessing, merged_values
from ffalm.data.splits import check_shares, split_rows
from ffalm.data.types import Dataset, Task
from ffalm.errors import UserError
from ffalm.settings import described

FILE = "compas-scores-two-years.csv"
NUMERIC = ("age", "priors_count", "juv_fel_count", "juv_misd_count", "juv_other_count")
CATEGORIES = ("age_cat", "c_charge_degree", "sex", "race")
FILTER = ("days_b_screening_arrest", "is_recid", "score_text")
LABEL = "two_year_recid"


@dataclass(frozen=True)
class Compas:
    """Defendants of Broward County; the favourable outcome (label 1) is no new offence within two years.

    Rows pass ProPublica's published filter: screened within 30 days of the arrest, a known outcome, no
    ordinary traffic offence, and a COMPAS score. That score is another model's output and no feature here;
    nor are names, dates and charge texts. Race stays one unless `use_group_as_feature` is false: without it
    unfairness is hidden, not removed.
    """

    name: ClassVar[str] = "compas"
    about: ClassVar[str] = "ProPublica COMPAS (file from ProPublica)"
    asks: ClassVar[str] = "no new offence within two years (favourable), by race: African-American and others"
    needs_files: ClassVar[bool] = True

    root: str = described("Folder that holds compas-scores-two-years.csv.")
    groups: Literal["black_vs_rest", "black_vs_white"] = described("The two groups.", "black_vs_rest")
    validation: float = described("Share of the rows that is held out.", 0.1)
    test: float = described("Share of test rows.", 0.2)
    data_seed: int = described("Seed of the split.", 0)
    use_group_as_feature: bool = described("Whether race is a feature too.", True)
    owner: str | None = described("Column of text whose values are the data owners.", None)

    def __post_init__(self) -> None:
        check_shares(self.validation, self.test, " of COMPAS")

    def load(self) -> Dataset:
        """Read and filter the file, split it and encode."""
        return self.read().encoded()

    def read(self) -> RawTable:
        """The table before it is encoded."""
        everyone = _read(Path(self.root).expanduser() / FILE)
        frame = _filtered(everyone)
        if self.groups == "black_vs_white":
            frame = frame[frame["race"].isin(["African-American", "Caucasian"])]
        y = (frame[LABEL] == 0).to_numpy(dtype=np.int64)
        group = (frame["race"] != "African-American").to_numpy(dtype=np.int64)
        names = ("African-American", "other" if self.groups == "black_vs_rest" else "Caucasian")
        fractions = (1 - self.validation - self.test, self.validation, self.test)
        table = RawTable(
            task=Task(
                name="compas",
                label="no new offence within two years",
                group="race",
                label_names=("reoffended", "did not reoffend"),
                group_names=names,
            ),
            features=frame[[*NUMERIC, *CATEGORIES]].drop(columns=[] if self.use_group_as_feature else ["race"]),
            y=y,
            group=group,
            parts=split_rows(2 * y + group, fractions, self.data_seed),
            notes=(f"{len(frame)} of {len(everyone)} published records pass the filter and belong to a group.",),
            preprocessing=Preprocessing(group_values=merged_values(frame["race"], group, names)),
        )
        return with_owners(table, self.owner)


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(
            f"There is no file {str(path)!r}: get it with `ffalm data get compas`, or set root to the folder "
            f"that holds {FILE}."
        )
    kinds = {**dict.fromkeys((*NUMERIC, LABEL, "is_recid"), np.float64), **dict.fromkeys(CATEGORIES, str)}
    try:
        frame = pd.read_csv(path, usecols=[*NUMERIC, *CATEGORIES, *FILTER, LABEL], dtype=kinds)
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{str(path)!r} is not ProPublica's file as published: {reason}.") from None
    strange = frame.index[~frame[LABEL].isin((0, 1)) | frame["race"].isna()]
    if len(strange):
        where = f"record {strange[0] + 1} lacks a race, or a {LABEL} of 0 or 1"
        raise UserError(f"{str(path)!r} is not ProPublica's file as published: {where}.")
    return frame


def _filtered(frame: pd.DataFrame) -> pd.DataFrame:
    """The records that ProPublica kept in their analysis."""
    return frame[
        frame["days_b_screening_arrest"].between(-30, 30)
        & (frame["is_recid"] != -1)
        & (frame["c_charge_degree"] != "O")
        & frame["score_text"].notna()  # pandas reads their "N/A" as missing
    ]

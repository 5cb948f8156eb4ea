"""US census PUMS person files (American Community Survey): natural silos by state, five prediction tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.data.acs_files import person_files, read_files
from ffalm.data.acs_tasks import MEANINGS, NUMERIC, STATES, TASKS, WITHIN_STATE
from ffalm.data.encoding import RawTable
from ffalm.data.group_settings import fewest_rows, group_columns
from ffalm.data.owners import code_owner
from ffalm.data.splits import check_shares, split_rows
from ffalm.data.table_columns import MOST_CATEGORIES
from ffalm.data.table_groups import code_groups, group_column
from ffalm.data.table_values import Value
from ffalm.data.types import Dataset, Task
from ffalm.errors import require
from ffalm.settings import described

_OTHER = "other"


@dataclass(frozen=True)
class Acs:
    """Persons of one survey year.

    Tasks, with their features and filters, are those of Ding et al. (2021, "Retiring Adult"): `income` over 50,000,
    `employment`, public health `coverage`, `mobility` (lives in the same house as a year ago) and `travel_time` to work
    over 20 minutes; the named outcome counts as favourable. Codes are categories. A missing number is 0, a missing code
    a category of its own. Every state is a client unless a partition is named.
    """

    name: ClassVar[str] = "acs"
    about: ClassVar[str] = "US census PUMS persons by state (files from the Census Bureau)"
    asks: ClassVar[str] = "income over 50,000 (favourable), or one of four other tasks, by sex or race"
    needs_files: ClassVar[bool] = True
    natural_silos: ClassVar[bool] = True

    root: str = described("Folder with files such as psam_p06.csv or csv_pca.zip.")
    task: Literal["income", "employment", "coverage", "mobility", "travel_time"] = described(
        "Outcome that is predicted.", "income"
    )
    group: str | tuple[str, ...] = described("SEX, RAC1P or another coded column; several are crossed.", "SEX")
    states: tuple[str, ...] = described("Postal codes of states; none: all that the folder holds.", ())
    against_rest: tuple[Value, ...] = described("The values of one group; all others form the second.", ())
    min_group_size: int | None = described(
        "Fewest training rows of a group that is compared; none: 30 for crossed columns, else 0.", None, least=0
    )
    most_categories: int = described(
        "Most categories of a column; its rarest codes are merged.", 100, least=2, most=MOST_CATEGORIES
    )
    use_group_as_feature: bool = described("Whether the group column is a feature too.", True)
    validation: float = described("Share of each state's rows that is held out.", 0.1)
    test: float = described("Share of each state's rows that is for the test.", 0.2)
    data_seed: int = described("Seed of the split.", 0)

    def __post_init__(self) -> None:
        if not isinstance(self.group, str):
            object.__setattr__(self, "group", tuple(self.group))
        states = (state.strip().upper() for named in self.states for state in named.split(","))
        object.__setattr__(self, "states", tuple(states))
        check_shares(self.validation, self.test, " of acs")

    def load(self) -> Dataset:
        """Read and filter the files, split them and encode."""
        return self.read().encoded()

    def read(self) -> RawTable:
        """The table before it is encoded."""
        task, crossed = TASKS[self.task], group_columns(self.group)
        columns = dict.fromkeys((*task.features, *crossed, task.target, *task.filter_columns, "ST"))
        files = person_files(self.root, self.states)
        persons, everybody = read_files(files, list(columns), task.kept, self.states)
        require(len(persons) > 0, f"No person in {self.root!r} passes the filter of the task {self.task!r}.")
        y = task.favourable(persons[task.target]).to_numpy(dtype=np.int64)
        state = _categories(persons["ST"], STATES)
        coded = {name: _categories(persons[name], MEANINGS.get(name, {})) for name in crossed}
        column = group_column(pd.DataFrame(coded), crossed, self.root)
        found = code_groups(column, (), self.against_rest, self.root)
        strata = (state.cat.codes.to_numpy(dtype=np.int64) * 2 + y) * len(found.names) + found.codes
        shares = (1 - self.validation - self.test, self.validation, self.test)
        parts = split_rows(strata, shares, self.data_seed)
        train = parts[0]
        found = found.with_small_last(train, fewest_rows(self.min_group_size, crossed), self.root)
        owner, owners, without = code_owner(state, train, self.root)
        merged: list[str] = []
        features = {}
        for name in task.features:
            if self.use_group_as_feature or name not in crossed:
                features[name] = self._feature(persons, name, train, merged)
        notes = [f"{len(persons):,} of {everybody:,} persons pass the filter of the task {self.task}."]
        if merged:
            notes.append(
                f"Beyond the {self.most_categories} most frequent, codes of {', '.join(merged)} are one category."
            )
        return RawTable(
            task=Task(
                f"acs-{self.task}", task.label, str(column.name), task.label_names, found.names, 1, found.excluded
            ),
            features=pd.DataFrame(features),
            y=y,
            group=found.codes,
            parts=parts,
            owner=owner,
            owner_names=owners,
            notes=(*notes, *found.notes, *without),
        )

    def _feature(self, persons: pd.DataFrame, name: str, train: NDArray[np.int64], merged: list[str]) -> pd.Series:
        """A feature column; adds its name to `merged` if rare codes became one category."""
        if name in NUMERIC:
            return persons[name].fillna(0.0)
        if name in WITHIN_STATE:
            column = _categories((persons["ST"] * 100_000 + persons[name]).rename(name), {})
        else:
            column = _categories(persons[name], {**MEANINGS, "ST": STATES}.get(name, {}))
        return _bounded(column, train, self.most_categories, merged)


def _categories(column: pd.Series, meanings: dict[int, str]) -> pd.Series:
    """Codes as categories, by their meaning where it is known; a missing code stays missing."""
    codes, values = pd.factorize(column, sort=True)
    names = [meanings.get(int(value), str(int(value))) for value in values]
    return pd.Series(pd.Categorical.from_codes(codes, names), name=column.name)


def _bounded(column: pd.Series, train: NDArray[np.int64], most: int, merged: list[str]) -> pd.Series:
    """At most so many categories: the most frequent ones of the training rows, and one for all others."""
    names = column.cat.categories
    if len(names) <= most:
        return column
    codes = column.cat.codes.to_numpy()
    counts = np.bincount(codes[train] + 1, minlength=len(names) + 1)[1:]
    kept = np.sort(np.argsort(-counts, kind="stable")[: most - 1])
    lookup = np.full(len(names) + 1, len(kept))  # the last one serves the code -1, which stays missing
    lookup[kept], lookup[-1] = np.arange(len(kept)), -1
    merged.append(str(column.name))
    return pd.Series(pd.Categorical.from_codes(lookup[codes], [*names[kept], _OTHER]), name=column.name)

"""Your own CSV, TSV or Parquet file: one column is the label, one or more the group, the rest are features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal
from unicodedata import normalize

import numpy as np
import pandas as pd

from ffalm.data.category_lookup import as_text, distinct
from ffalm.data.encoding import RawTable, is_numeric
from ffalm.data.group_settings import fewest_rows, group_columns
from ffalm.data.number_cells import written_strangely
from ffalm.data.owners import code_owner
from ffalm.data.preprocessing import Preprocessing, merged_values
from ffalm.data.splits import check_shares, split_rows
from ffalm.data.table_codes import code_columns
from ffalm.data.table_columns import (
    MOST_CATEGORIES,
    as_category,
    check_feature,
    filled,
    several_refused,
)
from ffalm.data.table_files import FILE_COLUMN, checked_columns, files_of, read_tables
from ffalm.data.table_groups import code_groups, group_column
from ffalm.data.table_remarks import remarks
from ffalm.data.table_values import (
    Codes,
    Value,
    canonical,
    complete,
    listed,
    listed_columns,
    natural,
    nearest,
    pick,
    place_of,
    several_yes_and_no,
)
from ffalm.data.types import Dataset, Task
from ffalm.data.written_numbers import FEWEST_IDS
from ffalm.errors import UserError, require
from ffalm.settings import described
from ffalm.system.spilled_arrays import release_pages

_MOST_TITLES = 4  # files that reports name
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True)
class Table:
    """A table of your own, with a label of two or more values and two or more groups.

    Numeric columns are standardised, those with a long tail (not negative, standard deviation above twice the mean)
    after taking the fourth root; all others are one-hot encoded. Label, owner, split and `drop` columns are never
    features.

    Rows whose group is missing, or is smaller than `min_group_size`, train and are scored; constraints, gaps and group
    thresholds leave them out.
    """

    name: ClassVar[str] = "table"
    about: ClassVar[str] = "your own CSV, TSV or Parquet file"
    asks: ClassVar[str] = "your label column, favourable value and group column"
    needs_files: ClassVar[bool] = True

    file: str = described("The file; several, comma-separated, are one client each.")
    label: str = described("Column of labels.")
    group: str | tuple[str, ...] = described("Column of groups; several are crossed: female, black.")
    favourable: Value | None = field(
        default=None, metadata={"about": "Label for which fairness is measured; needed unless labels are 0 and 1."}
    )
    owner: str | None = described("Column of data owners: each value is a client.", None)
    split: str | None = described("Column that says train, validation or test for each row.", None)
    drop: tuple[str, ...] = described("Columns that are not features.", ())
    categorical: tuple[str, ...] = described("Numeric columns that are category codes.", ())
    groups: tuple[Value, ...] = described("The groups in order; none: every value.", ())
    against_rest: tuple[Value, ...] = described("The values of one group; all others form the second.", ())
    min_group_size: int | None = described(
        "Fewest training rows of a group that is compared; none: 30 for crossed columns, else 0.", None, least=0
    )
    use_group_as_feature: bool = described("Whether the group column is a feature too.", True)
    separator: str | None = described("Column separator; none: detected from the first lines.", None)
    encoding: str | None = described("Encoding of the text; none: UTF-8.", None)
    decimal: Literal[".", ","] = described("Decimal separator.", ".")
    missing: Literal["refuse", "mean"] = described(
        "Missing numbers: refuse them, or use the training rows' mean.", "refuse"
    )
    validation: float = described(
        "Share of held-out rows; with `split`, of its training rows if it names no held-out ones.", 0.1
    )
    test: float = described("Share of test rows, without `split`.", 0.2)
    data_seed: int = described("Seed of the split.", 0)

    def __post_init__(self) -> None:
        if not isinstance(self.group, str):
            object.__setattr__(self, "group", tuple(self.group))
        for role in ("label", "group", "owner", "split", "drop", "categorical"):
            object.__setattr__(self, role, _composed(getattr(self, role)))
        for role, columns in (("group", self.group_columns), ("owner", (self.owner,)), ("split", (self.split,))):
            require(
                self.label not in columns,
                f"The label and the {role} must be different columns; both are {self.label!r}.",
            )
        require(
            not (self.groups and self.against_rest),
            "`groups` and `against_rest` exclude each other: one lists all groups, the other merges them into two.",
        )
        check_shares(self.validation, self.test)

    def load(self) -> Dataset:
        """Read, check, split and encode the file."""
        with np.errstate(all="ignore"):  # values that are not finite are reported by name elsewhere
            return self.read().encoded()

    def read(self) -> RawTable:
        """The table before it is encoded."""
        frame, notes = self._opened()
        y, labels, assumed = code_label(pick(frame, self.label, self.file), self.favourable, self.file)
        column = group_column(frame, self.group_columns, self.file)
        found = code_groups(column, self.groups, self.against_rest, self.file)
        parts = self._parts(frame, y * len(found.names) + found.codes)
        train = parts[0]
        found = found.with_small_last(train, fewest_rows(self.min_group_size, self.group_columns), self.file)
        unseen = check_training_labels(y[train], labels, self.label, self.file)
        shares = () if self.split is None else unused_shares(self, pick(frame, self.split, self.file))
        owner: Codes | None = None
        owners: tuple[str, ...] = ()
        without: tuple[str, ...] = ()
        owner_column = FILE_COLUMN if self.natural_silos else self.owner
        if owner_column is not None:
            owner, owners, without = code_owner(pick(frame, owner_column, self.file), train, self.file)
        measured = [name for name in self._feature_names(frame) if name not in self._codes]
        strange = self.strange_numbers({name: frame[name] for name in measured})
        frame, gaps = filled(frame, measured, train, self.missing == "mean", self.file)
        features = self.features(frame)
        return RawTable(
            task=Task(self._title, self.label, str(column.name), labels, found.names, len(labels) - 1, found.excluded),
            features=features,
            y=y,
            group=found.codes,
            parts=parts,
            owner=owner,
            owner_names=owners,
            long_tails=True,
            notes=(
                *(*notes, *assumed, *unseen, *found.notes, *shares, *without, *gaps),
                *remarks(features, y, train, self._codes, strange),
            ),
            preprocessing=Preprocessing(
                missing=self.missing,
                separator=self.separator,
                decimal=self.decimal,
                encoding=self.encoding,
                group_values=merged_values(column, found.codes, found.names),
            ),
        )

    def _opened(self) -> tuple[pd.DataFrame, tuple[str, ...]]:
        """The columns, and notes on those that were left out."""
        codes = self._codes | ({self.owner} if self.owner is not None else set())
        return read_tables(self.file, self.separator, self.decimal, self.encoding, codes)

    @property
    def _title(self) -> str:
        names = [Path(file).name.split(".")[0] for file in files_of(self.file)]
        return ", ".join(names) if len(names) <= _MOST_TITLES else f"{names[0]} and {len(names) - 1} more"

    @property
    def natural_silos(self) -> bool:
        """Whether each owner has a file of its own."""
        return self.owner is None and len(files_of(self.file)) > 1

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns whose values, crossed, are the groups."""
        return group_columns(self.group)

    @property
    def _codes(self) -> set[str]:
        """The columns that are categories even if their values are numbers."""
        return code_columns(self.categorical, self.group_columns)

    def _parts(self, frame: pd.DataFrame, strata: Codes) -> list[Codes]:
        fractions = (1 - self.validation - self.test, self.validation, self.test)
        if self.split is None:
            return split_rows(strata, fractions, self.data_seed)
        column = pick(frame, self.split, self.file)
        return parts_of(column, strata, self.validation, self.data_seed, self.file)

    def features(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The feature columns of the file, each checked by `check_feature`."""
        columns = self.unchecked_features(frame)
        refused: dict[str, UserError] = {}
        for name in columns:
            try:
                self.check(columns[name])
                release_pages()
            except UserError as error:
                refused[str(name)] = error
        if refused:
            raise several_refused(refused)
        return columns

    def unchecked_features(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The feature columns; the group is a category even if its values are numbers."""
        codes, names = self._codes, self._feature_names(frame)
        columns = {name: as_category(frame[name]) if name in codes else frame[name] for name in names}
        return pd.DataFrame(columns, copy=False)

    def strange_numbers(self, columns: Mapping[str, pd.Series]) -> dict[str, str]:
        """What to say of columns of numbers that the file writes like codes or thousands."""
        return written_strangely(self.file, columns, self.separator, self.decimal, self.encoding)

    def check(self, column: pd.Series) -> None:
        """Refuse a feature column that cannot be learned from."""
        check_feature(column, column.name in self._codes, self.file, self.decimal)

    def _feature_names(self, frame: pd.DataFrame) -> list[str]:
        listed_columns(frame, self.categorical, self.file)
        kept_out = {self.label, self.owner, self.split, *listed_columns(frame, self.drop, self.file)}
        if len(files_of(self.file)) > 1:
            kept_out.add(FILE_COLUMN)
        if not self.use_group_as_feature:
            kept_out.update(self.group_columns)
        names = [str(name) for name in frame.columns if name not in kept_out]
        require(len(names) > 0, f"{self.file!r} has no feature columns beside label, group and dropped ones.")
        return names


@dataclass(frozen=True)
class FrameTable(Table):
    """A `Table` over a data frame in memory."""

    file: str = "data frame"
    label: str = ""
    group: str | tuple[str, ...] = ""
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False, repr=False)

    def _opened(self) -> tuple[pd.DataFrame, tuple[str, ...]]:
        return checked_columns(self.frame, self.file)

    def strange_numbers(self, columns: Mapping[str, pd.Series]) -> dict[str, str]:
        """Nothing: columns of a data frame say themselves what is a number."""
        return {}


def _composed(names: Any) -> Any:
    """Column names with their letters composed, as `column_name` has them."""
    if isinstance(names, tuple):
        return tuple(_composed(name) for name in names)
    return normalize("NFC", names) if isinstance(names, str) else names


def code_label(
    column: pd.Series, favourable: Value | None, file: str
) -> tuple[Codes, tuple[str, ...], tuple[str, ...]]:
    """Label codes 0..C-1, the names of the labels (in natural order, the favourable one last), and notes."""
    codes, values = complete(column, "label", file)
    name = str(column.name)
    where = f"The label column {name!r} of {file!r}"
    notes = list(_check_label_values(column, codes, values, where))
    if favourable is None:
        require(
            {canonical(value) for value in values} == {"0", "1"},
            f"Say which value of the label {name!r} of {file!r} is favourable: set favourable to "
            f"{' or '.join(map(repr, sorted(values))) if len(values) == 2 else f'one of {listed(values)}'}.",
        )
        favourable = 1
        notes.append(f"{name!r} = 1 was taken as the favourable outcome; favourable changes it.")
    best = place_of(favourable, values)
    if best < 0:
        wanted = as_text(favourable)
        raise UserError(f"The label {name!r} has no value {wanted!r}: {nearest(wanted, values)}")
    names = (*sorted(values[:best] + values[best + 1 :], key=natural), values[best])
    return np.array([names.index(value) for value in values], dtype=np.int64)[codes], names, tuple(notes)


def _check_label_values(column: pd.Series, codes: Codes, values: list[str], where: str) -> tuple[str, ...]:
    """Refuse a label that looks like a quantity, an id or a misspelling; a note if numbers may be a quantity."""
    rows, count, numeric = len(column), len(values), is_numeric(column)
    require(count > 1, f"{where} holds one value only, {values[0]!r}: there is nothing to predict.")
    many = f"{where} holds {count} different {'numbers' if numeric else 'values'} in {rows} rows"
    looks, bins = ("a quantity", "put them into bins, such as under 40, or ") if numeric else ("a name", "")
    require(
        count <= max(FEWEST_IDS, min(rows / 10, MOST_CATEGORIES))
        and not (numeric and count > FEWEST_IDS and (column % 1 != 0).any()),
        f"{many}, like {looks} or an id: {bins}name another column.",
    )
    alike = [value for value in values if sum(canonical(value) == canonical(other) for other in values) > 1]
    require(not alike, f"{where} holds {listed(alike)}, which differ in spelling alone: write them the same way.")
    require(
        not several_yes_and_no(values),
        f"{where} holds {listed(values)}, which say yes and no in several ways: write them the same way.",
    )
    rare = [value for value, found in zip(values, np.bincount(codes), strict=True) if found < len(PARTS)]
    require(
        count == 2 or not rare,
        f"{where} holds {listed(rare)} in fewer than {len(PARTS)} rows: correct these rows or leave them out.",
    )
    if not numeric or count <= FEWEST_IDS:
        return ()
    return (f"{many}, each a label of its own: put them into bins if they are a quantity.",)


def check_training_labels(y: Codes, names: tuple[str, ...], label: str, file: str) -> tuple[str, ...]:
    """A note on labels without training rows; refuses fewer than two labels, or none of the favourable (last) one."""
    missing = [name for code, name in enumerate(names) if not (y == code).any()]
    where = f"The training part of {file!r}"
    require(len(names) - len(missing) > 1, f"{where} holds only one value of the label {label!r}.")
    require(names[-1] not in missing, f"{where} has no row with the favourable label {names[-1]!r}.")
    return (f"{where} has no row with the label {listed(missing)}; models cannot learn it.",) if missing else ()


def parts_of(column: pd.Series, strata: Codes, validation: float, seed: int, file: str) -> list[Codes]:
    """Row numbers of each part of a split column; without validation rows, some training rows are taken."""
    codes, values = complete(column, "split", file)
    where = f"The split column {str(column.name)!r} of {file!r}"
    spelled = {spelling: part for part, spellings in PARTS.items() for spelling in spellings}
    strange = [value for value in values if value.casefold() not in spelled]
    public = "Its split column does not mark every row as train, validation or test, with rows of train and test."
    require(not strange, f"{where} may hold train, validation and test; it holds {listed(strange)}.", public)
    part = np.array([spelled[value.casefold()] for value in values])[codes]
    rows = {name: np.flatnonzero(part == name) for name in PARTS}
    for name in ("train", "test"):
        require(len(rows[name]) > 0, f"{where} marks no row as {name}.", public)
    if len(rows["validation"]) == 0:
        train = rows["train"]
        kept, carved = split_rows(strata[train], (1 - validation, validation), seed)
        return [train[kept], train[carved], rows["test"]]
    return list(rows.values())


def unused_shares(source: Any, column: pd.Series) -> tuple[str, ...]:
    """A note on shares or a seed of a data source that were set, although its split column leaves them no effect."""
    held_out = {value.casefold() for value in distinct(column)[1]} & {*PARTS["validation"]}
    unused = ("test", "validation", "data_seed") if held_out else ("test",)
    given = [one.name for one in fields(source) if one.name in unused and getattr(source, one.name) != one.default]
    if not given:
        return ()
    what = f"The setting{'s' * (len(given) > 1)} {listed(given)} change{'s' * (len(given) == 1)} nothing"
    return (f"{what}: the split column {str(column.name)!r} says which rows are tested and held out.",)

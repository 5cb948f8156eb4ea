"""A site's own rows: read, split by the site, described in sums, and encoded as agreed.

A site splits before anything is agreed, by its own values of label and group, so its held-out rows are the same every
time and never influence the encoding. Every error here has a public part without values, file names or counts of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ffalm.data.category_lookup import distinct
from ffalm.data.decode import Recipe
from ffalm.data.encoding import (
    CategorySummary,
    ColumnSummary,
    NumericSummary,
    RawTable,
    TableEncoding,
    TableSummary,
    is_numeric,
    numbers,
)
from ffalm.data.images import image_names
from ffalm.data.pictures import examples, existing_folder, load_usable, split_by_content
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.splits import split_rows
from ffalm.data.table import Table, parts_of
from ffalm.data.table_codes import code_columns
from ffalm.data.table_columns import MOST_CATEGORIES
from ffalm.data.table_files import read_table
from ffalm.data.table_groups import group_column
from ffalm.data.table_values import Codes, complete, listed, natural, pick, place_of
from ffalm.data.types import Task
from ffalm.data.written_numbers import FEWEST_IDS
from ffalm.errors import PublicError, UserError, require, require_public
from ffalm.federate.description import ColumnKind, Description
from ffalm.federate.federation_config import (
    LocalImages,
    LocalTable,
    SharedData,
    SharedImages,
    SharedTable,
    SiteConfig,
    Split,
)
from ffalm.federate.site.cache import Parts
from ffalm.federate.site.rare_numbers import put_together


@dataclass(frozen=True)
class Coded:
    """A column of names: each row's place among the values that this site has, in natural order."""

    codes: Codes  # -1 where the group is missing
    values: tuple[str, ...]
    crossed: bool = False  # whether values are crossings of several columns, rare ones of which are no mistakes

    @classmethod
    def of_group(cls, frame: pd.DataFrame, shared: SharedData, file: str) -> Coded:
        """The group column; a row may have no group."""
        column = group_column(frame, shared.group_columns, file)
        return replace(cls._of(column, *distinct(column), "group", file), crossed=shared.crossed)

    @classmethod
    def of(cls, column: pd.Series, role: str, file: str) -> Coded:
        """A column in which every row must have a value."""
        return cls._of(column, *complete(column, role, file), role, file)

    @classmethod
    def _of(cls, column: pd.Series, codes: Codes, values: list[str], role: str, file: str) -> Coded:
        where = f"The {role} column {str(column.name)!r} of {file!r}"
        require(
            len(values) <= MOST_CATEGORIES,
            f"{where} holds {len(values)} values, too many to tell apart.",
            f"Its {role} column holds too many different values.",
        )
        order = sorted(values, key=natural)
        places = np.array([*(order.index(value) for value in values), -1], dtype=np.int64)
        return cls(places[codes], tuple(order))

    def strata(self) -> Codes:
        """Each row's stratum: a number for each value, and one for none."""
        return np.where(self.codes < 0, len(self.values), self.codes)

    def groups(self, task: Task, file: str) -> Codes:
        """Each row's group; those without one, and rare crossings, are in the last of the groups not compared."""
        if task.excluded == 0:
            require(
                bool((self.codes >= 0).all()),
                f"Some rows of {file!r} have no group, and the federation agreed before any site had such rows: fill "
                "them in or leave them out.",
                "Some of its rows have no group, and the federation has no place for them.",
            )
            return self.among(task.group_names, "group", file)
        return self.among(task.group_names, "group", file, task.groups - 1)

    def among(self, names: Sequence[str], role: str, file: str, other: int = -1) -> Codes:
        """Each row's place among the agreed names; `other` if it has no value, or a crossing that has no name."""
        places = np.array([*(place_of(value, names) for value in self.values), -1], dtype=np.int64)
        stray = [value for value, place in zip(self.values, places, strict=False) if place < 0]
        require(
            not stray or (self.crossed and other >= 0),
            f"The {role} of {file!r} takes the value {listed(stray)}, which the federation does not have: correct "
            "those rows, or have the value listed in federation.toml.",
            f"Some rows of its {role} column hold a value that the federation does not have.",
        )
        return np.where(places < 0, other, places)[self.codes]

    def named(self, fewest: int) -> tuple[str, ...]:
        """The values that at least `fewest` rows hold: only these may leave the site."""
        counts = np.bincount(self.codes + 1, minlength=len(self.values) + 1)[1:]
        return tuple(value for value, count in zip(self.values, counts, strict=True) if count >= fewest)

    def ungrouped(self, fewest: int) -> bool:
        """Whether some rows are in no group that may be named."""
        return bool((self.codes < 0).any()) or (self.crossed and len(self.named(fewest)) < len(self.values))


@dataclass(frozen=True)
class TableRows:
    """A site's table before it is encoded."""

    table: Table
    label: Coded
    group: Coded
    features: pd.DataFrame  # not checked yet: columns that the federation does not use may hold anything
    parts: Sequence[Codes]

    @property
    def file(self) -> str:
        """The name of the site's file."""
        return self.table.file

    @property
    def _fills(self) -> bool:
        """Whether missing numbers are replaced by the federation's means."""
        return self.table.missing == "mean"

    def problems(self) -> list[UserError]:
        """The problems of all columns, for the site's own log."""
        found = []
        for name in self.features:
            try:
                self._check(str(name))
            except UserError as error:
                found.append(error)
        return found

    def notes(self) -> list[str]:
        """What the site's owner should know of columns that can be used; for the site's own log too."""
        columns = {str(name): self.features[name] for name in self.features}
        return [f"The column {name!r} {told}" for name, told in self.table.strange_numbers(columns).items()]

    def description(self, columns: Collection[str] | None, fewest: int) -> Description:
        """What is sent to the coordinator: names and kinds of columns; for those that it asks for, counts and sums of
        training rows. A text that fewer than `fewest` rows hold is left out, so it becomes no category."""
        asked = [str(name) for name in self.features if columns is None or name in columns]
        kinds: dict[str, ColumnKind] = {
            name: "numbers" if is_numeric(self.features[name]) else "text" for name in asked
        }
        labels, groups, ungrouped = self.label.named(fewest), self.group.named(fewest), self.group.ungrouped(fewest)
        if columns is None:
            return Description("table", labels, groups, kinds, ungrouped=ungrouped)
        require(
            len(self.parts[0]) >= fewest, f"{self.file!r} has too few training rows.", "It has too few training rows."
        )
        for name in asked:
            self._check(name)
        told = {name: self._summary(name, fewest) for name in asked}
        return Description("table", labels, groups, kinds, TableSummary(told), ungrouped=ungrouped)

    def _summary(self, name: str, fewest: int) -> ColumnSummary:
        """The summary of a column's training rows; numbers that fewer than `fewest` rows hold are put together."""
        rows = self.features[name].iloc[self.parts[0]]
        if is_numeric(rows):
            held = rows.notna().to_numpy() if self._fills else np.ones(len(rows), dtype=np.bool_)
            if int(held.sum()) >= fewest:
                told = np.full(len(rows), np.nan)
                told[held] = put_together(numbers(rows[held]), fewest)  # numbers that are not finite are refused
                rows = pd.Series(told, name=name)
        summary = TableSummary.of_rows(rows.to_frame(), None, gaps=self._fills)
        return _without_rare(summary.columns[name], fewest)

    def _check(self, name: str) -> None:
        """Refuse a column that is not worth learning from, or in which most rows hold a text of their own."""
        column = self.features[name]
        if is_numeric(column):
            if not self._fills:
                check_complete(column, self.file)
            self.table.check(column.dropna())
        else:
            self.table.check(column)
            counts = column.astype(str).str.strip().value_counts()
            require(
                len(counts) < FEWEST_IDS or 2 * int((counts == 1).sum()) <= len(column),
                f"The column {name!r} of {self.file!r} holds another text in most rows, like a name: list it in drop.",
                f"Its column {name!r} holds a different text in most rows, like a name.",
            )

    def encoded(self, task: Task, encoding: str | None) -> Parts:
        """All parts under the agreed encoding."""
        if encoding is None:
            raise PublicError("The terms of the federation lack the encoding of tables: use the same ffalm everywhere.")
        agreed = TableEncoding.from_json(encoding)
        for column in agreed.columns:  # the coordinator may not have asked for their description
            if column.name in self.features:
                self._check(column.name)
        y = self.label.among(task.label_names, "label", self.file)
        group = self.group.groups(task, self.file)
        features = Preprocessing(agreed, missing=self.table.missing).filled(self.features)
        raw = RawTable(task, features, y, group, self.parts)
        dataset = raw.encoded(agreed)
        return {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}


@dataclass(frozen=True)
class ImageRows:
    """A site's images before they are decoded."""

    labels: str
    folder: Path
    names: list[str]
    label: Coded
    group: Coded
    column: pd.Series | None  # the split column's value for each image
    recipe: Recipe
    split: Split
    skip_bad: bool
    made_for: int | None

    def problems(self) -> list[UserError]:
        """None are known before the images are decoded."""
        return []

    def notes(self) -> list[str]:
        """None either."""
        return []

    def description(self, columns: Collection[str] | None, fewest: int) -> Description:
        """What is sent to the coordinator: which labels and groups occur, and the size of the images."""
        size = self.made_for or self.recipe.size
        labels, groups = self.label.named(fewest), self.group.named(fewest)
        return Description("images", labels, groups, size=size, ungrouped=self.group.ungrouped(fewest))

    def encoded(self, task: Task, encoding: str | None) -> Parts:
        """All parts, decoded; copies of one image stay in one part."""
        y = self.label.among(task.label_names, "label", self.labels)
        group = self.group.groups(task, self.labels)
        decoded, good, _ = load_usable(self.folder, self.names, self.recipe, self.skip_bad)
        strata = self.label.codes[good], self.group.strata()[good]
        if self.column is None:
            contents = [decoded.contents[row] for row in good]
            shares = self.split.validation, self.split.test
            parts: Sequence[Codes] = split_by_content(contents, *strata, *shares, self.split.seed)[0]
        else:
            both = strata[0] * (len(self.group.values) + 1) + strata[1]
            parts = parts_of(self.column.iloc[good], both, self.split.validation, self.split.seed, self.labels)
        names = ("train", "validation", "test")
        return {name: examples(decoded, good[rows], y, group) for name, rows in zip(names, parts, strict=True)}


def check_complete(column: pd.Series, file: str) -> None:
    """Refuse a column of numbers with gaps: they are filled only if the federation's `missing` is "mean"."""
    gaps = column.isna().to_numpy()
    name, setting = str(column.name), 'missing = "mean" under [data] in federation.toml'
    require(
        not gaps.any(),
        f"The numeric column {name!r} of {file!r} is empty in {gaps.sum():,} of {len(gaps):,} rows, first in data row "
        f"{gaps.argmax() + 1}: fill them in, list the column in drop, or ask the coordinator for {setting}.",
        f"Its numeric column {name!r} is empty in some rows: fill them in there, or set {setting}.",
    )


def _without_rare(column: ColumnSummary, fewest: int) -> ColumnSummary:
    """The summary as it may leave the site.

    Of categories, those that enough rows hold, in alphabetical order and without counts: counts of the group column
    would reveal withheld cells, and the order of rows is the site's own. Of numbers, no sums over too few rows; if too
    few rows lack a number, these rows count as the mean of the others.
    """
    if isinstance(column, NumericSummary):
        if column.count < fewest:
            return NumericSummary(0, 0.0, 0.0, 0.0, 0.0, column.rows)
        return column.filled() if column.missing < fewest else column
    named = [category for category, count in column.counts.items() if count >= fewest]
    return CategorySummary(dict.fromkeys(sorted(named, key=lambda name: (name is None, name or "")), fewest))


def read_rows(site: SiteConfig, shared: SharedData, folder: Path) -> TableRows | ImageRows:
    """A site's rows, by the roles that the federation gives columns; paths are relative to the site's folder."""
    if isinstance(site.data, LocalTable) and isinstance(shared, SharedTable):
        return _table(site.data, site.split, shared, folder)
    if isinstance(site.data, LocalImages) and isinstance(shared, SharedImages):
        return _images(site.data, site.split, shared, folder)
    raise PublicError(f"The site has data of the kind {site.data.source!r}, the federation uses {shared.source!r}.")


def _table(local: LocalTable, split: Split, shared: SharedTable, folder: Path) -> TableRows:
    for name in (shared.label, *shared.group_columns):  # the coordinator may name others in any run
        require_public(
            name not in local.drop, f"Its site.toml lists the column {name!r} in drop: nothing about it is sent."
        )
    file = str(folder / Path(local.file).expanduser())
    codes = code_columns(shared.categorical, shared.group_columns)
    frame, _ = read_table(file, local.separator, local.decimal, local.encoding, codes=codes)
    label = Coded.of(pick(frame, shared.label, file), "label", file)
    group = Coded.of_group(frame, shared, file)
    table = Table(
        file=file,
        label=shared.label,
        group=shared.group,
        split=split.column,
        drop=tuple(name for name in (*shared.drop, *local.drop) if name in frame.columns),
        categorical=tuple(name for name in shared.categorical if name in frame.columns),
        use_group_as_feature=shared.use_group_as_feature,
        separator=local.separator,
        encoding=local.encoding,
        decimal=local.decimal,
        missing=shared.missing,
    )
    parts = _parts(frame, split, label, group, file)
    return TableRows(table, label, group, table.unchecked_features(frame), parts)


def _parts(frame: pd.DataFrame, split: Split, label: Coded, group: Coded, file: str) -> list[Codes]:
    strata = label.codes * (len(group.values) + 1) + group.strata()
    if split.column is not None:
        return parts_of(pick(frame, split.column, file), strata, split.validation, split.seed, file)
    shares = (1 - split.validation - split.test, split.validation, split.test)
    return split_rows(strata, shares, split.seed)


def _images(local: LocalImages, split: Split, shared: SharedImages, folder: Path) -> ImageRows:
    images = existing_folder(str(folder / Path(local.folder).expanduser()), "name the folder that holds the images.")
    labels = str(folder / Path(local.labels).expanduser())
    frame, _ = read_table(labels, local.separator, encoding=local.encoding)
    return ImageRows(
        labels=labels,
        folder=images,
        names=image_names(pick(frame, local.file_column, labels), images, labels),
        label=Coded.of(pick(frame, shared.label, labels), "label", labels),
        group=Coded.of_group(frame, shared, labels),
        column=None if split.column is None else pick(frame, split.column, labels),
        recipe=Recipe(shared.size, shared.crop),
        split=split,
        skip_bad=local.skip_bad,
        made_for=local.size,
    )

"""How a user's rows become a model's features: stored with every model, so that it can be applied to new rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffalm import arrays
from ffalm.data.category_lookup import category_positions, changed_as_floats, distinct, written_alike
from ffalm.data.decode import ENDINGS, Recipe, decode_bytes, read_image, why_broken
from ffalm.data.encoding import CategoryColumn, NumericColumn, TableEncoding, is_numeric, require_real
from ffalm.data.number_cells import written_as_thousands
from ffalm.data.table_codes import is_comma_number
from ffalm.data.table_files import as_frame, read_table, without_copies
from ffalm.data.table_groups import group_column
from ffalm.data.table_values import Codes, listed, place_of
from ffalm.errors import PublicError, UserError, require

Data: TypeAlias = Any
"""A table, the name of a file with one, or a dict for each row; image files, or a folder with some; or features as an
array or tensor."""


@dataclass(frozen=True)
class Preprocessing:
    """The encoding of a table's columns, or the resizing of images; neither if features were given as arrays."""

    table: TableEncoding | None = None
    images: Recipe | None = None
    missing: Literal["refuse", "mean"] = "refuse"  # numbers of a table: refused, or replaced by the training rows' mean
    separator: str | None = None  # of the file, as in `Table`
    decimal: Literal[".", ","] = "."
    group_values: Mapping[str, str] = field(default_factory=dict)  # value -> group, where groups are merged values
    encoding: str | None = None  # of the file's text

    def read(self, data: Data, group: Any = None, group_names: Sequence[str] = ()) -> Data:
        """A table as a data frame, images as a list of files; arrays stay as they are.

        `group` may be the column of groups, which are called `group_names`.
        """
        if self.table is not None:
            if isinstance(data, str | Path):
                texts, codes = self._texts(group, group_names)
                return read_table(str(data), self.separator, self.decimal, self.encoding, texts, codes)[0]
            frame = as_frame(_records(data))
            return data if frame is None else without_copies(frame)[0]
        return _image_files(data) if self.images is not None and isinstance(data, str | Path) else data

    def _texts(self, group: Any, group_names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Columns that are read as text, since 01 and 1 are two of their values, or one is too long for floats.

        Then, of a file with a decimal comma, the columns whose cells are read one by one, as in training: there 1,5 is
        1.5. Columns in which training rows kept a decimal comma are read as text instead.
        """
        assert self.table is not None
        values = {one.name: [*one.categories] for one in self.table.columns if isinstance(one, CategoryColumn)}
        if isinstance(group, str):
            names = [part for name in (*group_names, *self.group_values) for part in name.split(", ")]
            for column in {group, *map(str.strip, group.split(","))}:
                values[column] = [*values.get(column, ()), *names]
        if self.decimal == ",":
            verbatim = [name for name, known in values.items() if any(one and is_comma_number(one) for one in known)]
            return verbatim, [name for name in values if name not in verbatim]
        return [name for name, known in values.items() if written_alike(known) or changed_as_floats(known)], []

    def read_verbatim(self, file: Path) -> pd.DataFrame:
        """A file's values as they are written."""
        return read_table(str(file), self.separator, self.decimal, self.encoding, texts="all")[0]

    def encode(self, data: Data) -> Tensor:
        """The features of what `read` gave."""
        if self.images is not None:
            if isinstance(data, pd.DataFrame) or not isinstance(data, Sequence):
                raise UserError("This model takes images: give a list of image files, or a folder.")
            require(len(data) > 0, "There are no images to predict.")
            return torch.from_numpy(np.stack([_decoded(Path(str(file)), self.images) for file in data]))
        if self.table is None or not isinstance(data, pd.DataFrame):
            raise UserError("This model takes a table: give a DataFrame or the name of a file.")
        absent = [column.name for column in self.table.columns if column.name not in data.columns]
        if absent:
            names = ", ".join(map(repr, absent))
            raise PublicError(f"The table lacks the column{'s' * (len(absent) > 1)} {names} that the model takes.")
        twice = [column.name for column in self.table.columns if list(data.columns).count(column.name) > 1]
        if twice:
            raise PublicError(f"The table has more than one column named {twice[0]!r}.")
        return self.table.encode(self.filled(data))

    def unseen(self, frame: pd.DataFrame) -> dict[str, int]:
        """For each column, the number of rows with a category that no training row had."""
        found: dict[str, int] = {}
        for column in () if self.table is None else self.table.columns:
            if isinstance(column, CategoryColumn) and column.name in frame.columns:
                strange = int((category_positions(frame[column.name], column.categories) < 0).sum())
                found |= {column.name: strange} if strange else {}
        return found

    def doubts(self, file: str | Path, frame: pd.DataFrame) -> list[str]:
        """Notes on numbers that this file, read as `frame`, writes like thousands, such as 1.169 beside 426."""
        assert self.table is not None
        known = {one.name: one.scale for one in self.table.columns if isinstance(one, NumericColumn)}
        columns = {name: frame[name] for name in known if name in frame.columns}
        found = written_as_thousands(str(file), columns, self.separator, self.decimal, self.encoding, known)
        return [f"The column {name!r} {told}" for name, told in found.items()]

    def groups(self, data: Data, group: Any, names: Sequence[str], rows: int, required: bool = False) -> Tensor:
        """Each row's group as an index into `names`, -1 where it is none of them.

        `group` is a column (several with commas are crossed) or has a value for each row: names, or the numbers of
        groups, from 0, if these are not names. `required` refuses values of which none is a group.
        """
        column, given = isinstance(group, str), group
        if isinstance(group, str):
            require(isinstance(data, pd.DataFrame), "There is no column of groups: give the group of each row.")
            columns = (group,) if group in data.columns else tuple(name.strip() for name in group.split(","))
            group = group_column(data, columns, "data").tolist()
        values = arrays.column(group, "groups")
        require(len(values) == rows, f"Give one group per row: there are {len(values)} for {rows} rows.")
        spelled = list(self.group_values)
        known: dict[Any, int] = {}
        for value in values.dropna().unique():
            place = place_of(value, names)
            if place < 0 and (own := place_of(value, spelled)) >= 0:
                place = names.index(self.group_values[spelled[own]])
            known[value] = place
        if not column:
            known |= _by_number(known, names)
        if required and known and max(known.values()) < 0:
            what = f"The group column {given!r} holds" if column else "The groups are"
            raise UserError(
                f"{what} {listed([*map(str, known)])}, of which none is a group of this model: its groups are "
                f"{listed([*names, *spelled])}. Name the column of its groups, or leave the group out for the single "
                "threshold."
            )
        return torch.tensor([known.get(value, -1) for value in values.astype(object)], dtype=torch.int64)

    def filled(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with the training rows' means where numbers are missing, if that is how the model was trained."""
        if self.missing == "refuse" or self.table is None:
            return frame
        means = {column.name: column.mean for column in self.table.columns if isinstance(column, NumericColumn)}
        filled = frame.copy(deep=False)
        for name, mean in means.items():
            if name not in frame.columns:  # encoding such a table says so
                continue
            if is_numeric(frame[name]):
                require_real(frame[name])
                filled[name] = frame[name].astype(np.float64).fillna(mean)
            elif frame[name].isna().all():  # None in a single row has no type
                filled[name] = mean
        return filled

    def describe(self) -> str:
        """The model's input, in words."""
        if self.images is not None:
            return f"images, of which {self.images.size} x {self.images.size} pixels are used"
        assert self.table is not None
        return f"a table with the columns {', '.join(column.name for column in self.table.columns)}"

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a file."""
        table = None if self.table is None else json.loads(self.table.to_json())
        return {**asdict(replace(self, table=None)), "table": table}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_plain`; raises KeyError or TypeError if the values describe something else."""
        table, images = values["table"], values["images"]
        return cls(
            None if table is None else TableEncoding.from_json(json.dumps(table)),
            None if images is None else Recipe(**images),
            **{name: values[name] for name in ("missing", "separator", "decimal", "group_values")},
            encoding=values.get("encoding"),  # models of version 0.6 and earlier have none
        )


def _records(data: Data) -> Data:
    """Rows given as dicts, as in JSON, as a data frame; anything else unchanged."""
    single = isinstance(data, Mapping) and all(value is None or np.isscalar(value) for value in data.values())
    rows = [data] if single else data
    named = isinstance(rows, list) and bool(rows) and all(isinstance(row, Mapping) for row in rows)
    return pd.DataFrame(rows) if named else data


def merged_values(column: pd.Series, codes: Codes, names: Sequence[str]) -> dict[str, str]:
    """The group of each value of a column, for values that differ from their group's name."""
    own, values = distinct(column)
    places = np.zeros(len(values) + 1, dtype=np.int64)  # the code -1 finds the last one
    places[own] = codes  # rows of one value are in one group
    named = {value: names[place] for value, place in zip(values, places.tolist(), strict=False)}
    return {value: name for value, name in named.items() if name != value}


def _image_files(place: str | Path) -> list[Path]:
    """One image, or all those in a folder in the order of their names; none is hidden, such as macOS's `._a.jpg`."""
    path = Path(place)
    require(path.exists(), f"There is no file or folder {path}.")
    shown = [one for one in sorted(path.iterdir()) if not one.name.startswith(".")] if path.is_dir() else []
    found = [one for one in shown if one.suffix.lower() in ENDINGS] if path.is_dir() else [path]
    require(bool(found), f"The folder {path} holds no images ({', '.join(ENDINGS)}).")
    return found


def _decoded(file: Path, recipe: Recipe) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    content = read_image(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about unusual images
            return decode_bytes(content, recipe)
    except Exception as error:  # Pillow's plugins raise nearly anything on broken bytes
        raise UserError(f"The image {file} cannot be used: {why_broken(content, error).rstrip('.')}.") from None


def _by_number(known: Mapping[Any, int], names: Sequence[str]) -> dict[Any, int]:
    """The given groups that are not names (place -1 in `known`) but valid group numbers.

    Refused if other numbers among them are names: with groups named 1 and 2, the values 0 and 1 are ambiguous.
    """
    numbers = [value for value in known if isinstance(value, int | np.integer) and not isinstance(value, bool)]
    found = {value: int(value) for value in numbers if known[value] < 0 and 0 <= value < len(names)}
    unclear = [value for value in numbers if 0 <= known[value] != value]
    if found and unclear:
        raise UserError(
            f"The group {min(found)} is none of {listed(list(names))}, and {min(unclear)} is: give each row's group by "
            "name."
        )
    return found

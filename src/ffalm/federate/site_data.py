"""The data of a federation: what every site must have (`federation.toml`), and where a site has it (`site.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ffalm import config as study
from ffalm.data.group_settings import group_columns
from ffalm.errors import look_up, require
from ffalm.settings import build, setting

Value = str | int | float | bool


@dataclass(frozen=True)
class Roles:
    """Which columns are the label and the group, and their values.

    Their values are those of the sites, unless `label_values` and `groups` list all of them; then any other value is a
    misfit. More than two labels must be listed. `group` may name several columns, whose values are crossed.
    Groups of fewer than `min_group_size` training rows in all (by default 30 of crossed columns, else 0) are not
    compared, nor are rows without a group, or whose crossing too few rows of a site share for it to be named.
    """

    label: str
    group: str | tuple[str, ...]
    favourable: Value | None = None
    label_values: tuple[Value, ...] = ()
    groups: tuple[Value, ...] = ()
    min_group_size: int | None = field(default=None, metadata={"least": 0})

    def __post_init__(self) -> None:
        require(
            self.label not in self.group_columns,
            f"The label and the group must be different columns; both are {self.label!r}.",
        )
        require(
            len(self.label_values) != 1,
            "The setting 'label_values' lists all values of the label, two or more, or none to take the sites' own.",
        )
        require(
            len(self.groups) != 1, "The setting 'groups' lists at least two groups, or none to take the sites' own."
        )

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns whose values, crossed, are the groups."""
        return group_columns(self.group)

    @property
    def crossed(self) -> bool:
        """Whether groups are crossings of several columns; some of these may be rare."""
        return len(self.group_columns) > 1


@dataclass(frozen=True)
class SharedTable(Roles):
    """What a table must hold at every site.

    Columns in `drop` are no features anywhere; those in `categorical` are categories even where they are numbers.
    `missing = "mean"` puts the mean of all sites' training rows where a number is missing.
    """

    source: ClassVar[str] = "table"

    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    use_group_as_feature: bool = True
    columns: tuple[str, ...] = ()  # the features; left empty, the columns that most sites have
    missing: Literal["refuse", "mean"] = "refuse"


@dataclass(frozen=True)
class SharedImages(Roles):
    """What a folder of images must hold at every site; `size` and `crop` are for all its pictures."""

    source: ClassVar[str] = "images"

    size: int = setting(64, "Pixels of a picture's sides.", least=8, most=1024)
    crop: Literal["centre", "none"] = "centre"


@dataclass(frozen=True)
class LocalTable:
    """Where a site's table is; `drop` names columns that only this site has and that are no features."""

    source: ClassVar[str] = "table"

    file: str
    separator: str | None = None
    decimal: Literal[".", ","] = "."
    encoding: str | None = None
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalImages:
    """Where a site's images and the table that names them are; `size`, if the images were made for only one."""

    source: ClassVar[str] = "images"

    folder: str
    labels: str
    file_column: str = "file"
    separator: str | None = None
    encoding: str | None = None
    skip_bad: bool = False
    size: int | None = None


@dataclass(frozen=True)
class Split:
    """How a site draws its held-out rows: by a column that says train, validation or test, or by shares and a seed."""

    column: str | None = None
    validation: float = 0.1
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            min(self.validation, self.test) > 0 and self.validation + self.test < 1,
            f"The validation and test shares must leave rows to train on; got {self.validation} and {self.test}.",
        )


SharedData = SharedTable | SharedImages
LocalData = LocalTable | LocalImages

_SHARED: dict[str, type[SharedData]] = {"table": SharedTable, "images": SharedImages}
_LOCAL: dict[str, type[LocalData]] = {"table": LocalTable, "images": LocalImages}


def shared_data(settings: Mapping[str, Any]) -> SharedData:
    """The section [data] of a federation's settings."""
    shared: SharedData = _one_of(_SHARED, settings, "federation's data")
    return shared


def local_data(settings: Mapping[str, Any]) -> LocalData:
    """The section [data] of a site's settings."""
    local: LocalData = _one_of(_LOCAL, settings, "site's data")
    return local


def _one_of(kinds: Mapping[str, type[Any]], settings: Mapping[str, Any], what: str) -> Any:
    """The settings of the kind of data that `source` names; "table" if it is left out."""
    data = study.section(settings, "data")
    source = str(data.pop("source", "table"))
    return build(look_up("data source of a federation", source, kinds), data, what)

"""Data sources: each turns files, or a seed, into examples with a label and a group."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ffalm.errors import UserError, look_up, short_repr

if TYPE_CHECKING:
    from ffalm.data.types import Source

#: Class names by source, in the order in which `ffalm data` lists them. One module per source, imported on first use.
SOURCES = {
    "census": "Census",
    "faces": "Faces",
    "adult": "Adult",
    "compas": "Compas",
    "acs": "Acs",
    "utkface": "UTKFace",
    "celeba": "CelebA",
    "table": "Table",
    "images": "Images",
}


#: Endings of tables; here, because commands need them before pandas is imported.
SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")


def is_table(name: str) -> bool:
    """Whether a name is the path of a table rather than the name of a source."""
    return name.lower().endswith((*SEPARATORS, *PARQUET))


def source_class(name: str) -> type[Source]:
    """The class of a source by its name."""
    if isinstance(name, str) and name not in SOURCES and any(sign in name for sign in "./\\"):
        raise UserError(
            f"{short_repr(name)} is neither a data source (`ffalm data` lists them) nor a table: the files of tables "
            f"end in {', '.join((*SEPARATORS, *PARQUET))}."
        )
    class_name = look_up("data source", name, SOURCES)
    found: type[Source] = getattr(import_module(f"ffalm.data.{name}"), class_name)
    return found


def source(name: str, /, **settings: Any) -> Source:
    """A source with its settings, checked."""
    from ffalm.settings import build

    cls, file = source_class(name), settings.get("file")
    if name == "table" and isinstance(file, str) and not {"label", "group"} <= settings.keys():
        from ffalm.data.table_files import require_columns

        require_columns(file, settings)
    return build(cls, settings, f"data source {name!r}")


def find_source(name: str, settings: Mapping[str, Any]) -> Source:
    """A source by its name, or a table by the path of its file."""
    return source("table", file=name, **settings) if is_table(name) else source(name, **settings)


__all__ = ["SOURCES", "find_source", "is_table", "source", "source_class"]

"""File extensions of tables; a module of its own, because commands need it before pandas is imported."""

from __future__ import annotations

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")


def is_table(name: str) -> bool:
    """Whether a name is the path of a table rather than the name of a source."""
    return name.lower().endswith((*SEPARATORS, *PARQUET))

"""By which endings a file is known as a user's table; here alone, for commands ask before pandas is loaded."""

from __future__ import annotations

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = (".parquet", ".pq")


def is_table(name: str) -> bool:
    """Whether a name is the path of a user's table rather than that of a source."""
    return name.lower().endswith((*SEPARATORS, *PARQUET))

"""Settings of groups: the columns that define them, the smallest size to compare, and the name of the unknown group."""

from __future__ import annotations

from collections.abc import Sequence

from ffalm.errors import require, short_repr

CROSSED_ROWS = 30  # the default of `min_group_size` if columns are crossed


def group_columns(group: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that a setting names: one, several with commas, or a list, in which names may have commas."""
    given = group.split(",") if isinstance(group, str) else list(group) if isinstance(group, Sequence) else [None]
    columns = [name.strip() if isinstance(group, str) else name for name in given if isinstance(name, str)]
    require(
        bool(columns) and all(columns) and len(set(columns)) == len(given),
        f"The group names one column, or several different ones with commas; got {short_repr(group)}.",
    )
    return tuple(columns)


def fewest_rows(size: int | None, columns: Sequence[str]) -> int:
    """The training rows of the smallest group that is compared."""
    return size if size is not None else CROSSED_ROWS if len(columns) > 1 else 0


def unknown_name(names: Sequence[str]) -> str:
    """A name for the group of rows whose group is unknown, different from these names."""
    return next(name for name in ("unknown", "missing", "no group given") if name not in names)

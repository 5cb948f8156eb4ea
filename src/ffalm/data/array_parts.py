"""Reading arrays: (x, y, group) of numbers or texts, data frames, torch and Hugging Face datasets.

`read_parts` makes examples of one task: labels and groups given as text get the same numbers in all parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffalm.arrays import codes, feature_names, in_order, numbers, texts
from ffalm.data.group_settings import unknown_name
from ffalm.data.types import Examples, Task
from ffalm.errors import UserError, require, require_known

_ROLES = ("x", "y", "group")
_MOST_NAMES = 1000  # labels or groups
_LARGE = 100.0  # a mean or standard deviation with which the usual learning rates do not work


class UnscaledFeaturesWarning(UserWarning):
    """Features are so large that gradient descent with usual learning rates is likely to fail."""


@dataclass(frozen=True)
class Named:
    """Labels or groups of all parts, numbered."""

    codes: list[Tensor]  # of each part; -1 for a missing one
    names: tuple[str, ...] | None  # None if they were given as numbers


def read_parts(
    given: Sequence[tuple[str, Any]], favourable: int | str | None, name: str, unknown_group: int | str | None
) -> tuple[list[Examples], Task, tuple[str, ...]]:
    """The examples of each part, the task that they share, and the names of features given as data frames.

    `given` has each part by the name that messages use. The columns of data frames are put into one order.
    """
    triples = [_triple(arrays, where) for where, arrays in given]
    places = [where for where, _ in given]
    columns = next(filter(None, (feature_names(x, f"features of the {where}") for where, (x, _, _)
                                 in zip(places, triples, strict=True))), ())  # fmt: skip
    labels = _numbered([(where, y) for where, (_, y, _) in zip(places, triples, strict=True)], "labels", None)
    groups = _numbered([(where, s) for where, (_, _, s) in zip(places, triples, strict=True)], "groups", unknown_group)
    parts = [
        _examples(where, in_order(x, columns, f"features of the {where}"), y, group)
        for where, (x, _, _), y, group in zip(places, triples, labels.codes, groups.codes, strict=True)
    ]
    if all(_one_hot(part.x) for part in parts if part.x.dtype == torch.uint8):
        parts = [replace(part, x=part.x.float()) if part.x.dtype == torch.uint8 else part for part in parts]
    label_names = labels.names or _counted([part.y for part in parts])
    group_names = groups.names or _counted([part.group for part in parts])
    some_unknown = any(bool((part.group < 0).any()) for part in parts)
    if some_unknown:
        count = len(group_names)
        parts = [replace(part, group=torch.where(part.group < 0, count, part.group)) for part in parts]
    task = Task(
        name,
        label_names=label_names,
        group_names=(*group_names, *[unknown_name(group_names)] * some_unknown),
        favourable=_favourable(favourable, label_names, labels.names is not None),
        excluded=int(some_unknown),
    )
    return parts, task, columns


def warn_of_scale(clients: Sequence[Tensor], stacklevel: int) -> None:
    """Warn if a numeric column's mean or standard deviation over all clients is far from 0 and 1."""
    tables = [x.double() for x in clients if x.is_floating_point() and x.ndim == 2 and len(x)]
    if not tables or len({x.shape[1] for x in tables}) > 1:
        return
    rows = sum(len(x) for x in tables)
    means = torch.stack([x.sum(0) for x in tables]).sum(0) / rows
    spreads = (torch.stack([((x - means) ** 2).sum(0) for x in tables]).sum(0) / rows).sqrt()
    large = ((means.abs() > _LARGE) | (spreads > _LARGE)).nonzero().flatten().tolist()
    if large:
        some = ", ".join(map(str, large[:5])) + (f" and {len(large) - 5} more" if len(large) > 5 else "")
        warnings.warn(
            f"Features are not scaled: the mean or standard deviation of column {some} is above {_LARGE:g}, and "
            "training by gradient descent is likely to fail. Standardise each column: (x - mean) / std.",
            UnscaledFeaturesWarning,
            stacklevel=stacklevel + 1,
        )


def _triple(arrays: Any, where: str) -> tuple[Any, Any, Any]:
    """Features, labels and groups of one part, from whatever holds them."""
    if isinstance(arrays, tuple | list) and len(arrays) == len(_ROLES):
        return arrays[0], arrays[1], arrays[2]
    tensors = getattr(arrays, "tensors", None)  # of a TensorDataset
    if isinstance(tensors, tuple) and len(tensors) == len(_ROLES):
        return tensors
    if hasattr(arrays, "with_format") and hasattr(arrays, "column_names"):  # a dataset of Hugging Face
        arrays = arrays.with_format("numpy")[:]
    if isinstance(arrays, Mapping) and set(_ROLES) <= set(arrays):
        return arrays["x"], arrays["y"], arrays["group"]
    if isinstance(arrays, Dataset) and hasattr(arrays, "__len__"):
        return _stacked([arrays[place] for place in range(len(arrays))], where)
    columns = f" Its columns are {', '.join(map(str, arrays))}." if isinstance(arrays, Mapping) else ""
    raise UserError(
        f"The {where} must be given as (x, y, group), or as a dataset with the columns x, y and group.{columns}"
    )


def _stacked(rows: list[Any], where: str) -> tuple[Any, Any, Any]:
    """The rows of a torch dataset as three columns."""
    taken = [[row[role] for role in _ROLES] if isinstance(row, Mapping) and set(_ROLES) <= set(row) else row
             for row in rows]  # fmt: skip
    require(
        bool(taken) and all(isinstance(row, tuple | list) and len(row) == len(_ROLES) for row in taken),
        f"The dataset of the {where} must hold at least one row, and each must be (x, y, group).",
    )
    x, y, group = zip(*taken, strict=True)
    try:
        features = torch.stack([numbers(row, f"features of the {where}") for row in x])
    except RuntimeError:
        raise UserError(f"The features of the {where} must all have the same shape.") from None
    labels, groups = ([one.item() if hasattr(one, "item") else one for one in column] for column in (y, group))
    return features, labels, groups


def _numbered(given: Sequence[tuple[str, Any]], role: str, missing: int | str | None) -> Named:
    """Whole numbers as they are, or texts numbered in natural order; `missing` is the value that stands for none."""
    named = [texts(values) for _, values in given]
    if all(one is None for one in named):
        what = [(f"{role} of the {where}", values) for where, values in given]
        return Named([codes(values, name) if missing is None else _with_missing(values, name, missing)
                      for name, values in what], None)  # fmt: skip
    first = named[0] is None
    for (where, _), one in zip(given, named, strict=True):
        require(
            (one is None) == first,
            f"The {role} of the {where} {'must be numbers' if first else 'must be texts'}, as those of {given[0][0]}.",
        )
    from ffalm.data.table_values import natural

    columns = [[None if name == missing else name for name in one] for one in named if one is not None]
    names = sorted({name for column in columns for name in column if name is not None}, key=natural)
    require(len(names) <= _MOST_NAMES, f"There are {len(names):,} different {role}, more than {_MOST_NAMES:,}.")
    require(len(names) >= 2, f"The {role} are all the same: there must be two or more.")
    for (where, _), column in zip(given, columns, strict=True):
        require(role == "groups" or None not in column, f"Some {role} of the {where} are missing.")
    places: dict[str | None, int] = {name: place for place, name in enumerate(names)}
    return Named([torch.tensor([places.get(name, -1) for name in one], dtype=torch.int64) for one in columns],
                 tuple(names))  # fmt: skip


def _with_missing(values: Any, what: str, missing: int | str) -> Tensor:
    """Whole numbers from 0, and -1 for the number that means unknown."""
    given = numbers(values, what)
    absent = given == missing if not isinstance(missing, str) else torch.zeros_like(given, dtype=torch.bool)
    return torch.where(absent, -1, codes(torch.where(absent, torch.zeros_like(given), given), what))


def _counted(columns: list[Tensor]) -> tuple[str, ...]:
    """Names for whole numbers: 0 up to the largest, at least two."""
    return tuple(map(str, range(max([2, *(int(column.max()) + 1 for column in columns if len(column))]))))


def _favourable(given: int | str | None, names: tuple[str, ...], by_name: bool) -> int:
    if not by_name:
        given = 1 if given is None else given
        return names.index(given) if isinstance(given, str) and given in names else cast(int, given)
    require(given is not None, f"The labels are texts: say which is favourable, such as favourable={names[-1]!r}.")
    require_known("favourable label", names, given)
    return names.index(str(given))


def _examples(where: str, values: Any, y: Tensor, group: Tensor) -> Examples:
    x = numbers(values, f"features of the {where}")
    require(x.ndim > 0, f"The features of the {where} must have one entry per row; got a single number.")
    require(0 not in x.shape[1:], f"The {where} has rows without features: there is nothing to learn from.")
    if x.dtype not in (torch.uint8, torch.float64):
        x = x.float()
    require(
        y.shape == group.shape == x.shape[:1],
        f"The {where} needs one label and one group per row; got {len(x)} rows, labels of shape {tuple(y.shape)} and "
        f"groups of shape {tuple(group.shape)}.",
    )
    return Examples(x, y, group)


def _one_hot(x: Tensor) -> bool:
    """Whether bytes are a table of zeros and ones."""
    return x.ndim == 2 and (x.numel() == 0 or int(x.max()) <= 1)

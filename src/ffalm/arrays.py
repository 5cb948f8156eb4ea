"""Conversion of user input to tensors: numpy arrays, tensors, data frames or lists."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ffalm.errors import UserError, require

if TYPE_CHECKING:
    from pandas import Series

_DOUBLE = 8  # bytes; torch has no wider floating type
_MOST_CODES = 10_000  # labels or groups; larger numbers, such as postal codes or years, are names and not codes


def numbers(values: Any, what: str) -> Tensor:
    """A dense tensor of these values on the CPU; a `UserError` for text, ragged lists and the like.

    Arrays that torch cannot share (read-only, reversed, big-endian, unsigned of 16 bits and more) are copied.
    """
    if isinstance(values, Tensor):
        return _of_tensor(values, what)
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(values).sum())
        require(masked == 0, f"The {what} have {masked} masked values: replace them first, as by .filled(0).")
    values = as_table(values, what)
    if hasattr(values, "select_dtypes"):  # a data frame, of which some columns may be booleans
        values = _of_frame(values, what)
    if hasattr(values, "__array__"):
        array = _as_array(values, what)
        require(array.dtype.kind in "biuf", f"The {what} must be numbers; got values of type {array.dtype}.")
        if array.dtype.kind == "u" and array.dtype != np.uint8:
            array = _signed(array, what)
        if array.dtype.kind == "f" and array.dtype.itemsize > _DOUBLE:
            array = array.astype(np.float64)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        values = array if array.flags.writeable else array.copy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a list of arrays is slow
            found = torch.as_tensor(values, device="cpu")
    except Exception:
        raise UserError(f"The {what} must be numbers, in an array or tensor of one shape.") from None
    return _of_tensor(found, what)


def as_table(values: Any, what: str) -> Any:
    """A table of another library (pyarrow, polars) as a data frame of pandas; anything else as it is."""
    if isinstance(values, type) or not (hasattr(values, "to_pandas") and hasattr(values, "columns")):
        return values
    try:
        return values.to_pandas()
    except Exception as error:
        raise UserError(f"The {what} cannot be converted to a pandas data frame: {error}.") from None


def feature_names(values: Any, what: str) -> tuple[str, ...]:
    """The names of a data frame's columns; none for an array, and none if they are the numbers that pandas gives."""
    frame = as_table(values, what)
    if not hasattr(frame, "select_dtypes") or list(frame.columns) == list(range(frame.shape[1])):
        return ()
    return tuple(map(str, frame.columns))


def in_order(values: Any, names: tuple[str, ...], what: str) -> Any:
    """A data frame with its columns in the order of these names; a `UserError` if it has others.

    What has no names is taken as it stands.
    """
    own = feature_names(values, what)
    if not own or not names or own == names:
        return values
    require(
        len(set(own)) == len(own) and sorted(own) == sorted(names),
        f"The {what} have the columns {', '.join(own)}, and should have {', '.join(names)}.",
    )
    return as_table(values, what).iloc[:, [own.index(name) for name in names]]


def picked(values: Any, names: tuple[str, ...], what: str) -> Any:
    """As `in_order`, of a data frame that may have other columns too, such as an id or the group."""
    own = feature_names(values, what)
    if names and {*names} < {*own}:
        values = as_table(values, what).iloc[:, [place for place, name in enumerate(own) if name in names]]
    return in_order(values, names, what)


def column(values: Any, what: str) -> Series:
    """One column of values of any type, reindexed; masked values are missing. A `UserError` for anything else."""
    import pandas as pd

    if isinstance(values, Tensor):
        dense = numbers(values, what)
        values = (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    try:
        given = values if isinstance(values, pd.Series | pd.Index | np.ndarray) else np.asanyarray(values)
        if given is not values and given.dtype.kind in "US":  # numpy made texts of NaN and numbers beside texts
            given = np.asanyarray(values, dtype=object)
        if given.ndim == 2 and given.shape[1] == 1:
            given = given[:, 0]
        if isinstance(given.dtype, np.dtype) and not given.dtype.isnative:  # pandas does not compare these
            given = given.astype(given.dtype.newbyteorder("="))
        found = pd.Series(given) if given.ndim == 1 and not isinstance(given, pd.MultiIndex) else None
    except Exception:
        found = None
    if found is None:
        raise UserError(f"The {what} must be one column of values, with one entry per row.")
    return found.reset_index(drop=True)


def named_column(values: Any, name: str, what: str) -> Series:
    """One column as `column` reads it, under its own name or, if it has none, this one."""
    found = column(values, what)
    return found.rename(name) if found.name is None else found


def index_notes(given: Mapping[str, Any]) -> tuple[str, ...]:
    """A note on pandas objects whose rows are paired by place, although their indexes have the same rows elsewhere."""
    import pandas as pd

    indexed = {name: one.index for name, one in given.items() if isinstance(one, pd.Series | pd.DataFrame)}
    for (first, one), (second, other) in combinations(indexed.items(), 2):
        if len(one) == len(other) and not one.equals(other) and one.is_unique and len(one.difference(other)) == 0:
            return (
                f"The indexes of {first} and {second} hold the same rows in different orders; rows are paired by their "
                "place, not by the index: bring them into one order if that is not meant.",
            )
    return ()


def inferred(column: Series) -> Series:
    """The column in the type of its values, which an array of objects does not tell; exact decimals become floats.

    Databases give their amounts as `decimal.Decimal`.
    """
    import pandas as pd

    try:
        column = column.infer_objects()
        if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) == "decimal":
            return column.astype(np.float64)
    except (OverflowError, ValueError):  # integers too large for pandas; signaling NaNs
        pass
    return column


def _of_frame(frame: Any, what: str) -> Any:
    """The numbers of a data frame; a missing one is NaN."""
    texts = [str(name) for name in frame.select_dtypes(exclude=["number", "bool"]).columns]
    some = ", ".join(map(repr, texts[:5]))
    others = f"the columns {some} are not: encode them" if len(texts) > 1 else f"the column {some} is not: encode it"
    require(
        not texts,
        f"The {what} must be numbers, and {others}, or give the whole data frame to ffalm.load(frame, label=..., "
        "group=...), which does.",
    )
    return frame.to_numpy(dtype=np.float64, na_value=np.nan) if _as_array(frame, what).dtype == object else frame


def texts(values: Any) -> list[str | None] | None:
    """A column of texts, with None for a missing one (None, NaN); None if the values are anything else."""
    if isinstance(values, Tensor) or getattr(getattr(values, "dtype", None), "kind", "O") not in "OUT":
        return None
    try:
        column = np.asarray(values, dtype=object)
        if column.ndim != 1 or not any(isinstance(one, str) for one in column):
            return None
        from pandas import isna

        found = [None if missing else one for one, missing in zip(column, isna(column), strict=True)]
    except Exception:
        return None
    return found if all(isinstance(one, str | None) for one in found) else None


def _as_array(values: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values)
    except Exception:
        raise UserError(f"The {what} must be numbers, in an array or tensor of one shape.") from None


def _of_tensor(values: Tensor, what: str) -> Tensor:
    """A tensor of a type and layout in which torch computes: unsigned integers and float8 are converted."""
    for odd, name, remedy in (
        (values.is_meta, "a tensor without values (meta)", "give one with values"),
        (values.is_nested, "a nested tensor", "pad it"),
        (values.is_quantized, "a quantised tensor", "call .dequantize()"),
        (not values.is_nested and values.layout != torch.strided, "a sparse tensor", "call .to_dense()"),
        (values.is_complex(), "complex numbers", "give real ones"),
    ):
        require(not odd, f"The {what} are {name}: {remedy}.")
    plain = values.detach().cpu().resolve_neg()  # numpy takes no lazily negated tensor
    if plain.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return torch.from_numpy(_signed(plain.numpy(), what))
    return plain.float() if plain.is_floating_point() and plain.dtype.itemsize == 1 else plain


def _signed(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Unsigned integers as int64, which holds all but the largest."""
    largest = int(array.max()) if array.size else 0
    require(largest < 2**63, f"The {what} go up to {largest}, beyond signed 64-bit integers: scale them down.")
    return array.astype(np.int64)


def codes(values: Any, what: str) -> Tensor:
    """Whole numbers from 0, of any dtype; 0.7 is refused, not truncated."""
    given = numbers(values, what)
    finite = not given.is_floating_point() or bool(given.isfinite().all())
    require(finite, f"The {what} must be whole numbers from 0 up; some are NaN or infinite.")
    whole = given.long()
    fits = bool((whole == given).all()) and (whole.numel() == 0 or int(whole.min()) >= 0)
    require(fits, f"The {what} must be whole numbers from 0 up.")
    largest = int(whole.max()) if whole.numel() else 0
    require(
        largest < _MOST_CODES,
        f"The {what} go up to {largest}, and every number up to there would be counted: renumber those that occur as "
        "0, 1, 2 and so on, as pandas.factorize does.",
    )
    return whole

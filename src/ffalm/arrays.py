"""Conversion of user input to tensors: numpy arrays, tensors, data frames or lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffalm.errors import UserError, require

_MOST_CODES = 10_000  # labels or groups; larger numbers, such as postal codes or years, are names and not codes


def numbers(values: Any, what: str) -> Tensor:
    """A tensor of these values on the CPU; a `UserError` for text, ragged lists and the like.

    Arrays that torch cannot share (read-only, reversed, unsigned 16 bit) are copied, others are not.
    """
    if isinstance(values, Tensor):
        return values.detach().cpu()
    if hasattr(values, "__array__"):
        array = np.asarray(values)
        require(array.dtype.kind in "biuf", f"The {what} must be numbers; got values of type {array.dtype}.")
        if array.dtype.kind == "u" and array.dtype != np.uint8:
            array = array.astype(np.int64)
        array = np.ascontiguousarray(array)
        values = array if array.flags.writeable else array.copy()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"The {what} must be numbers, in an array or tensor of one shape.") from None


def codes(values: Any, what: str) -> Tensor:
    """Whole numbers from 0, of any dtype; 0.7 is refused, not truncated."""
    given = numbers(values, what)
    whole = given.long()
    fits = bool((whole == given).all()) and (whole.numel() == 0 or int(whole.min()) >= 0)
    require(fits, f"The {what} must be whole numbers from 0 up.")
    largest = int(whole.max()) if whole.numel() else 0
    require(
        largest < _MOST_CODES,
        f"The {what} go up to {largest}, and every number up to there would be counted: give those that occur the "
        "numbers 0, 1, 2 and so on, as pandas.factorize does.",
    )
    return whole

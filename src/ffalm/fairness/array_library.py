"""Counts are torch tensors where they are made and numpy arrays where they are read from a file, so that a report needs
no torch, whose import takes longer than the report. Functions that both libraries have under one name serve both."""

from __future__ import annotations

from typing import Any

import numpy as np


def library(array: Any) -> Any:
    """The module whose functions take the array: numpy or torch."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import torch

    return torch


def double(array: Any) -> Any:
    """The array in float64."""
    return array.astype(np.float64) if library(array) is np else array.double()


def whole(array: Any) -> Any:
    """The array rounded to int64."""
    return array.round().astype(np.int64) if library(array) is np else array.round().long()

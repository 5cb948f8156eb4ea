"""Checks that algorithms make of their settings and of the federation they are given, and of what they return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from numbers import Real
from typing import Any

from torch import Tensor

from ffalm.algorithms.contract import Algorithm, State, Task
from ffalm.errors import UserError, require, short_repr


def finite(algorithm: Algorithm, *names: str) -> None:
    """These settings must be finite numbers."""
    for name in names:
        value = getattr(algorithm, name)
        number = isinstance(value, Real) and math.isfinite(value)
        require(number, f"The setting {name!r} of {algorithm.title} must be a finite number; got {value}.")


def left_at_defaults(algorithm: Algorithm, names: Sequence[str], because: str) -> None:
    """These settings must have their default values, since the chosen variant of the algorithm does not use them."""
    for one in fields(algorithm):
        require(
            one.name not in names or getattr(algorithm, one.name) == one.default,
            f"The setting {one.name!r} of {algorithm.title} would change nothing, since {because}: leave it at its "
            f"default, {one.default}.",
        )


def two_groups(algorithm: Algorithm, task: Task) -> None:
    """The formula is for two groups; say so rather than compare the first two of more."""
    groups = task.compared
    require(
        groups == 2,
        f"{algorithm.title} compares two groups and this data has {groups}: merge groups into two, or use ffalm "
        "or fpfl, which take any number.",
    )


def two_labels(algorithm: Algorithm, task: Task) -> None:
    """The formula is for a favourable label and one other."""
    require(
        task.labels == 2,
        f"{algorithm.title} is for two labels and this data has {task.labels}: merge labels into two, or use ffalm or "
        "fpfl, which take any number.",
    )


def weights_and_state(algorithm: Algorithm, given: Any) -> tuple[Tensor, State]:
    """What `update` of a user's algorithm returned; refused unless it is the clients' weights and a state."""
    if not (isinstance(given, tuple) and len(given) == 2):
        raise UserError(f"`update` of {algorithm.title} must return weights and a state; got {short_repr(given)}.")
    weights, state = given
    return weights, tensors(algorithm, "update", state)


def tensors(algorithm: Algorithm, hook: str, state: Any) -> State:
    """The state that a hook of a user's algorithm returned; refused unless it is a dict of tensors."""
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)] if isinstance(state, dict) else []
    shown = f"{odd[0]!r} of type {type(state[odd[0]]).__name__}" if odd else short_repr(state)
    require(
        isinstance(state, dict) and not odd,
        f"The state that `{hook}` of {algorithm.title} returns must be a dict of tensors; got {shown}.",
    )
    return dict(state)

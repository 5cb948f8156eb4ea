"""Checks of what a user's algorithm gives the server, where a mistake would be recorded or fail without explanation.

Class attributes and the first state are checked before round 1, weights and states in every round.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ffalm.algorithms import Algorithm, Measure
from ffalm.algorithms.checks import tensors, weights_and_state
from ffalm.errors import require, short_repr
from ffalm.fairness import METRICS

#: What a round's record holds besides metrics and the state, whose entries stand beside them.
_RECORDED = frozenset({"round", "weights", "train_loss", "negative_weight_share", "seconds", "epsilon", *METRICS})
_ROUNDING = 1e-4  # of a sum of weights in float32
_NAMES = ("broadcasts", "server_vectors", "client_vectors", "uploads", "gradients", "products", "server_settings")


def check_start(algorithm: Algorithm, state: Any) -> None:
    """Refuse class attributes of a wrong type, and a state that cannot be kept or recorded."""
    for name in _NAMES:
        value = getattr(algorithm, name)
        named = isinstance(value, tuple | list) and all(isinstance(one, str) for one in value)
        require(named, f"`{name}` of {algorithm.title} must be a tuple of names; got {short_repr(value)}.")
    measure = algorithm.measure
    known = isinstance(measure, Measure)
    require(known, f"`measure` of {algorithm.title} must be one of ffalm.Measure; got {short_repr(measure)}.")
    tensors(algorithm, "start", state)
    taken = sorted(_RECORDED & state.keys())
    require(
        not taken,
        f"The state of {algorithm.title} has an entry {taken[0] if taken else ''!r}, and the record of a round has "
        "another value of that name: rename the entry.",
    )


def check_update(algorithm: Algorithm, given: Any, taking_part: Tensor) -> None:
    """Refuse anything but one weight per client and the next state.

    Only clients that took part are averaged, so if their weights did not sum to 1 the model would shrink or grow.
    Weights that are not finite end the run as diverged.
    """
    (weights, _), clients = weights_and_state(algorithm, given), len(taking_part)
    shape = tuple(weights.shape) if isinstance(weights, Tensor) else short_repr(weights)
    require(
        shape == (clients,),
        f"`update` of {algorithm.title} must return one weight per client, of shape ({clients},); got {shape}.",
    )
    total = float(weights[taking_part].sum())
    require(
        not math.isfinite(total) or abs(total - 1) < _ROUNDING,
        f"The weights that `update` of {algorithm.title} gives to the clients that took part (`report.taking_part`) "
        f"must sum to 1; their sum is {total:.6g}.",
    )

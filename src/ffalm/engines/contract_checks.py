"""Checks of what the hooks of a user's algorithm return, where a mistake would be recorded or fail unexplained.

Class attributes and the first state are checked before round 1, what other hooks return whenever they are called.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from torch import Tensor

from ffalm.algorithms import Algorithm, Measure, ModelVector, Vectors
from ffalm.algorithms.checks import tensors, weights_and_state
from ffalm.errors import UserError, require, short_repr
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


def check_vectors(algorithm: Algorithm, hook: str, given: Any, named: str, names: Collection[str]) -> Vectors:
    """The `ModelVector`s that a hook returned; `named` is the class attribute that names them."""
    what = f"`{hook}` of {algorithm.title}"
    if not (isinstance(given, dict) and all(isinstance(vector, ModelVector) for vector in given.values())):
        raise UserError(f"{what} must return a dict of ModelVectors for `{named}`; got {_kind(given)}.")
    more, lacking = sorted(given.keys() - set(names)), sorted(set(names) - given.keys())
    require(not more, f"{what} returns the vectors {', '.join(map(repr, more))}, which `{named}` does not name.")
    require(not lacking, f"{what} does not return {', '.join(map(repr, lacking))}, which `{named}` names.")
    return given


def check_server_step(algorithm: Algorithm, given: Any, model: ModelVector) -> tuple[ModelVector, Vectors]:
    """The next model and the server's vectors; the model must have the shapes of the one that was sent."""
    hook = f"`server_step` of {algorithm.title}"
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], ModelVector)):
        raise UserError(f"{hook} must return the next model, a ModelVector, and a dict of vectors; got {_kind(given)}.")
    stepped, vectors = given
    found, asked = ([tuple(value.shape) for value in one.tensors] for one in (stepped, model))
    require(found == asked, f"{hook} must return a model of the shapes {asked}; got {found}.")
    return stepped, check_vectors(algorithm, "server_step", vectors, "server_vectors", algorithm.server_vectors)


def check_drift(algorithm: Algorithm, given: Any) -> ModelVector | None:
    """What is added to a gradient, if anything."""
    if given is None or isinstance(given, ModelVector):
        return given
    raise UserError(f"`drift` of {algorithm.title} must return a ModelVector or None; got {_kind(given)}.")


def check_finish(algorithm: Algorithm, given: Any) -> tuple[Vectors, Vectors]:
    """What a client keeps and what it uploads; a client vector that is left out stays as it was."""
    if not (isinstance(given, tuple) and len(given) == 2):
        raise UserError(
            f"`finish` of {algorithm.title} must return two dicts, for `client_vectors` and for `uploads`; "
            f"got {_kind(given)}."
        )
    own, uploads = given
    changed = [name for name in algorithm.client_vectors if not isinstance(own, dict) or name in own]
    sent = [name for name in algorithm.uploads if name not in algorithm.gradients]
    kept = check_vectors(algorithm, "finish", own, "client_vectors", changed)
    return kept, check_vectors(algorithm, "finish", uploads, "uploads", sent)


def check_upload_weights(algorithm: Algorithm, given: Any) -> dict[str, Tensor]:
    """The clients' weights of each upload."""
    tensors = isinstance(given, dict) and all(isinstance(value, Tensor) for value in given.values())
    require(
        tensors and given.keys() >= set(algorithm.uploads),
        f"`weigh_uploads` of {algorithm.title} must return a dict with a tensor of one weight per client for each name "
        f"in `uploads`; got {short_repr(given)}.",
    )
    return {name: given[name] for name in algorithm.uploads}


def _kind(given: Any) -> str:
    """What a value is, in short: a vector prints as thousands of numbers."""
    if isinstance(given, tuple):
        return f"({', '.join(map(_kind, given))})"
    if isinstance(given, dict):
        return f"{{{', '.join(f'{name!r}: {_kind(one)}' for name, one in given.items())}}}"
    return type(given).__name__

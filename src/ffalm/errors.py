"""Errors that the user can fix: one sentence that says what is wrong, where, and what to do.

Anything else that escapes is a bug of ours and keeps its traceback. A site of a federation shows and logs the whole
sentence, but sends only its public part, which is a fixed text unless whoever raises the error gives one: a sentence
may quote a cell, a file name or a path, and none of those may leave a site.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any, ClassVar, TypeVar

#: What a site sends of an error that has no public part.
NOT_PUBLIC = "The reason may name local data, so it is in the site's own log only."

#: What others call things, and our words, of which the first that is known is meant.
_ELSEWHERE = {
    "demographic_parity": ("dpd", "dp"), "demographic_parity_difference": ("dpd", "dp"),
    "disparate_impact": ("impact_ratio",), "epochs": ("local_epochs",), "equal_opportunity": ("eod", "eo"),
    "equal_opportunity_difference": ("eod", "eo"), "equalised_odds": ("equalized_odds", "odds"),
    "equalized_odds_difference": ("equalized_odds", "odds"), "group": ("sensitive",), "l2": ("weight_decay",),
    "learning_rate": ("lr",), "max_grad_norm": ("clip",), "n_clients": ("clients",), "n_rounds": ("rounds",),
    "num_clients": ("clients",), "num_rounds": ("rounds",), "random_state": ("seed",), "sensitive": ("group",),
    "sensitive_features": ("group", "sensitive"), "statistical_parity": ("dpd", "dp"),
}  # fmt: skip

_LONGEST_VALUE = 100
_LONGEST_SENTENCE = 2000

V = TypeVar("V")


class UserError(Exception):
    """Something the user gave us cannot be used; the command line prints it alone and exits with code 2.

    `public` is the part that a site may send: no cells, file names, paths, row numbers or counts of rows. Line feeds
    and control characters, which names may hold, are escaped, so that a message is always one line.
    """

    exit_code: ClassVar[int] = 2  # of the command line

    def __init__(self, message: str, public: str = NOT_PUBLIC) -> None:
        super().__init__(_cut(printable(message), _LONGEST_SENTENCE))
        self.public = printable(public)


class TrainingDiverged(UserError):
    """A training was stopped because its numbers were no longer finite; the command line exits with code 4."""

    exit_code: ClassVar[int] = 4


class PublicError(UserError):
    """A `UserError` whose whole message may leave a site: it is about terms and messages, never about local data."""

    def __init__(self, message: str) -> None:
        super().__init__(message, message)


def unknown(kind: str, name: Any, known: Iterable[str]) -> UserError:
    """The error for an unknown name, which suggests the nearest known one."""
    names = sorted(known)
    folded = {one.casefold(): one for one in names}
    given = name[:_LONGEST_VALUE].casefold() if isinstance(name, str) else ""
    meant = given if given in folded else meant_by(given, folded)
    near = difflib.get_close_matches(given, folded, n=1, cutoff=0.5) if meant is None else [meant]
    mark = "; " if any("," in one for one in names) else ", "
    hint = f"did you mean {folded[near[0]]!r}?" if near else f"choose one of {mark.join(names)}."
    hint = hint if names else "there are none."
    return UserError(f"There is no {kind} {short_repr(name)}: {hint}")


def meant_by(name: str, known: Collection[str]) -> str | None:
    """The known name of what others call `name`, None if there is none."""
    return next((ours for ours in _ELSEWHERE.get(name, ()) if ours in known), None)


def require_known(kind: str, known: Collection[str], *names: Any) -> None:
    """Refuse the first of these names that is not a known one; a value of any type may be given."""
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise unknown(kind, name, known)


def look_up(kind: str, name: Any, known: Mapping[str, V]) -> V:
    """The value under a name that a user gave; a name of any type may be given."""
    require_known(kind, known, name)
    return known[name]


def short_repr(value: Any) -> str:
    """A user's value for a message, cut where it is long; Python refuses to print some, such as very long numbers."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return _cut(text, _LONGEST_VALUE)


def printable(text: str) -> str:
    """A text on one line: line feeds, control characters and invalid characters are escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def require(condition: bool, message: str, public: str = NOT_PUBLIC) -> None:
    """Raise a `UserError` with this message, and this public part, unless the condition holds."""
    if not condition:
        raise UserError(message, public)


def require_number(value: Any, what: str) -> float:
    """The finite number that a user gave for what is named; a `UserError` where it is anything else."""
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        found = math.nan
    require(math.isfinite(found), f"The {what} must be a number; got {short_repr(value)}.")
    return found


def require_public(condition: bool, message: str) -> None:
    """Raise a `PublicError` with this message unless the condition holds."""
    if not condition:
        raise PublicError(message)

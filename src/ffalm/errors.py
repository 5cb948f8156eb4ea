"""Errors that the user can fix: one sentence that says what is wrong, where, and what to do.

Anything else that escapes is a bug of ours and keeps its traceback. A site of a federation shows and logs the whole
sentence, but sends only its public part, which is a fixed text unless whoever raises the error gives one: a sentence
may quote a cell, a file name or a path, and none of those may leave a site.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: What a site sends of an error that has no public part.
NOT_PUBLIC = "The reason may name local data, so it is in the site's own log only."


class UserError(Exception):
    """Something the user gave us cannot be used; the command line prints it alone and exits with code 2.

    `public` is the part that a site may send: no cells, file names, paths, row numbers or counts of rows.
    """

    def __init__(self, message: str, public: str = NOT_PUBLIC) -> None:
        super().__init__(message)
        self.public = public


class PublicError(UserError):
    """A `UserError` whose whole sentence may leave a site: it speaks of terms and messages, never of local data."""

    def __init__(self, message: str) -> None:
        super().__init__(message, message)


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name nobody registered, with the nearest known one suggested."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}."
    return UserError(f"There is no {kind} {name!r}: {hint}")


def require(condition: bool, message: str, public: str = NOT_PUBLIC) -> None:
    """Raise a `UserError` with this message, and this public part, unless the condition holds."""
    if not condition:
        raise UserError(message, public)


def require_public(condition: bool, message: str) -> None:
    """Raise a `PublicError` with this message unless the condition holds."""
    if not condition:
        raise PublicError(message)

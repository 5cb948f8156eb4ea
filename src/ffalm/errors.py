"""Errors that are the user's to mend: one sentence that says what is wrong, where, and what to do.

Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user gave us cannot be used; the command line prints it alone and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name nobody registered, with the nearest known one suggested."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}."
    return UserError(f"There is no {kind} {name!r}: {hint}")


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` with this message unless the condition holds."""
    if not condition:
        raise UserError(message)

"""Messages between a server and its sites, in plain values: nothing here knows Flower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from ffalm.errors import PublicError

_LONGEST = 2000  # characters of a text from a site

Fact = bool | int | float | str
"""A plain value in a message, beside the tensors."""

Kind = Literal["hello", "agree", "train", "score", "secure"]
"""The kinds of questions of a server to a site."""


@dataclass(frozen=True)
class Message:
    """One message: named records of tensors, and plain facts."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a site gave no answer: it was late, its node was lost, it raised an error, or its answer cannot be read.

    `reason` is one sentence, the public part of the site's `UserError`. `trace` is the traceback of any other error;
    real sites keep it in their own log, since an error may quote a row. For an unreadable answer it is the error that
    reading it raised, in one line.
    """

    kind: Literal["late", "lost", "failed", "unreadable"]
    reason: str
    trace: str = ""


class Sites(Protocol):
    """The sites as a server sees them. A site's number is opaque, but does not change while its key stays the same."""

    def present(self) -> list[int]:
        """The sites that are connected now."""

    def ask(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[int, Message | Failure]:
        """Send each site its message and wait for the answers, at most `deadline` seconds.

        Every site asked is a key of the result. An answer that comes later is lost.
        """


def same_form(found: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> bool:
    """Whether a record has the names, shapes and types of another."""
    return found.keys() == like.keys() and all(
        (found[name].shape, found[name].dtype) == (value.shape, value.dtype) for name, value in like.items()
    )


@contextmanager
def understood() -> Iterator[None]:
    """For code that only reads a server's question, where such errors mean that the message is malformed."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise PublicError(
            f"The coordinator's question cannot be read ({type(error).__name__}): use the same ffalm everywhere."
        ) from None


def printable(text: str) -> str:
    """A text from a site, made safe for terminals and disks: control characters become "?", and long texts are cut."""
    return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST])

"""What travels between a server and its sites, in plain values: nothing here knows Flower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

Fact = bool | int | float | str
"""A plain value that travels beside the tensors."""

Kind = Literal["hello", "agree", "train", "score", "secure"]
"""What a server may ask of a site."""


@dataclass(frozen=True)
class Message:
    """What travels in one message: named records of tensors, and plain facts."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a site gave no answer: none by the deadline, its node is gone, or it raised an error.

    `reason` is one sentence, the public part of the site's `UserError`. `trace` is the traceback of any other error;
    real sites keep it in their own log, since an error may quote a row.
    """

    kind: Literal["late", "lost", "failed"]
    reason: str
    trace: str = ""


class Sites(Protocol):
    """The other end of the wire, as a server sees it. A site's number is opaque, but stable for a site's key."""

    def present(self) -> list[int]:
        """The sites that are connected now."""
        ...

    def ask(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[int, Message | Failure]:
        """Send each site its message and wait for the answers, at most `deadline` seconds.

        Every site asked is a key of the result. An answer that comes later is never seen again.
        """
        ...


def printable(text: str) -> str:
    """A text from a site as a terminal may show it: control characters, which could move its cursor, become "?"."""
    return "".join(character if character.isprintable() else "?" for character in text)

"""What a coordinator asks the sites to sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ffalm.engines.remote.message import Kind, Message
from ffalm.federate.secure.fixed_point import VectorLayout

Upcoming = Callable[[], Sequence[str]]
"""Gives the sites that are to take part in the next sum; none if this is the last."""


@dataclass(frozen=True)
class Sum:
    """What is summed, its name, and what comes after."""

    kind: Kind
    purpose: str
    message: Message
    layout: VectorLayout
    largest: int = 1  # the most rows that a site is weighted by
    following: str = ""  # the purpose of the next sum
    upcoming: Upcoming = tuple
    whole: bool = False  # whether every site that is asked must be in it

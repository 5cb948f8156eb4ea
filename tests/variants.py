"""Every algorithm there is, in every form that can be named: what tests over the registry run through."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from functools import cache
from typing import Literal

import ffalm
from ffalm.algorithms import Algorithm


@cache
def variants() -> tuple[Algorithm, ...]:
    """Every registered algorithm, with every value of each choice among names and with all its switches turned.

    Without references such as `central`, whose clients do what FedAvg's do.
    """
    return tuple(_variants())


def _variants() -> Iterator[Algorithm]:
    for cls in (one for one in ffalm.algorithms().values() if one.trains_on == "clients"):
        yield cls()
        hints = typing.get_type_hints(cls)
        switches = {field.name: not field.default for field in dataclasses.fields(cls) if hints[field.name] is bool}
        if switches:
            yield cls(**switches)
        for field in dataclasses.fields(cls):
            if typing.get_origin(hints[field.name]) is Literal:
                for value in typing.get_args(hints[field.name]):
                    if value != field.default:
                        yield cls(**{field.name: value})

"""Data and models given as Python objects, of which a configuration file records only the identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ffalm.data.types import Dataset
from ffalm.engines import ModelFactory
from ffalm.errors import UserError, require
from ffalm.federation import Federation
from ffalm.models import Architecture

_GIVEN = "This study's {} was given in Python: resume it there, by ffalm.compare(..., out=FOLDER, resume=True)."


@dataclass(frozen=True)
class InMemory:
    """Federations as a study's data: one for all seeds, or one per seed, in the order of the seeds.

    A configuration file records their fingerprint, by which a resumed study checks that the data is the same.
    """

    name: ClassVar[str] = "memory"

    fingerprint: str
    federations: tuple[Federation, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, data: Federation | Sequence[Federation], seeds: int) -> InMemory:
        """Federations for a number of seeds, with the fingerprint of all their rows."""
        held = [data] if isinstance(data, Federation) else list(data) if isinstance(data, Sequence) else []
        require(
            bool(held) and all(isinstance(one, Federation) for one in held),
            "The data must be the name of a source, the path of a table, a Federation, or a list of them.",
        )
        require(len(held) in (1, seeds), f"{seeds} seeds need one federation, or one each; got {len(held)}.")
        return cls(cls.together(federation.fingerprint() for federation in held), tuple(held))

    @staticmethod
    def together(fingerprints: Iterable[str]) -> str:
        """The fingerprint of several federations."""
        return hashlib.sha256("".join(fingerprints).encode()).hexdigest()[:16]

    def to_plain(self) -> dict[str, Any]:
        """What a file can record of them."""
        return {"name": self.name, "fingerprint": self.fingerprint}

    def load(self) -> Dataset:
        """Called only for a study that was read from a file, which does not contain the federations."""
        raise UserError(_GIVEN.format("data"))


@dataclass(frozen=True)
class CustomModel:
    """A function that makes a user's own model; a configuration file records its name."""

    function: str
    factory: ModelFactory | Architecture | None = field(default=None, compare=False, repr=False)

    def to_plain(self) -> dict[str, Any]:
        """What a file can record of it."""
        return {"name": "custom", "function": self.function}

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """The user's model; a function does not ask for the shape of the data."""
        if self.factory is None:
            raise UserError(_GIVEN.format("model"))
        made: Any = self.factory
        return made.build(shape, labels) if hasattr(made, "build") else made()  # type: ignore[no-any-return]

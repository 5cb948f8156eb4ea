"""Whose model a run is: that of its last round, or of the round that was most accurate on the validation part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ffalm.engines import Round, Snapshot
from ffalm.errors import require
from ffalm.federation import Federation
from ffalm.outcome import Record, validation_accuracy

Keep = Literal["last", "best"]


@dataclass
class Keeper:
    """Holds the model that a run would be if it ended now."""

    rule: Keep = "last"
    kept: Snapshot | None = None
    _accuracy: float = -math.inf

    def see(self, done: Round) -> None:
        """Take a round's model where the rule says so; of rounds that are equally accurate the first is best."""
        if self.rule == "last" or done.diverged is not None:
            self.kept = done.snapshot  # a run that diverged is what it came to, whatever it was before
        elif self.kept is None or validation_accuracy(done.record) > self._accuracy:
            self.kept, self._accuracy = done.snapshot, validation_accuracy(done.record)

    def final(self) -> Snapshot:
        """The model of a run that has done a round at least."""
        assert self.kept is not None
        return self.kept

    def go_on(self, kept: Snapshot | None, history: Sequence[Record]) -> None:
        """Take up a run of which some rounds are done."""
        self.kept = kept
        if kept is not None and self.rule == "best":
            self._accuracy = validation_accuracy(history[kept.round - 1])


def check_keeping(rule: Keep, federation: Federation) -> None:
    """Refuse to look for the best round where there is nothing to judge rounds by."""
    part = federation.validation
    require(
        rule == "last" or (part is not None and len(part) > 0),
        "To keep the best round's model the data need a validation part: give them one, or keep the last round's.",
    )

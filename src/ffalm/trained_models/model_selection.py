"""Model selection: a run ends with the model of its last round, or of the round most accurate on validation rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ffalm.engines import Round, Snapshot
from ffalm.errors import require
from ffalm.federation import Federation
from ffalm.outcome import Record, validation_accuracy
from ffalm.run_settings import Keep


@dataclass
class ModelSelection:
    """Holds the model that a run would end with if it stopped now."""

    rule: Keep = "last"
    selected: Snapshot | None = None
    _accuracy: float = -math.inf

    def add(self, done: Round) -> None:
        """Select a round's model if the rule says so; of equally accurate rounds the first is best."""
        if self.rule == "last" or done.diverged is not None:
            self.selected = done.snapshot  # a diverged run is scored as it ended, never by an earlier round
        elif self.selected is None or validation_accuracy(done.record) > self._accuracy:
            self.selected, self._accuracy = done.snapshot, validation_accuracy(done.record)

    def final(self) -> Snapshot:
        """The selected model of a run with at least one round."""
        assert self.selected is not None
        return self.selected

    def resume(self, selected: Snapshot | None, history: Sequence[Record]) -> None:
        """Continue a run of which some rounds are done."""
        self.selected = selected
        if selected is not None and self.rule == "best":
            self._accuracy = validation_accuracy(history[selected.round - 1])


def check_selection(rule: Keep, federation: Federation) -> None:
    """Refuse to select the best round without validation rows to judge rounds by."""
    part = federation.validation
    require(
        rule == "last" or (part is not None and len(part) > 0),
        "keep='best' selects a round by its validation accuracy, and the data has no validation part: add one, or use "
        "keep='last'.",
    )

"""Central training: the reference with all clients' rows in one place, which federations exist to avoid."""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.algorithms.contract import PlainTraining
from ffalm.algorithms.registry import register


@register
@dataclass(frozen=True)
class Central(PlainTraining):
    """SGD on the mean loss over the rows of all clients, by one client that holds them all.

    Rounds, local epochs and batch size are those of the study, so a round is `local_epochs` passes over all rows. The
    model is scored as every other one is: on the shared test part, and on each client's own rows.
    """

    name = "central"
    title = "Central"
    paper = "No paper: a reference"
    limits = "Simulation only: it needs all rows in one place. Participation has no effect."
    trains_on = "pooled"

    @property
    def separable(self) -> bool:
        """Clients measure nothing."""
        return True

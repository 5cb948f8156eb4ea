"""Local training: the reference without a federation, in which every client trains on its own rows alone."""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.algorithms.contract import PlainTraining
from ffalm.algorithms.registry import register


@register
@dataclass(frozen=True)
class LocalOnly(PlainTraining):
    """SGD on the mean loss by each client alone, for as many rounds as the other methods; nothing is averaged.

    Scores are means, by training rows, of the Tallies of the clients' models on the shared test part: see
    `ffalm.runs.ClientsAlone`.
    """

    name = "local"
    title = "Local only"
    paper = "No paper: a reference"
    limits = (
        "Simulation only. Its scores are means over the clients' models: there is no one model. Participation has no "
        "effect."
    )
    trains_on = "alone"

    @property
    def separable(self) -> bool:
        """Clients measure nothing."""
        return True

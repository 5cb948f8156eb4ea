"""Why sites take no part, in a sentence each: what the coordinator tells and records of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Absences:
    """The sites of one run that take no part now, with reasons."""

    refused: dict[str, str] = field(default_factory=dict)
    """Sites whose file does not fit, or that do not accept the terms."""
    earlier: dict[str, str] = field(default_factory=dict)
    """Members that were refused before the coordinator was started again, and have not come back since."""

    def reasons(self) -> dict[str, str]:
        """The reason of each site that has been left out."""
        return {**self.earlier, **self.refused}

    def reason(self, site: str) -> str:
        """Why a member cannot be asked now, as rounds record it."""
        told = self.reasons().get(site)
        return "lost: The site is not connected." if told is None else f"refused: {told}"

    def present(self, members: Collection[str]) -> list[str]:
        """Those of the members that are not left out."""
        left_out = self.reasons()
        return [site for site in members if site not in left_out]


def too_few(found: int, needed: int, patience: float, reasons: list[str]) -> str:
    """The message that too few sites answered, and how to go on."""
    said = f" {' '.join(reasons)}" if reasons else ""
    return (
        f"Only {found} of the {needed} sites that a round needs took part within {patience:g} seconds.{said} "
        "Everything up to the last whole round is kept: bring the sites back and run again to go on from there."
    )

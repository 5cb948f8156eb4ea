"""Why sites take no part, in a sentence each: what the coordinator tells and records of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ffalm.errors import UserError


@dataclass(frozen=True)
class Absences:
    """The sites of one run that take no part now, with reasons."""

    order: tuple[str, ...] = ()
    """All sites, in the order in which reasons are told."""
    refused: dict[str, str] = field(default_factory=dict)
    """Sites whose file does not fit, or that do not accept the terms."""
    earlier: dict[str, str] = field(default_factory=dict)
    """Members that were refused before the coordinator was started again, and have not come back since."""

    unanswered: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    """By connected node that did not answer a greeting or the terms: its site, if known, and what happened."""

    def reasons(self, besides: Collection[str] = ()) -> dict[str, str]:
        """The reason of each site that has been left out, and of each other that gave no answer, except `besides`."""
        silent = {site or f"node {node}": told for node, (site, told) in self.unanswered.items() if site not in besides}
        found = {**silent, **self.earlier, **self.refused}
        return {site: found[site] for site in (*self.order, *found) if site in found}

    def reason(self, site: str) -> str:
        """Why a member cannot be asked now, as rounds record it."""
        if site in self.refused or site in self.earlier:
            return f"refused: {self.refused.get(site) or self.earlier[site]}"
        failed = next((told for whose, told in self.unanswered.values() if whose == site), None)
        return "lost: The site is not connected." if failed is None else f"failed: {failed}"

    def present(self, members: Collection[str]) -> list[str]:
        """Those of the members that are not left out."""
        return [site for site in members if site not in self.refused and site not in self.earlier]


def too_few(found: int, needed: int, patience: float, reasons: list[str]) -> UserError:
    """That too few sites answered, or too few helped to reveal a secure sum, and how to go on.

    The public part is what the sites are told.
    """
    said = f" {' '.join(reasons)}" if reasons else ""
    what = f"Only {found} of the {needed} sites that a round needs took part"
    if found >= needed:
        what = f"{found} sites took part, but their answers could not be summed"
    return UserError(
        f"{what} within {patience:g} seconds.{said} "
        "Everything up to the last whole round is kept: bring the sites back and run again to go on from there.",
        "Too few sites took part." if found < needed else "The sites' answers could not be summed.",
    )

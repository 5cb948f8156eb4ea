"""How long a coordinator waits for sites, and when it asks one again that gave no good answer."""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection

_SILENCE = 60.0  # seconds until a node that did not answer is asked again: it may be busy with old questions
_MOST_PAUSES = 10  # from one greeting of a node that fails to the next


class Patience:
    """The time for which the coordinator waits, from now on."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        try:
            ends = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
            self.until = f"until {ends:%Y-%m-%d %H:%M:%S}"  # the same at every look, so that it is told once
        except OverflowError:
            self.until = "without end"

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return time.monotonic() >= self._ends


class Retries:
    """When to ask nodes again that gave no good answer.

    One that fails is asked again after a pause, then after two, four and so on up to `_MOST_PAUSES`: what is wrong may
    pass, but each time costs the site a process and lines in its log.
    """

    def __init__(self, pause: float, patience: float) -> None:
        self._pause, self._silence = pause, min(_SILENCE, patience)
        self._pauses: dict[int, float] = {}
        self._next: dict[int, float] = {}

    def due(self, node: int) -> bool:
        """Whether a node may be asked now."""
        return self._next.get(node, 0.0) <= time.monotonic()

    def failed(self, node: int, late: bool) -> None:
        """Put off the next question to a node."""
        wait = self._pauses.get(node, self._pause)
        self._pauses[node] = min(2 * wait, _MOST_PAUSES * self._pause)
        self._next[node] = time.monotonic() + (self._silence if late else wait)

    def answered(self, node: int) -> None:
        """Begin anew with a node that has answered."""
        self._pauses.pop(node, None)
        self._next.pop(node, None)

    def keep(self, present: Collection[int]) -> None:
        """Begin anew with nodes that are gone: one that was started again may be asked at once."""
        for node in self._pauses.keys() - set(present):
            self.answered(node)


def waiting_for(missing: Collection[str], failed: dict[str, str], patience: Patience, enough: bool) -> str:
    """What the coordinator waits for and until when, why sites that did answer are missing, and how to go on.

    `failed` has the reasons of sites that gave an error in place of an answer, `enough` says whether the others could
    begin without those that are missing.
    """
    told = [f"Waiting for {', '.join(missing) or 'more sites'} {patience.until}."]
    reasons = [why for site, why in failed.items() if site in missing or not missing]
    told += [*reasons, "A site that failed is asked again at least every minute."] if reasons else []
    if enough:
        told.append("To go on without, stop this run, lower 'patience' under [rules] of federation.toml and run again.")
    return " ".join(told)

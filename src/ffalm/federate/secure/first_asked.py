"""A number in a question to all sites as it was when the question was first asked.

A site answers a question once: two secure sums that differ in the largest weight alone would tell, by their difference,
the answer of the sites that it bounds, and under privacy two that differ in a factor would cancel the noise. But a site
that comes, or a rule that was changed, moves such numbers while a round is asked for again. So the first one stands
until the next question, also for a coordinator that was stopped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ffalm.system.files import read_json, write_atomic

FILE = "first_asked.json"


@dataclass
class FirstAsked:
    """The number of the last question; in the run's folder, where one is given."""

    folder: Path | None = None
    _last: tuple[str, float] | None = None

    def number(self, purpose: str, now: float) -> float:
        """The number with which a question was asked first; `now` is that of a new one, which is kept."""
        last = self._last or self._read()
        if last is None or last[0] != purpose:
            last = (purpose, now)
            if self.folder is not None:
                write_atomic(self.folder / FILE, json.dumps({"purpose": purpose, "number": now}))
        self._last = last
        return last[1]

    def _read(self) -> tuple[str, float] | None:
        try:
            kept = read_json(self.folder / FILE) if self.folder is not None else {}
            return str(kept["purpose"]), float(kept["number"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

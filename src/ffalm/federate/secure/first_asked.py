"""What a question to all sites was asked with first: a number in it, and the sites whose sum was to be revealed.

A site answers a question once: two secure sums that differ in the largest weight alone would tell, by their difference,
the answer of the sites that it bounds, and under privacy two that differ in a factor would cancel the noise. For the
same reason a site helps to reveal only one sum of a round. But a site that joins, or a rule that changes, moves such
numbers and adds sites while a round is asked for again. So what was first stands until the next question, even if the
coordinator is stopped and started again. So do the proofs against sites that spoilt the first sum: only where they are
shown do sites reveal another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ffalm.errors import UserError
from ffalm.settings import build
from ffalm.system.files import read_json, write_atomic

FILE = "first_asked.json"


@dataclass(frozen=True)
class _Question:
    purpose: str = ""
    number: float | None = None
    sites: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()  # of wrong dealing, which a site that has revealed a sum needs to reveal another


@dataclass
class FirstAsked:
    """The last question, kept in the run's folder if one is given."""

    folder: Path | None = None
    _last: _Question | None = field(default=None, init=False)

    def number(self, purpose: str, now: float) -> float:
        """The number with which a question was asked first; `now` is that of a new one, which is kept."""
        last = self._of(purpose)
        if last.number is not None:
            return last.number
        self._keep(replace(last, number=now))
        return now

    def summed(self, purpose: str) -> tuple[str, ...]:
        """The sites of the sum that may have been revealed in answer to a question; empty if none was."""
        return self._of(purpose).sites

    def reveal(self, purpose: str, sites: Sequence[str]) -> None:
        """Keep the sites of a sum before they are asked to reveal it."""
        last = self._of(purpose)
        if not last.sites:
            self._keep(replace(last, sites=tuple(sites)))

    def proofs(self, purpose: str) -> tuple[str, ...]:
        """The proofs against sites that spoilt this sum."""
        return self._of(purpose).proofs

    def prove(self, purpose: str, proofs: Sequence[str]) -> None:
        """Keep proofs before any site is asked to reveal a sum without the sites that they are against."""
        last = self._of(purpose)
        self._keep(replace(last, proofs=(*last.proofs, *proofs)))

    def refused(self, purpose: str) -> None:
        """Forget the sites of a sum that all of them refused to reveal: they have revealed another before."""
        self._keep(replace(self._of(purpose), sites=()))

    def _of(self, purpose: str) -> _Question:
        last = self._last or self._read()
        return last if last.purpose == purpose else _Question(purpose)

    def _keep(self, question: _Question) -> None:
        self._last = question
        if self.folder is not None:
            write_atomic(self.folder / FILE, json.dumps(asdict(question)))

    def _read(self) -> _Question:
        try:
            return _Question() if self.folder is None else build(_Question, read_json(self.folder / FILE), "question")
        except (OSError, ValueError, TypeError, AttributeError, UserError):
            return _Question()

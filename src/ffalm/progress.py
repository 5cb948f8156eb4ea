"""Progress of rounds: the time that is left, and one line that notebooks and terminals show and rewrite in place."""

from __future__ import annotations

import sys
import time

from ffalm.outcome import Record

_SECONDS_BETWEEN = 0.2


class RemainingTime:
    """How long the rounds that are left will take, by the pace since the first one was done.

    What comes before it (processes that start, models that are built) happens once and tells nothing about rounds. An
    engine that computes runs together gives their first rounds at once: the pace is that of the rounds after these.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds  # that are left
        self._begun: set[object] = set()
        self._start: tuple[float, int] | None = None  # when the pace is counted from, and how many were left then
        self._counting = False

    def seconds(self, run: object, number: int, now: float) -> float | None:
        """The seconds left after this round of a run; None if that is not known yet."""
        first = run not in self._begun
        self._begun.add(run)
        self.rounds -= number if first else 1  # of a run that is resumed, some rounds were done before
        if self._start is None or (first and not self._counting):
            self._start = (now, self.rounds)
            return None
        if first:  # its earlier rounds took no time now
            self._start = (self._start[0], self._start[1] - (number - 1))
        self._counting = True
        since, left = self._start
        return self.rounds * (now - since) / (left - self.rounds)


class ProgressLine:
    """One line on stderr, rewritten at most five times a second, for `progress=True` in Python.

    `rounds` is the number of rounds of all runs together.
    """

    def __init__(self, rounds: int) -> None:
        self._all = self._left = rounds
        self._remaining = RemainingTime(rounds)
        self._told = -_SECONDS_BETWEEN
        self._width = 0

    def __call__(self, run: str, record: Record) -> None:
        """Show a run's round."""
        now = time.monotonic()
        seconds, self._left = self._remaining.seconds(run, record["round"], now), self._remaining.rounds
        if now - self._told >= _SECONDS_BETWEEN or self._left <= 0:
            self._told = now
            score = f", accuracy {100 * record['accuracy']:.1f} %" if "accuracy" in record else ""
            ahead = "" if seconds is None else f", about {seconds:.0f} s left"
            text = f"{self._all - self._left}/{self._all} rounds; {run}: round {record['round']}{score}{ahead}"
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def close(self) -> None:
        """End the line."""
        if self._width:
            print(file=sys.stderr, flush=True)

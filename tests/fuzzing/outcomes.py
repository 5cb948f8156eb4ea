"""What came of a case, and counts of it. Anything but `fine` is a bug."""

from __future__ import annotations

import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS = 20  # of computing; of waiting, ten times as many


class Hang(BaseException):
    """A case took too long."""


@dataclass(frozen=True)
class Outcome:
    """Of one case: its kind in a word, and where the error came from."""

    fine: bool
    kind: str
    place: str = ""


@dataclass
class Findings:
    """Counts by kind, and the first case of each kind of bug."""

    counts: Counter[str] = field(default_factory=Counter)
    bugs: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, outcome: Outcome, case: str) -> None:
        """Count an outcome."""
        self.counts[outcome.kind if outcome.fine else f"BUG {outcome.kind}"] += 1
        if not outcome.fine:
            self.bugs.setdefault((outcome.kind, outcome.place), []).append(case)

    def merge(self, other: Findings) -> None:
        """Count what another process found."""
        self.counts += other.counts
        for place, cases in other.bugs.items():
            self.bugs.setdefault(place, []).extend(cases)

    def text(self) -> str:
        """The counts, and an example of each kind of bug."""
        lines = [f"{count:6d}  {kind}" for kind, count in self.counts.most_common()]
        for (kind, place), cases in sorted(self.bugs.items(), key=lambda bug: -len(bug[1])):
            lines.append(f"{len(cases):4d} x {kind} at {place}: {min(cases, key=len)[:400]}")
        return "\n".join(lines)


def place_of(error: BaseException) -> str:
    """The last line of ours in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/ffalm/" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno} ({type(error).__name__}: {str(error)[:80]!r})"


@contextmanager
def limited(seconds: int = _SECONDS) -> Iterator[None]:
    """Raise `Hang` after this time; library warnings are errors, since none may reach a user."""

    def stop(*_: object) -> None:
        raise Hang

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=UserWarning, module="ffalm")
            warnings.filterwarnings("ignore", "Features are not scaled")
            warnings.filterwarnings("ignore", "A column-vector y was passed")  # as every estimator of scikit-learn says
            yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome_of_call(call: Callable[[], object], estimator: bool = False) -> Outcome:
    """What a call in Python came to: a value or a `UserError` with one sentence, and nothing else.

    Of an `estimator` scikit-learn wants `ValueError`, and its own checks raise that and `TypeError`.
    """
    from ffalm import UserError

    try:
        with limited():
            call()
    except UserError as error:
        sentence = str(error)
        whole = bool(sentence) and "\n" not in sentence and sentence[-1] in ".?!)"
        return Outcome(whole, "refused" if whole else "sentence", "" if whole else place_of(error))
    except Hang as error:
        return Outcome(False, "hang", place_of(error))
    except Exception as error:
        theirs = "/sklearn/" in traceback.extract_tb(error.__traceback__)[-1].filename
        told = estimator and (type(error) is ValueError or (theirs and isinstance(error, TypeError | ValueError)))
        return Outcome(told, "refused as scikit-learn does" if told else "traceback", "" if told else place_of(error))
    return Outcome(True, "taken")

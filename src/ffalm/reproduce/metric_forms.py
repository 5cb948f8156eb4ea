"""The forms of DPD and EOD: as usual ("conditional"), or as the paper's released code has them ("joint", "piecewise").

"piecewise" averages the gaps of ten pieces of the rows, as the released code averages its clients' own gaps. A piece's
gap is an absolute value, so chance alone makes it larger than the gap of all rows together, the more so the fewer rows
a piece has: it is for comparison with that code only. The code cuts lists in their order; here a piece is a random
tenth of the rows, so that the order of files plays no role (UTKFace's names begin with the age, hence the label). What
a random tenth holds follows from the counts of all rows, so no model is needed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ffalm.outcome import Counts, Outcome, StudyOutcome

PIECES = 10  # one for each client of the paper
_DRAWN = 20_000  # random pieces whose mean is taken: an EOD of UTKFace is then exact to about 0.1 points
_FAVOURABLE = 1  # in all of the paper's tasks


def measured(study: StudyOutcome, form: str) -> StudyOutcome:
    """The study under one form of DPD and EOD."""
    return study if form == "conditional" else replace(study, outcomes=[formed(run, form) for run in study.outcomes])


def formed(outcome: Outcome, form: str) -> Outcome:
    """A run with DPD and EOD in a form of the released code, without their intervals, which are of the usual form.

    "piecewise" leaves the validation records as they are: they keep no counts to compute it from.
    """
    gaps = ("dpd", "eod")

    def joint(values: dict[str, float]) -> dict[str, float]:
        return {**values, **{name: values.get(f"joint_{name}", math.nan) for name in gaps}}

    intervals = {name: ends for name, ends in outcome.intervals.items() if name not in gaps}
    if form == "piecewise":
        counts = outcome.confusion if outcome.diverged is None else None
        return replace(outcome, test=outcome.test | piecewise(counts), intervals=intervals)
    history = [joint(record) for record in outcome.history]
    return replace(outcome, test=joint(outcome.test), intervals=intervals, history=history)


def piecewise(confusion: Counts | None) -> dict[str, float]:
    """The expected DPD and EOD of a random tenth of the rows; pieces in which one is undefined are left out of it."""
    if confusion is None:
        return {"dpd": math.nan, "eod": math.nan}
    counts = np.asarray(confusion).astype(np.int64)
    generator = np.random.default_rng(0)
    rows = max(1, int(counts.sum()) // PIECES)
    drawn = generator.multivariate_hypergeometric(counts.ravel(), rows, _DRAWN, method="marginals")
    pieces = drawn.reshape(_DRAWN, *counts.shape)  # of them: prediction, label, group
    chosen = pieces[:, _FAVOURABLE]
    return {
        "dpd": _mean_gap(chosen.sum(1), pieces.sum((1, 2))),
        "eod": _mean_gap(chosen[:, _FAVOURABLE], pieces[:, :, _FAVOURABLE].sum(1)),
    }


def _mean_gap(chosen: np.ndarray, of: np.ndarray) -> float:
    """The mean over pieces of the largest difference of rates between groups, NaN where no piece has rows of all."""
    defined = (of > 0).all(-1)
    rates = chosen[defined] / of[defined]
    return float((rates.max(-1) - rates.min(-1)).mean()) if defined.any() else math.nan

"""What each method reaches in a cell: every seed is a user who chooses a model on the held-out rows of one federation.

All methods choose by one rule, that of `ffalm compare --target` for a single seed: of the runs with the method's
settings (and thresholds, where it may fit them), the most accurate on held-out rows whose gap is within the bound with
a margin. The test rows only score the choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ffalm.config import entry_of
from ffalm.leaderboard.board import METRICS, Board, Method
from ffalm.report.fronts import hypervolume, reference_of
from ffalm.results import Study
from ffalm.targets.answer import Answer
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.target import Target


@dataclass(frozen=True)
class Entry:
    """What one method chose for one bound in one seed of a cell, on test rows."""

    cell: str
    target: str
    method: str
    seed: int
    accuracy: float  # NaN where it has no model: all of its runs diverged
    gap: float
    held: bool  # whether the gap is within the bound
    degenerate: str  # why the model is no result
    chosen: str  # the run, with its thresholds if it has any
    hypervolume: float  # of all models that the method offers for this metric in this seed


def entries_of(board: Board, cell: str, studies: Sequence[Study]) -> Iterator[Entry]:
    """What every method chose in a cell, for every bound and seed."""
    finished = [run for study in studies for run in study.results if run.diverged is None]
    sound = [run for run in finished if not run.degenerate]
    references = {metric: reference_of(sound or finished, metric) for metric in METRICS}
    names = studies[0].record.group_names
    for seed in dict.fromkeys(run.seed for study in studies for run in study.results):
        own = [
            FinishedRun(run.label, run.seed, run.alpha, run.place, study.scores(run))
            for study in studies
            for run in study.results
            if run.seed == seed and run.diverged is None
        ]
        for metric, reference in references.items():
            targets = [target for target in board.targets if target.bounds[0].metric == metric]
            for method in board.methods:
                answers = {target: _answer(method, target, own, names) for target in targets}
                volume = hypervolume(_offered(answers.values(), metric), reference)
                for target, answer in answers.items():
                    yield _entry(cell, target, method, seed, answer, volume)


def _answer(
    method: Method, target: Target, finished: Sequence[FinishedRun], group_names: Sequence[str]
) -> Answer | None:
    """The method's choice; None where none of its runs finished."""
    labels = {entry_of(key, values).label for key, values in method.sections(target).items()}
    runs = [run for run in finished if run.label in labels]
    return answer_of(runs, target, method.repair, group_names) if runs else None


def _offered(answers: Iterable[Answer | None], metric: str) -> list[tuple[float, float]]:
    """Gap and accuracy on test rows of every model that a method has for a metric: as trained, and as chosen."""
    shown = [
        run
        for answer in answers
        if answer is not None
        for run in [*(run for one in answer.candidates if one.kind == "none" for run in one.runs), answer.best]
    ]
    scores = [run.test.metrics for run in shown if run.test is not None and not run.test.degenerate]
    return [(metrics[metric], metrics["accuracy"]) for metrics in scores]


def _entry(cell: str, target: Target, method: Method, seed: int, answer: Answer | None, volume: float) -> Entry:
    if answer is None or answer.best.test is None:
        return Entry(cell, str(target), method.name, seed, math.nan, math.nan, False, "", "", 0.0)
    metrics, chosen = answer.best.test.metrics, answer.chosen
    return Entry(
        cell,
        str(target),
        method.name,
        seed,
        metrics["accuracy"],
        metrics[target.bounds[0].metric],
        target.meets(metrics),
        answer.best.test.degenerate,
        chosen.label if chosen.kind == "none" else f"{chosen.label} ({chosen.kind})",
        volume,
    )

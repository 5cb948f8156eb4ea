"""What each method reaches in a cell, where every seed is a user who chooses a model on held-out rows.

All methods choose by one rule, that of `ffalm compare --target` for a single seed: of the runs with the method's
settings (and thresholds, where it may fit them), the most accurate whose gap is within the bound with a margin, on
held-out rows and on training rows that agree with them. The test rows only score the choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ffalm.config import entry_of
from ffalm.fairness import ScoreHistogram
from ffalm.leaderboard.board import METRICS, Board, Method
from ffalm.outcome import Outcome
from ffalm.report.fronts import hypervolume, reference_of
from ffalm.studies.results import Study
from ffalm.targets.answer import Answer
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.site_answers import with_sites
from ffalm.targets.target import Target


@dataclass(frozen=True)
class MethodChoice:
    """What one method chose for one bound in one seed of a cell, on test rows."""

    cell: str
    target: str
    method: str
    seed: int
    accuracy: float  # NaN if all of its runs diverged
    gap: float
    held: bool  # whether the gap is within the bound
    degenerate: str  # why the model is no result
    chosen: str  # the run, with its thresholds if it has any
    hypervolume: float  # of all models that the method offers for this metric in this seed; the box is of this seed


def choices_of(board: Board, cell: str, studies: Mapping[int, Study]) -> list[MethodChoice]:
    """What every method chose in a cell, for every bound and seed; `studies` have the keys of `Board.configs`.

    A method chooses only from runs of its own training, since another training may have runs with the same settings.
    """
    choices: list[MethodChoice] = []
    labels = {
        (method.name, target): {entry_of(key, values).label for key, values in method.sections(target).items()}
        for method in board.methods
        for target in board.targets
    }
    for seed in dict.fromkeys(run.seed for study in studies.values() for run in study.results):
        runs = [
            _SeedRun(study, run)
            for study in studies.values()
            for run in study.results
            if run.seed == seed and not run.diverged
        ]
        sound = [one.outcome for one in runs if not one.outcome.degenerate] or [one.outcome for one in runs]
        for metric in METRICS:
            reference = reference_of(sound, metric)
            targets = [target for target in board.targets if target.bounds[0].metric == metric]
            for method in board.methods:
                own = [one for one in runs if one.sites or method.scope == "federation"]
                if runs and not own:
                    continue  # row owners are unknown, so thresholds of sites mean nothing here
                trained = studies[board.trainings.index(method.training)]
                own = [one for one in own if one.study is trained]
                answers = {target: _answer(method, target, labels[method.name, target], own) for target in targets}
                offered = _offered(answers.values(), metric)
                volume = hypervolume(offered, reference) if offered else 0.0
                choices += [_choice(cell, target, method, seed, answer, volume) for target, answer in answers.items()]
    return choices


@dataclass(frozen=True, eq=False)
class _SeedRun:
    """A finished run, whose scores are read once."""

    study: Study
    outcome: Outcome

    @cached_property
    def plain(self) -> FinishedRun:
        run = self.outcome
        return FinishedRun(run.label, run.seed, run.alpha, run.place, self.study.scores(run))

    @cached_property
    def sites(self) -> dict[str, dict[str, ScoreHistogram]]:
        """Scores by site and part; empty if row owners are unknown."""
        return self.study.client_scores(self.outcome)


def _answer(method: Method, target: Target, labels: Collection[str], finished: Sequence[_SeedRun]) -> Answer | None:
    """The method's choice among the runs with these labels; None if none of them finished."""
    runs = {one.outcome.place: one for one in finished if one.outcome.label in labels}
    if not runs:
        return None
    names = finished[0].study.record.group_names
    answer = answer_of([one.plain for one in runs.values()], target, method.repair, names)
    if method.scope == "federation":
        return answer
    return with_sites(answer, runs[answer.best.run].sites, method.scope, method.repair, names)


def _offered(answers: Iterable[Answer | None], metric: str) -> list[tuple[float, float]]:
    """Gap and accuracy on test rows of every model that a method has for a metric, as trained and as chosen."""
    shown = []
    for answer in filter(None, answers):
        trained = [run.test for one in answer.candidates if one.kind == "none" for run in one.runs]
        shown += [scores for scores in (*trained, answer.scored) if scores is not None and not scores.degenerate]
    return [(scores.metrics[metric], scores.metrics["accuracy"]) for scores in shown]


def _choice(cell: str, target: Target, method: Method, seed: int, answer: Answer | None, volume: float) -> MethodChoice:
    if answer is None or answer.best.test is None:
        return MethodChoice(cell, str(target), method.name, seed, math.nan, math.nan, False, "", "", 0.0)
    metrics, chosen = answer.scored.metrics, answer.chosen
    return MethodChoice(
        cell,
        str(target),
        method.name,
        seed,
        metrics["accuracy"],
        metrics[target.bounds[0].metric],
        target.meets(metrics),
        answer.scored.degenerate,
        chosen.label if chosen.kind == "none" else f"{chosen.label} ({chosen.kind})",
        volume,
    )

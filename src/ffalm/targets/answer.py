"""From candidates to one answer: the most accurate model within a target on held-out rows, judged on test rows.

Held-out rows, with training rows if `choice_rows` finds that they agree, fit thresholds and choose the candidate; test
rows only score the choice. Everything here is plain values, so that a report needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, get_args

from ffalm.errors import require
from ffalm.targets.target import Bound, Kind, Scope, Target

Part = Literal["validation", "test"]
Verdict = Literal["met with confidence", "met in the sample", "cannot be judged", "not met"]
"""From best to worst. A target cannot be judged if a gap is undefined because a group has no rows."""

_TIE = 0.001  # of held-out merit, in its unit
_NO_SLACK = 1e-6

#: One-sided confidence of the bounds that a verdict goes by, whatever the confidence of the choice.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class GroupRates:
    """Rates of one group: how many of its rows are predicted favourable, of all and of those whose true outcome is
    favourable, and how many are predicted correctly."""

    group: str
    rows: float
    selection_rate: float
    true_positive_rate: float
    accuracy: float
    compared: bool = True  # whether gaps are about it too
    positives: float = 0.0  # rows whose true outcome is the favourable one


@dataclass(frozen=True)
class Scores:
    """A model with its thresholds on the rows of one part."""

    metrics: dict[str, float]
    ends: dict[str, float]  # the one-sided confidence bound of each metric of the target
    level: float  # the confidence of these bounds
    groups: tuple[GroupRates, ...]
    degenerate: str = ""  # why the model is degenerate; empty if it is not
    chose: bool = False  # whether thresholds were fitted to these rows, or the model was chosen on them
    others: dict[str, float] = field(default_factory=dict)  # the same on the other side: what is still possible

    @property
    def merit(self) -> float:
        """What is maximised: accuracy, or minus the mean cost of a row if costs of wrong predictions are given."""
        return -self.metrics["cost"] if "cost" in self.metrics else self.metrics["accuracy"]

    def verdict(self, target: Target) -> Verdict:
        """Whether the target holds here, and how surely.

        Never "with confidence" on the rows of the choice: gaps that were chosen for being small are larger elsewhere.
        """
        unknown = self.undefined(target)
        if unknown and all(one in unknown or one.meets(self.metrics[one.metric]) for one in target.bounds):
            return "cannot be judged"
        if not target.meets(self.metrics):
            return "not met"
        return "met with confidence" if target.meets(self.ends) and not self.chose else "met in the sample"

    def undefined(self, target: Target) -> list[Bound]:
        """The bounds whose metric is undefined here, because a group lacks the rows that it is about."""
        return [bound for bound in target.bounds if math.isnan(self.metrics[bound.metric])]

    def excess(self, target: Target) -> float:
        """How far the gaps, or their confidence bounds, are beyond the target; 0 if they are within."""
        return max(target.excess(self.metrics), target.excess(self.ends))

    def rows_factor(self, target: Target) -> float | None:
        """How many times as many rows it takes until gaps of the measured size are within the target with confidence.

        The distance from a gap to its confidence bound shrinks with the square root of the rows. None if a gap is not
        within the target, or barely.
        """
        factors = []
        for bound in target.bounds:
            value, end = self.metrics[bound.metric], self.ends[bound.metric]
            slack = abs(bound.value - value)
            if not bound.meets(value) or slack < _NO_SLACK:
                return None
            factors.append((abs(end - value) / slack) ** 2)
        return max(1.0, *factors)

    def margin_factor(self, target: Target, share: float = 1.0) -> float:
        """How many times as many rows it takes until confidence bounds are narrow enough for a target.

        The distance from a gap to its confidence bound may take this share of the target: all of it if no gap is left.
        Below 1 if there are enough rows.
        """
        distances = [abs(self.ends[one.metric] - self.metrics[one.metric]) for one in target.bounds]
        rooms = [share * (one.value if one.at_most else 1 - one.value) for one in target.bounds]
        return max(
            (distance / room) ** 2 if room else math.inf for distance, room in zip(distances, rooms, strict=True)
        )

    @property
    def smallest(self) -> GroupRates | None:
        """Of the groups that are compared, the one with the fewest rows; None if groups are not known."""
        return min((one for one in self.groups if one.compared), key=lambda one: one.rows, default=None)


@dataclass(frozen=True)
class CandidateRun:
    """One run of a candidate: one seed."""

    seed: int
    run: str  # the run's folder within the study's
    repair: dict[str, Any]  # the thresholds in plain values
    validation: Scores  # on the rows of the choice: held-out ones, with training rows where those agree
    test: Scores | None = None
    untested: Scores | None = None  # without test rows: on the rows of the choice, with bounds at `CONFIDENCE`

    @property
    def scored(self) -> Scores:
        """The scores that give the verdict: on test rows, or on the rows of the choice if there are no others."""
        return self.test or self.untested or self.validation


@dataclass(frozen=True)
class Candidate:
    """An algorithm with one kind of thresholds, over all seeds."""

    label: str
    kind: Kind  # of thresholds
    runs: tuple[CandidateRun, ...]
    alpha: float | None = None

    @property
    def degenerate(self) -> str:
        """Why a model is degenerate on held-out rows; empty if none is."""
        return next((run.validation.degenerate for run in self.runs if run.validation.degenerate), "")

    @property
    def merit(self) -> float:
        """The mean over seeds of what is maximised on held-out rows."""
        return fmean(run.validation.merit for run in self.runs)

    def mean(self, metric: str, part: Part = "test") -> float:
        """The mean of a metric over seeds."""
        scores = [getattr(run, part) for run in self.runs]
        return fmean(one.metrics[metric] for one in scores) if all(scores) else math.nan

    def within(self, target: Target) -> int:
        """In how many seeds the target holds on held-out rows with the confidence of the choice."""
        return sum(run.validation.excess(target) == 0 for run in self.runs)

    def __repr__(self) -> str:
        runs = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}"
        return f"Candidate({self.label}, {self.kind}: {runs}, accuracy={self.mean('accuracy'):.4f})"

    def held(self, target: Target) -> int:
        """In how many seeds the target holds on test rows."""
        return sum(run.test is not None and target.meets(run.test.metrics) for run in self.runs)


@dataclass(frozen=True)
class SiteAnswer:
    """The model at one site, on its own test rows: with the federation's thresholds, and with those that it gets."""

    site: str
    own: bool  # whether its thresholds were fitted to its own held-out rows
    repair: dict[str, Any]
    before: Scores
    after: Scores

    def verdict(self, target: Target) -> Verdict | None:
        """Whether the target holds at the site; None if that cannot be judged, because its rows lack a group."""
        verdict = self.after.verdict(target)
        return None if verdict == "cannot be judged" else verdict


@dataclass(frozen=True)
class Answer:
    """The chosen candidate, and the model among its runs that is put to use."""

    target: Target
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    unconstrained: Candidate  # the most accurate on held-out rows whatever its gaps
    best: CandidateRun  # of the chosen candidate's runs, the most accurate on held-out rows within the target
    notes: tuple[str, ...] = field(default=())
    training_rows: bool = False  # whether training rows decided beside held-out ones: see `choice_rows`
    scope: Scope = "federation"
    sites: tuple[SiteAnswer, ...] = ()  # where it is known whose the rows are
    together: Scores | None = None  # all test rows with each site's thresholds, if sites have their own
    federated: bool = False  # whether it is of real sites

    def __repr__(self) -> str:
        metrics = {"accuracy", *(bound.metric for bound in self.target.bounds)}
        shown = [f"{name}={value:.4f}" for name, value in self.test.items() if name in metrics]
        parts = [f"{self.target}: {self.verdict}", self.chosen.label, self.chosen.kind, *shown]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def scored(self) -> Scores:
        """The model on test rows, on the rows of the choice if there are none."""
        return self.together or self.best.scored

    @property
    def test(self) -> dict[str, float]:
        """Test metrics of the model; empty if there are no test rows."""
        return {} if self.best.test is None else self.scored.metrics

    @property
    def bounds(self) -> dict[str, float]:
        """The one-sided 95 % confidence bounds of the target's metrics on test rows."""
        return {} if self.best.test is None else self.scored.ends

    @property
    def verdict(self) -> Verdict:
        """Whether the target holds in its scope; of several sites, the worst of their verdicts.

        Without test rows it is "met in the sample" at most: see `Scores.verdict`. Sites that cannot be judged do not
        count. If none can, the verdict is that of the federation.
        """
        whole = self.scored.verdict(self.target)
        own = [verdict for site in self.sites if (verdict := site.verdict(self.target)) is not None]
        if self.scope == "federation" or not own:
            return whole
        return max([whole, *own] if self.scope == "both" else own, key=get_args(Verdict).index)

    @property
    def degenerate(self) -> str:
        """Why the chosen model is degenerate, on held-out or on test rows; empty if it is not."""
        return self.chosen.degenerate or self.scored.degenerate

    @property
    def also_most_accurate(self) -> bool:
        """Whether a choice without a target would give the same model with the same thresholds."""
        return self.unconstrained is self.chosen and self.together is None

    @property
    def compared(self) -> Candidate:
        """The choice without a target, of the seeds that `cost` compares."""
        return self.unconstrained if self.together is None else replace(self.unconstrained, runs=(self.before,))

    @property
    def cost(self) -> float:
        """Mean test accuracy lost against the unconstrained best; of one seed if sites have their own thresholds."""
        if self.together is not None and self.before.test is not None:
            return self.before.test.metrics["accuracy"] - self.together.metrics["accuracy"]
        return self.unconstrained.mean("accuracy") - self.chosen.mean("accuracy")

    @property
    def before(self) -> CandidateRun:
        """The unconstrained best of the same seed, with which groups are compared."""
        return next((run for run in self.unconstrained.runs if run.seed == self.best.seed), self.unconstrained.runs[0])


def choose(target: Target, candidates: Sequence[Candidate], notes: Sequence[str] = (), unit: float = 1.0) -> Answer:
    """The best candidate (see `Scores.merit`) whose confidence bounds are within the target on held-out rows.

    If none is within in every seed: the one that is in most seeds, then the one that misses by least. Degenerate
    candidates come last. Of candidates within a tenth of a point of the best, the one with the simplest thresholds is
    chosen. `unit` is the most that one row can cost, if costs are given.
    """
    require(bool(candidates), "There is no finished run to choose from.")

    def misses(one: Candidate) -> tuple[bool, int, float]:
        missed = len(one.runs) - one.within(target)
        return bool(one.degenerate), missed, max(run.validation.excess(target) for run in one.runs) if missed else 0.0

    fewest = min(map(misses, candidates))
    nearest = [one for one in candidates if misses(one) == fewest]
    enough = max(one.merit for one in nearest) - _TIE * unit
    order_of = get_args(Kind).index
    chosen = min((one for one in nearest if one.merit >= enough), key=lambda one: (order_of(one.kind), -one.merit))
    free = min(candidates, key=lambda one: (bool(one.degenerate), -one.merit))
    order = [(run.validation.excess(target) > 0, -run.validation.merit) for run in chosen.runs]
    return Answer(target, chosen, tuple(candidates), free, chosen.runs[order.index(min(order))], tuple(notes))

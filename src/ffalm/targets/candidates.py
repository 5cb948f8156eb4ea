"""The candidates of a target: which algorithms are trained, and what each run gives with each kind of thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.group_metrics import favourable_rate, group_accuracy, selection_rate
from ffalm.targets.answer import CONFIDENCE, Answer, Candidate, CandidateRun, GroupRates, Scores, choose
from ffalm.targets.choice_rows import choice_rows
from ffalm.targets.degenerate import degenerate_reason, flaws_of, majority_share
from ffalm.targets.rate_table import Costs
from ffalm.targets.repair import Repair, fit
from ffalm.targets.target import KINDS, TITLES, Kind, Target, check_confidence
from ffalm.targets.target import Repair as RepairSetting

T = TypeVar("T")

LEVELS = (0.8, 0.7, 0.6, 0.5)  # of confidence, in the order in which they are tried; at the last there is no margin
MARGIN_COST = 0.01  # accuracy that the default margin may cost on the rows of the choice
_HALF = 0.5  # share of a target that a margin may take, so that the rest is left for the gap

#: The rate constraint of `Lagrangian` for each metric of a target.
CONSTRAINTS = {
    "dpd": "dp",
    "impact_ratio": "dp",
    "eod": "eo",
    "equalized_odds": "odds",
    "accuracy_parity": "accuracy",
}
_SHORT = {"dp": "DP", "eo": "EO"}


BlindFit = Callable[[Target, float], CandidateRun]
"""The run with the blind rule for a target at a confidence."""


@dataclass(frozen=True)
class FinishedRun:
    """What the choice needs of a finished run."""

    label: str
    seed: int
    alpha: float | None
    place: str  # its folder within the study's
    scores: Mapping[str, ScoreHistogram]
    blind: BlindFit | None = None  # fits a blind rule to its held-out rows, if one is wanted
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # shared by copies: see `_remembered`


def lagrangians(target: Target) -> dict[str, dict[str, Any]]:
    """Settings of `Lagrangian` for a target by name: at its bound and at half of it.

    What holds on held-out rows at the bound misses it on test rows about every second time; half leaves room.
    """
    constraint = ",".join(dict.fromkeys(CONSTRAINTS[bound.metric] for bound in target.bounds))
    tightest = min(bound.value if bound.at_most else (1 - bound.value) / 4 for bound in target.bounds)
    return {
        _key(constraint, tolerance): {"name": "lagrangian", "constraint": constraint, "tolerance": tolerance}
        for tolerance in (tightest, tightest / 2)
    }


def lagrangian_title(key: str, algorithm: Any) -> str | None:
    """The title of an algorithm that `lagrangians` gave this key, "Lagrangian (DP ≤ 0.05)"; None for others."""
    if algorithm.name != "lagrangian" or key != _key(algorithm.constraint, algorithm.tolerance):
        return None
    constraints = ", ".join(_SHORT.get(one, one) for one in algorithm.constraint.split(","))
    return f"{algorithm.title} ({constraints} ≤ {algorithm.tolerance:g})"


def _key(constraint: str, tolerance: float) -> str:
    return f"lagrangian-{constraint.replace(',', '-')}-{tolerance:g}"


def kinds_of(repair: RepairSetting) -> tuple[Kind, ...]:
    """The kinds of thresholds that are tried with this setting."""
    if repair == "none":
        return ("none",)
    if repair == "blind":
        return (*kinds_of("single"), "blind")
    return KINDS[: KINDS.index(repair) + 1]


def answer_of(
    runs: Sequence[FinishedRun],
    target: Target,
    repair: RepairSetting = "groups",
    group_names: Sequence[str] = (),
    confidence: float | None = None,
    costs: Costs | None = None,
) -> Answer:
    """Fit thresholds to every run, and choose by accuracy, or by costs if they are given.

    The rows for both are held-out ones, with training rows where those agree (`choice_rows`). A gap that is within the
    target on these rows exceeds it on other rows about every second time, so the choice leaves a margin: the one-sided
    confidence bound must be within. The default confidence is 0.8, or less if rows are so few that the margin would
    cost more than a point of accuracy. A given confidence is kept, and a note says if it costs more.
    """
    check_confidence(confidence)
    rows = choice_rows([run.scores for run in runs])
    if rows.training and any(run.blind is not None for run in runs):  # a blind rule rests on held-out rows alone
        rows = choice_rows([{part: one for part, one in run.scores.items() if part != "training"} for run in runs])
    runs = [replace(run, scores=parts) for run, parts in zip(runs, rows.parts, strict=True)]
    answer = _answer_of(runs, target, repair, group_names, confidence, costs)
    which = "Training rows were used too" if rows.training else "Only held-out rows were used"
    notes = (*answer.notes, f"{which}: {rows.why}.") if rows.why else answer.notes
    return replace(answer, training_rows=rows.training, notes=notes)


def _answer_of(
    runs: Sequence[FinishedRun],
    target: Target,
    repair: RepairSetting,
    group_names: Sequence[str],
    confidence: float | None,
    costs: Costs | None,
) -> Answer:
    """The choice at a confidence, or at the largest that costs little."""
    unit = 1.0 if costs is None else costs.largest

    def at(level: float) -> Answer:
        return choose(target, *candidates_of(runs, target, repair, group_names, level, costs), unit)

    plain = at(LEVELS[-1])
    enough = plain.chosen.merit - MARGIN_COST * unit
    if confidence is not None:
        answer = plain if confidence == LEVELS[-1] else at(confidence)
        cheap = answer.chosen.merit >= enough or bool(plain.chosen.degenerate)
        return answer if cheap else _with_margin_cost(answer, confidence, plain)
    strict: Answer | None = None
    for level in LEVELS[:-1]:
        answer = at(level)
        strict = strict or answer
        usable = bool(plain.chosen.degenerate) or not answer.chosen.degenerate
        complete = usable and answer.chosen.within(target) == len(answer.chosen.runs)
        if complete and answer.chosen.merit >= enough:
            return answer if level == LEVELS[0] else _with_less_margin(answer, level, strict)
    return _with_less_margin(plain, LEVELS[-1], strict or plain)


def _with_margin_cost(answer: Answer, level: float, plain: Answer) -> Answer:
    """The answer with a note on what its margin costs: more than the default one may.

    Rates near 0 or 1 have the narrowest margins. With few rows a wide margin is therefore met by thresholds that give
    nearly all rows of a group one label, which makes a model of little use.
    """
    if "cost" in answer.best.validation.metrics:
        cost = f"{plain.chosen.merit - answer.chosen.merit:.3g} a row"
    else:
        cost = f"{100 * (plain.chosen.merit - answer.chosen.merit):.1f} points of accuracy"
    note = (
        f"The margin at {100 * level:g}% confidence costs {cost} on the rows of the choice, which are few for this "
        "target. A lower confidence or a wider target costs less."
    )
    return replace(answer, notes=(note, *answer.notes))


def _with_less_margin(answer: Answer, level: float, strict: Answer) -> Answer:
    """The answer with a note on its smaller margin, and on how many rows the default one takes.

    `strict` is the choice with the default margin.
    """
    left = f"leaves one at {level:.0%}" if level > LEVELS[-1] else "leaves none"
    note = (
        f"The rows are too few for a margin at {LEVELS[0]:.0%} confidence that costs less than a point of "
        f"accuracy, so the choice {left}."
    )
    scores = strict.best.validation
    factor, smallest = scores.margin_factor(answer.target, _HALF), scores.smallest
    if smallest is not None and 1 < factor < math.inf:
        note += (
            f" It would take half of the target with about {math.ceil(factor * smallest.rows):,} rows of "
            f"{smallest.group}, the smallest group, instead of {smallest.rows:,.0f}."
        )
    return replace(answer, notes=(note, *answer.notes))


def candidates_of(
    runs: Sequence[FinishedRun],
    target: Target,
    repair: RepairSetting = "groups",
    group_names: Sequence[str] = (),
    level: float = 0.5,
    costs: Costs | None = None,
) -> tuple[list[Candidate], list[str]]:
    """Every algorithm with every kind of thresholds, and notes on those that have none within the target."""
    by_label: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    found, notes = [], []
    for kind in kinds_of(repair):
        for label, own in by_label.items():
            if kind == "none" and any(run.scores["validation"].as_trained is None for run in own):
                continue
            if kind == "blind":
                rules = tuple(run.blind(target, level) for run in own if run.blind is not None)
                found += [Candidate(label, kind, rules, own[0].alpha)] if len(rules) == len(own) else []
                continue
            fitted = [(run, _fitted(run, target, kind, costs, level)) for run in own]
            if any(thresholds is None for _, thresholds in fitted):
                none = "no threshold is" if kind in ("accurate", "single") else f"no {TITLES[kind]} are"
                notes.append(f"{label}: {none} within {target} on the rows of the choice.")
                continue
            repaired = tuple(_run(run, one, target, group_names, level, costs) for run, one in fitted if one)
            found.append(Candidate(label, kind, repaired, own[0].alpha))
    return found, notes


def _run(
    run: FinishedRun, repair: Repair, target: Target, group_names: Sequence[str], level: float, costs: Costs | None
) -> CandidateRun:
    parts = {}
    for part, histogram in run.scores.items():
        scored = partial(_scored, repair, histogram, group_names, costs)
        tally, scores = _remembered(run, part, (repair.edges, costs), scored)
        ends = (tally, target, histogram.favourable)
        if part == "test":
            parts["test"] = _with_ends(scores, *ends, CONFIDENCE)
            continue
        parts["validation"] = _with_ends(scores, *ends, level, chose=True)
        if "test" not in run.scores:
            parts["untested"] = _with_ends(scores, *ends, CONFIDENCE, chose=True)
    return CandidateRun(run.seed, run.place, repair.to_plain(group_names), **parts)


def _scored(
    repair: Repair, histogram: ScoreHistogram, group_names: Sequence[str], costs: Costs | None
) -> tuple[Tally, Scores]:
    tally = repair.tally(histogram)
    return tally, _scores(tally, histogram.favourable, group_names, costs)


def _fitted(run: FinishedRun, target: Target, kind: Kind, costs: Costs | None, level: float) -> Repair | None:
    key = (kind, str(target), costs, level)
    return _remembered(run, "validation", key, lambda: fit(run.scores["validation"], target, kind, costs, level))


def _remembered(run: FinishedRun, part: str, key: Any, found: Callable[[], T]) -> T:
    """A result of a run's scores, computed once: answers at several levels and targets need the same.

    The number of rows is part of the key, since held-out rows may be used with and without training rows.
    """
    whole = (part, int(run.scores[part].counts.sum()), key)
    if whole not in run.memo:
        run.memo[whole] = found()
    return cast("T", run.memo[whole])


def judged(
    tally: Tally,
    target: Target,
    favourable: int,
    group_names: Sequence[str],
    level: float = CONFIDENCE,
    chose: bool = False,
) -> Scores:
    """The Tally of a model on some rows, with confidence bounds of the target's metrics at a one-sided level.

    `chose` says that thresholds were fitted to these rows, or the model was chosen on them.
    """
    return _with_ends(_scores(tally, favourable, group_names, None), tally, target, favourable, level, chose)


def _with_ends(
    scores: Scores, tally: Tally, target: Target, favourable: int, level: float, chose: bool = False
) -> Scores:
    ends, others = {}, {}
    for bound in target.bounds:
        value = scores.metrics[bound.metric]
        interval = tally.interval(bound.metric, 2 * level - 1, favourable) if level > 0.5 else (value, value)
        ends[bound.metric], others[bound.metric] = bound.worst_end(interval), bound.best_end(interval)
    return replace(scores, ends=ends, level=level, chose=chose, others=others)


def _scores(tally: Tally, favourable: int, group_names: Sequence[str], costs: Costs | None) -> Scores:
    """What does not depend on a target: metrics and each group's rates."""
    metrics = tally.metrics(favourable)
    if costs is not None:
        metrics["cost"] = costs.per_row(tally, favourable)
    positives = tally.count[favourable].tolist()
    shares = zip(
        group_names,
        tally.count.sum(0).tolist(),
        selection_rate(tally, favourable).tolist(),
        favourable_rate(tally, favourable)[favourable].tolist(),
        group_accuracy(tally).tolist(),
        strict=True,
    )
    compared = len(group_names) - tally.excluded
    groups = tuple(GroupRates(*share, place < compared, positives[place]) for place, share in enumerate(shares))
    degenerate = why_degenerate(tally, metrics["accuracy"] if costs is None else 1.0)
    return Scores(metrics, {}, CONFIDENCE, groups, degenerate)


def why_degenerate(tally: Tally, accuracy: float) -> str:
    """Why a model with this Tally is degenerate; empty if it is not."""
    predicted, actual = tally.confusion.sum((-1, -2)).tolist(), tally.count.sum(-1).tolist()
    flaws = flaws_of(predicted, actual, accuracy)
    return degenerate_reason(flaws.one_label, 1, accuracy, majority_share(actual), rows="rows")

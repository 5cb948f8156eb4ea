"""`ffalm.blind`: repair a trained model for a fairness target without the group at prediction.

A second federated model with (favourable or not, group) as its label tells P(label, group | x); the rule of
`targets.blind` weighs it against the trained model's own probability.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor

from ffalm.algorithms import FedAvg
from ffalm.data.types import Examples, Task
from ffalm.errors import UserError, require, shown
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.histograms import edge_value, scores_of
from ffalm.federation import Federation
from ffalm.run_settings import RunSettings, Training
from ffalm.runs import Result
from ffalm.settings import with_keywords
from ffalm.simulation import RunKeywords, rebuilt, simulate
from ffalm.targets.answer import CONFIDENCE, CandidateRun, Part, Scores, Verdict
from ffalm.targets.blind import BlindRule, HeldOutRows, fit_blind, gains
from ffalm.targets.candidates import judged
from ffalm.targets.repair import fit
from ffalm.targets.target import DEFAULT, Target
from ffalm.trained_models.trained_model import TrainedModel

_LARGE_LOSS = 0.03  # of accuracy, from which on a warning is due
_KNOWN_GROUP = 0.99  # of held-out rows whose group the features tell


@dataclass(frozen=True, repr=False)
class GroupModel:
    """P(label, group | x), trained over a federation; it may serve several results and targets."""

    network: TrainedModel
    groups: int
    accuracy: float  # share of the held-out rows of compared groups whose group is the most likely of these
    epsilon: float | None = None  # the privacy budget that its training spent

    def cells(self, x: Tensor) -> Tensor:
        """P(not favourable / favourable, group | x), of shape (row, 2, group)."""
        return self.network.logits(x).double().softmax(-1).view(-1, 2, self.groups)


@dataclass(frozen=True, repr=False)
class BlindAnswer:
    """A model with its blind rule, before and after on the same rows."""

    target: Target
    rule: BlindRule
    part: Part  # whose rows are scored: test, or validation where there are none
    before_scores: Scores  # of the model's own decisions
    after_scores: Scores
    held_out: Scores  # after, on the held-out rows on which the rule was fitted
    warning: str  # why not to use it, empty where nothing speaks against it
    notes: tuple[str, ...]
    model: TrainedModel
    group_model: GroupModel

    @property
    def before(self) -> dict[str, float]:
        """Metrics of the model's own decisions."""
        return self.before_scores.metrics

    @property
    def after(self) -> dict[str, float]:
        """Metrics of the rule's decisions."""
        return self.after_scores.metrics

    @property
    def verdict(self) -> Verdict:
        """Whether the target holds, and how surely."""
        return self.after_scores.verdict(self.target)

    @property
    def cost(self) -> float:
        """Accuracy given up."""
        return self.before["accuracy"] - self.after["accuracy"]

    def predict(self, x: Any) -> Tensor:
        """The label of each row, as its number in the task; nobody's group is asked for."""
        rows = self.model.features(x)
        favourable = self.model.task.favourable
        return self.rule.predict(self.model.logits(rows), self.group_model.cells(rows), favourable)

    def explain(self) -> str:
        """The answer in sentences: before and after, how sure it is, and what speaks against it."""
        return "\n".join([self.figures(), *self.doubts()])

    def figures(self) -> str:
        """The verdict, and the metrics before and after."""
        part = "test" if self.part == "test" else "held-out"
        changes = [f"accuracy {100 * self.before['accuracy']:.1f} -> {100 * self.after['accuracy']:.1f} %"]
        for bound in self.target.bounds:
            end, side = self.after_scores.ends[bound.metric], "at most" if bound.at_most else "at least"
            changes.append(
                f"{bound.metric} {self.before[bound.metric]:.3f} -> {self.after[bound.metric]:.3f} "
                f"({side} {end:.3f} with {CONFIDENCE:.0%} confidence)"
            )
        return f"{self.target}: {self.verdict}, without the group at prediction. On {part} rows {', '.join(changes)}."

    def doubts(self) -> tuple[str, ...]:
        """What speaks against the rule, and what a reader should know of it."""
        return (self.warning, *self.notes) if self.warning else self.notes

    def candidate_run(self, seed: int, run: str) -> CandidateRun:
        """The rule as one run of a candidate."""
        names, test = self.model.task.group_names, self.after_scores if self.part == "test" else None
        return CandidateRun(seed, run, self.rule.to_plain(names), self.held_out, test)

    def __repr__(self) -> str:
        metrics = ["accuracy", *(bound.metric for bound in self.target.bounds)]
        shown = ", ".join(f"{name} {self.before[name]:.4f} -> {self.after[name]:.4f}" for name in metrics)
        return f"BlindAnswer({self.target}: {self.verdict}, {shown})"


@with_keywords(RunSettings, Training)
def group_model(federation: Federation, *, seed: int = 0, **settings: Unpack[RunKeywords]) -> GroupModel:
    """Train P(label, group | x) over a federation by FedAvg, with the keywords of `simulate`."""
    rows = held_out(federation)
    crossed = federation.with_group_labels()
    result = simulate(FedAvg(), crossed, seed=seed, **settings)
    network = rebuilt(result.state_dict, crossed, settings)
    groups = federation.task.groups
    compared = federation.task.compared
    likely = GroupModel(network, groups, math.nan).cells(rows.x).sum(1)[:, :compared].argmax(-1)
    told = (likely == rows.group)[rows.group < compared]
    return GroupModel(network, groups, float(told.double().mean()), result.epsilon)


@dataclass(frozen=True, eq=False)
class BlindModel:
    """A trained model and a model of the groups, to which blind rules for several targets can be fitted."""

    network: TrainedModel
    groups: GroupModel
    federation: Federation

    def fit(self, target: Target, confidence: float | None = None) -> BlindAnswer:
        """The rule that is best on the held-out rows, scored once on test rows."""
        federation, network, groups = self.federation, self.network, self.groups
        task, rows, part = federation.task, self._rows, self._part
        offset = rows.offset(target)
        gain, fallback = gains(rows.logits, task.favourable, offset)
        shape = (task.labels, task.groups)
        held_out = HeldOutRows(gain, rows.cells, fallback, rows.y, rows.group, shape, task.favourable)
        fitted = fit_blind(
            held_out.count, held_out.totals(), self._shares, target, task.favourable, confidence, offset, task.excluded
        )
        after_held_out = judged(fitted.tally, target, task.favourable, task.group_names, fitted.level)
        scored = self._scored
        before = scored.judged(scored.logits.argmax(-1), target)
        after = scored.judged(fitted.rule.predict(scored.logits, scored.cells, task.favourable), target)
        warning = _warning(before, after, after_held_out, fitted.within, target)
        notes = _notes(federation, groups)
        return BlindAnswer(target, fitted.rule, part, before, after, after_held_out, warning, notes, network, groups)

    @property
    def _part(self) -> Part:
        return "validation" if self.federation.test is None else "test"

    @cached_property
    def _rows(self) -> _PredictedRows:
        return self._predicted(held_out(self.federation))

    @cached_property
    def _scored(self) -> _PredictedRows:
        return self._rows if self.federation.test is None else self._predicted(self.federation.test)

    @property
    def _shares(self) -> Tensor:
        """P(not favourable / favourable, group) over the training rows."""
        counts = self.federation.counts().sum(0).double()
        own = counts[self.federation.task.favourable]
        return torch.stack([counts.sum(0) - own, own]) / counts.sum()

    def _predicted(self, rows: Examples) -> _PredictedRows:
        logits, cells = self.network.logits(rows.x), self.groups.cells(rows.x)
        return _PredictedRows(logits, cells, rows.y, rows.group, self.federation.task)


@dataclass(frozen=True, eq=False)
class _PredictedRows:
    """What the two models say of some rows, and what is true of them."""

    logits: Tensor
    cells: Tensor
    y: Tensor
    group: Tensor
    task: Task

    def offset(self, target: Target) -> float:
        """The most accurate threshold of the score: it undoes a shift of label shares from clients to these rows."""
        task = self.task
        scores, fallback = scores_of(self.logits, task.favourable)
        shape = (task.labels, task.groups)
        histogram = ScoreHistogram.of(scores, fallback, self.y, self.group, shape, task.favourable)
        accurate = fit(histogram, target, "accurate")
        offset = 0.0 if accurate is None else edge_value(accurate.single)
        return offset if math.isfinite(offset) else 0.0

    def judged(self, predictions: Tensor, target: Target) -> Scores:
        """The scores of predictions of these rows, with bounds at 95 %."""
        task, unknown = self.task, torch.full(predictions.shape, torch.nan)
        tally = Tally.of(predictions, unknown, self.y, self.group, (task.labels, task.groups))
        return judged(tally.excluding(task.excluded), target, task.favourable, task.group_names, CONFIDENCE)


@with_keywords(RunSettings, Training)
def blind(
    trained: Result | Mapping[str, Tensor],
    federation: Federation,
    target: str | Target = DEFAULT,
    *,
    confidence: float | None = None,
    groups: GroupModel | None = None,
    seed: int | None = None,
    **settings: Unpack[RunKeywords],
) -> BlindAnswer:
    """Bring a trained model within a fairness target without the group at prediction.

    `trained` is what `simulate` gave on this federation with these `settings`, or the `state_dict` of such a model. The
    same settings and `seed` (by default the result's) train the model of the groups, unless `groups` is one that
    `group_model` has trained. The rule is fitted to the federation's validation part and scored once on its test part;
    `confidence` is as in `Study.answer`. Warns where the rule costs more than 3 points of accuracy, is degenerate or is
    not within the target.
    """
    aim = Target.parse(target)
    own_seed = trained.seed if isinstance(trained, Result) else 0
    weights = trained.state_dict if isinstance(trained, Result) else trained
    require(isinstance(weights, Mapping), f"Give a Result or the weights of a model by name; got {shown(trained)}.")
    held_out(federation)
    network = rebuilt(weights, federation, settings)
    groups = groups or group_model(federation, seed=own_seed if seed is None else seed, **settings)
    answer = BlindModel(network, groups, federation).fit(aim, confidence)
    if answer.warning:
        warnings.warn(answer.warning, stacklevel=2)
    return answer


def held_out(federation: Federation, what: str = "A blind rule is fitted to") -> Examples:
    """The rows of a federation on which choices are made; `what` begins the sentence where there are none."""
    require(
        isinstance(federation, Federation),
        f"Give a Federation, such as ffalm.load(...) returns; got {type(federation).__name__}.",
    )
    if federation.validation is None:
        raise UserError(f"{what} held-out rows, and this federation has none: give it a validation part.")
    return federation.validation


def _warning(before: Scores, after: Scores, held_out: Scores, within: bool, target: Target) -> str:
    """Why a rule should not be used as it is."""
    told = []
    lost = before.metrics["accuracy"] - after.metrics["accuracy"]
    if lost > _LARGE_LOSS:
        told.append(
            f"Accuracy falls by {100 * lost:.1f} points, from {100 * before.metrics['accuracy']:.1f} to "
            f"{100 * after.metrics['accuracy']:.1f} %."
        )
    degenerate = after.degenerate or held_out.degenerate
    if degenerate:
        told.append(f"The rule is degenerate: {degenerate}.")
    if not within:
        told.append(f"No rule is within {target} on the held-out rows; this one's rates are nearest to each other.")
    return " ".join(told)


def _notes(federation: Federation, groups: GroupModel) -> tuple[str, ...]:
    notes = [f"The features tell the group of {100 * groups.accuracy:.0f} % of the held-out rows."]
    if groups.accuracy > _KNOWN_GROUP:
        notes.append(
            f"So the rule treats people by {federation.task.group} all but directly: leave that column out of the "
            "features (use_group_as_feature=False) where the law forbids its use."
        )
    if groups.epsilon is not None:
        notes.append(f"Training the model of the groups spent a privacy budget of its own: {groups.epsilon:.2f}.")
    return tuple(notes)

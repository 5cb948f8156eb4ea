"""A blind rule with its scores: before and after, what speaks against it, and how it stands among candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ffalm.data.types import Task
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.fairness.histograms import edge_value
from ffalm.targets.answer import CONFIDENCE, CandidateRun, Part, Scores, Verdict
from ffalm.targets.blind import BlindRule, FittedBlindRule
from ffalm.targets.candidates import judged
from ffalm.targets.repair import fit
from ffalm.targets.target import Target

_LARGE_LOSS = 0.03  # of accuracy, from which on a warning is due
_KNOWN_GROUP = 0.99  # share of held-out rows whose group the features reveal


@dataclass(frozen=True)
class JudgedRule:
    """A blind rule, before and after on the same rows."""

    target: Target
    rule: BlindRule
    part: Part  # whose rows are scored: test, or validation if there are none
    before_scores: Scores  # of the model's own decisions
    after_scores: Scores
    held_out: Scores  # after, on the held-out rows on which the rule was fitted
    warning: str  # why not to use it, empty if nothing speaks against it
    notes: tuple[str, ...]
    tally: Tally  # of its decisions on the rows that are scored

    @classmethod
    def of(
        cls, target: Target, fitted: FittedBlindRule, test: Tally | None, before: Tally, task: Task, known: float
    ) -> JudgedRule:
        """What a fitted rule gives on test rows, if there are any, and on the rows of its fit.

        `before` is the Tally of the model's own decisions on the rows that are scored, `known` the share of held-out
        rows whose group the model of the groups predicts correctly.
        """
        shown = (target, task.favourable, task.group_names)
        held_out = judged(fitted.tally, *shown, fitted.level, chose=True)
        after = fitted.tally if test is None else test
        old, new = (judged(one, *shown, CONFIDENCE, chose=test is None) for one in (before, after))
        warning = _warning(old, new, held_out, fitted.within, target)
        part: Part = "validation" if test is None else "test"
        return cls(target, fitted.rule, part, old, new, held_out, warning, _notes(task, known), after)

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
        """Whether the target holds, and how surely; without test rows it is "met in the sample" at most."""
        return self.after_scores.verdict(self.target)

    @property
    def cost(self) -> float:
        """Accuracy given up."""
        return self.before["accuracy"] - self.after["accuracy"]

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
        names = tuple(one.group for one in self.held_out.groups)
        test, untested = (self.after_scores if self.part == part else None for part in ("test", "validation"))
        return CandidateRun(seed, run, self.rule.to_plain(names), self.held_out, test, untested)


def best_offset(histogram: ScoreHistogram, target: Target) -> float:
    """The most accurate threshold of held-out rows' scores, which counts as eta = 1/2."""
    accurate = fit(replace(histogram, excluded=0), target, "accurate")
    offset = 0.0 if accurate is None else edge_value(accurate.single)
    return offset if math.isfinite(offset) else 0.0


def _warning(before: Scores, after: Scores, held_out: Scores, within: bool, target: Target) -> str:
    """Why a rule should not be used as it is."""
    reasons = []
    lost = before.metrics["accuracy"] - after.metrics["accuracy"]
    if lost > _LARGE_LOSS:
        reasons.append(
            f"Accuracy falls by {100 * lost:.1f} points, from {100 * before.metrics['accuracy']:.1f} to "
            f"{100 * after.metrics['accuracy']:.1f} %."
        )
    degenerate = after.degenerate or held_out.degenerate
    if degenerate:
        reasons.append(f"The rule is degenerate: {degenerate}.")
    if not within:
        reasons.append(f"No rule is within {target} on the held-out rows; this one's rates are nearest to each other.")
    return " ".join(reasons)


def _notes(task: Task, known: float) -> tuple[str, ...]:
    notes = [f"The features reveal the group of {100 * known:.0f} % of the held-out rows."]
    if known > _KNOWN_GROUP:
        notes.append(
            f"So the rule uses {task.group} nearly as if it were given: leave that column out of the features "
            "(use_group_as_feature=False) where the law forbids its use."
        )
    return tuple(notes)

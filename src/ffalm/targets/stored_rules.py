"""The blind rules that the sites of a real federation have scored, kept in its run folder, since the rows stay there.

They are of one target, one for each confidence that the answer may take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ffalm.data.types import Task
from ffalm.errors import UserError, require
from ffalm.fairness import Tally
from ffalm.settings import build, to_plain
from ffalm.targets.answer import Part
from ffalm.targets.blind import BlindRule, FittedBlindRule
from ffalm.targets.judged_rule import JudgedRule
from ffalm.targets.target import Target


@dataclass(frozen=True)
class ScoredRule:
    """A fitted rule, and its Tally on the test rows if these were counted."""

    fitted: FittedBlindRule
    test: Tally | None


@dataclass(frozen=True)
class StoredRules:
    """The rules of one model and target."""

    target: Target
    task: Task
    known: float  # share of the held-out rows whose group the model of the groups predicts correctly
    before: Tally  # of the model's own decisions on the rows that are scored
    rules: tuple[ScoredRule, ...]

    def judged(self, target: Target, level: float) -> JudgedRule:
        """The rule for a target at a confidence; raises `UserError` if sites scored rules for another."""
        found = [one for one in self.rules if one.fitted.level == level]
        require(
            str(target) == str(self.target) and bool(found),
            f"The sites of this federation scored only blind rules within {self.target}, at the confidence of its "
            "federation.toml: use that target and confidence, or repair='single'.",
        )
        return JudgedRule.of(self.target, found[0].fitted, found[0].test, self.before, self.task, self.known)

    def tally(self, rule: BlindRule) -> tuple[Part, Tally] | None:
        """The Tally of one of the rules on test rows, or on the held-out rows of its fit if there are none."""
        found = (one for one in self.rules if torch.equal(one.fitted.rule.weights, rule.weights))
        return next(
            (("validation", one.fitted.tally) if one.test is None else ("test", one.test) for one in found), None
        )

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a file."""
        rules = [
            {
                "level": one.fitted.level,
                "within": one.fitted.within,
                "rule": one.fitted.rule.to_plain(self.task.group_names),
                "validation": one.fitted.tally.confusion.tolist(),
                "test": None if one.test is None else one.test.confusion.tolist(),
            }
            for one in self.rules
        ]
        return {
            "target": str(self.target),
            "task": to_plain(self.task),
            "known": self.known,
            "before": self.before.confusion.tolist(),
            "rules": rules,
        }

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> StoredRules:
        """The inverse of `to_plain`."""
        try:
            task = build(Task, values["task"], "task")

            def tally(counts: Any) -> Tally:
                return Tally.of_counts(counts, task.excluded)

            rules = []
            for one in values["rules"]:
                rule = BlindRule.from_plain(one["rule"])
                fitted = FittedBlindRule(rule, float(one["level"]), bool(one["within"]), tally(one["validation"]))
                rules.append(ScoredRule(fitted, None if one["test"] is None else tally(one["test"])))
            known = math.nan if values["known"] is None else float(values["known"])
            return cls(Target.parse(values["target"]), task, known, tally(values["before"]), tuple(rules))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"The blind rules of this run cannot be read ({error!r}): restore the file.") from None

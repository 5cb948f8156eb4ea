"""A blind rule with its scores, from counts by hand: figures, verdict, and what speaks against it."""

from __future__ import annotations

import pytest
import torch

from ffalm.data.types import Task
from ffalm.fairness import Tally
from ffalm.targets.blind import BlindRule, FittedBlindRule
from ffalm.targets.judged_rule import JudgedRule
from ffalm.targets.target import Target

TASK = Task("people", group="sex", group_names=("women", "men"))


def tally(*groups: tuple[int, int, int, int]) -> Tally:
    """For each group rows that are rightly and wrongly unfavourable, wrongly and rightly favourable."""
    cells = torch.tensor(groups)  # (group, cell)
    return Tally.of_counts(torch.stack([cells[:, :2], cells[:, 2:]]).transpose(1, 2))


#: Of 1,000 women and 1,000 men 200 and 500 are selected, 850 and 800 rightly decided.
BEFORE = tally((750, 50, 100, 100), (400, 100, 100, 400))
#: 400 and 420, and 800 and 790.
AFTER = tally((600, 0, 200, 200), (475, 105, 105, 315))
#: All of the women and nearly all of the men are unfavourable: 0 and 5 of 1,000, 800 and 505 rightly decided.
NOBODY = tally((800, 200, 0, 0), (500, 495, 0, 5))


def judged(
    after: Tally, target: str = "dpd <= 0.05", within: bool = True, test: bool = True, known: float = 0.9
) -> JudgedRule:
    rule = BlindRule(torch.zeros(2, 2, dtype=torch.float64))
    fitted = FittedBlindRule(rule, 0.8, within, after)
    return JudgedRule.of(Target.parse(target), fitted, after if test else None, BEFORE, TASK, known)


def test_the_figures_are_those_of_the_counts() -> None:
    """Newcombe's one-sided 95 % bound of 0.42 - 0.40 is 0.0561; the accuracy falls from 0.825 to 0.795."""
    found = judged(AFTER)
    assert found.figures() == (
        "dpd <= 0.05: met in the sample, without the group at prediction. On test rows accuracy 82.5 -> 79.5 %, "
        "dpd 0.300 -> 0.020 (at most 0.056 with 95% confidence)."
    )
    assert (found.verdict, found.warning) == ("met in the sample", "")
    assert found.cost == pytest.approx(0.03)
    assert found.doubts() == ("The features reveal the group of 90 % of the held-out rows.",)
    assert found.held_out.level == 0.8 and found.held_out.chose and not found.after_scores.chose


def test_a_ratio_has_a_lower_bound() -> None:
    assert "impact_ratio 0.400 -> 0.952 (at least 0." in judged(AFTER, "impact_ratio >= 0.8").figures()


def test_a_verdict_with_confidence_takes_test_rows() -> None:
    assert judged(AFTER, "dpd <= 0.06").verdict == "met with confidence"
    without = judged(AFTER, "dpd <= 0.06", test=False)
    assert (without.verdict, without.part) == ("met in the sample", "validation")
    assert "On held-out rows" in without.figures()
    run = without.candidate_run(3, "run")
    assert (run.seed, run.run, run.test, run.untested) == (3, "run", None, without.after_scores)
    assert judged(AFTER).candidate_run(3, "run").untested is None


def test_what_speaks_against_a_rule_is_told() -> None:
    """A fall of 3 points is none, one of 17 is; nearly nobody is selected; nothing is within the target."""
    found = judged(NOBODY, within=False)
    assert found.warning.startswith("Accuracy falls by 17.2 points, from 82.5 to 65.2 %. The rule is degenerate: ")
    assert found.warning.endswith(
        "No rule is within dpd <= 0.05 on the held-out rows; this one's rates are nearest to each other."
    )
    assert found.doubts()[0] == found.warning and found.explain().splitlines()[1] == found.warning


def test_features_that_reveal_the_group_are_named_from_more_than_99_percent_on() -> None:
    assert len(judged(AFTER, known=0.99).notes) == 1
    assert "uses sex nearly as if it were given" in judged(AFTER, known=0.995).notes[1]

"""Thresholds are fitted to the gaps of compared groups; all other rows get the single threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ffalm.fairness import ScoreHistogram
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.repair import Repair, fit
from ffalm.targets.target import Kind, Target

TARGET = Target.parse("dpd <= 0.05")


def histogram(unknown: int) -> ScoreHistogram:
    """Two groups with different base rates, and some rows of unknown group that are all predicted favourable."""
    draws = torch.Generator().manual_seed(1)
    groups = torch.arange(4000) % 2
    labels = (torch.rand(4000, generator=draws) < 0.3 + 0.3 * groups).long()
    scores = torch.randn(4000, generator=draws) + 2 * labels - 1
    extra = torch.full((unknown,), 2)
    y = torch.cat([labels, torch.ones_like(extra)])
    scored = torch.cat([scores, torch.full((unknown,), 3.0)])
    counted = ScoreHistogram.of(scored, torch.zeros_like(y), y, torch.cat([groups, extra]), (2, 3), 1)
    return replace(counted, excluded=1)


@pytest.mark.parametrize("kind", ["groups", "randomised"])
def test_rows_of_unknown_group_do_not_move_group_thresholds(kind: Kind) -> None:
    whole = histogram(500)
    found, alone = fit(whole, TARGET, kind, level=0.8), fit(whole.compared(), TARGET, kind, level=0.8)
    assert found is not None and alone is not None
    assert found.edges[2] == ((found.single, 1.0),)
    assert found.tally(whole).dpd() <= 0.05
    assert found.tally(whole).compared().dpd() == found.tally(whole).dpd()
    assert fit(histogram(0), TARGET, kind, level=0.8).edges[:2] == alone.edges  # type: ignore[union-attr]


def test_a_single_threshold_is_fair_to_compared_groups_and_accurate_for_everybody() -> None:
    whole = histogram(500)
    found = fit(whole, TARGET, "single")
    assert found is not None
    assert found.tally(whole).metrics()["dpd"] <= 0.05
    assert len(found.edges) == 3
    assert Repair.from_plain(found.to_plain(("a", "b", "unknown"))) == found


def test_an_answer_reports_the_rates_of_groups_that_are_not_compared() -> None:
    run = FinishedRun("FedAvg", 0, None, ".", {"validation": histogram(500), "test": histogram(400)})
    answer = answer_of([run], TARGET, group_names=("a", "b", "unknown"))
    assert answer.test["dpd"] <= 0.06
    assert answer.best.test is not None
    assert [(one.group, one.compared, one.rows) for one in answer.best.test.groups] == [
        ("a", True, 2000),
        ("b", True, 2000),
        ("unknown", False, 400),
    ]

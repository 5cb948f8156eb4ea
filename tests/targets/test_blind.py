"""The blind rule: hand-worked, against brute force, for several groups and labels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.targets.blind import (
    GRID,
    BlindRule,
    HeldOutRows,
    directions,
    fit_blind,
    gains,
    known_question,
    most_questions,
)
from ffalm.targets.candidates import LEVELS
from ffalm.targets.judged_rule import best_offset
from ffalm.targets.target import Target


def hand_worked() -> HeldOutRows:
    """Four rows a group, whose group is certain: lambda is a threshold of eta at 1/2 + lambda and 1/2 - lambda."""
    eta = torch.tensor([0.9, 0.8, 0.6, 0.3, 0.7, 0.4, 0.35, 0.1], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0, 0, 1, 0, 1, 0])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    cells = torch.zeros(8, 2, 2, dtype=torch.float64)
    cells[torch.arange(8), :, groups] = torch.stack([1 - eta, eta], -1)
    return HeldOutRows(2 * eta - 1, cells, torch.zeros(8, dtype=torch.int64), labels, groups, (2, 2))


QUARTERS = torch.full((2, 2), 0.25)


def drawn(rows: int, groups: int, labels: int = 2, seed: int = 0) -> tuple[HeldOutRows, Tensor]:
    """Rows whose label and group are drawn from known probabilities that differ between groups, and P(cell)."""
    draws = np.random.default_rng(seed)
    own = draws.integers(0, groups, rows)
    x = draws.normal(size=(rows, groups)) + 1.2 * np.eye(groups)[own]
    among = np.exp(1.2 * x) / np.exp(1.2 * x).sum(1, keepdims=True)
    eta = 1 / (1 + np.exp(-x @ np.linspace(-1, 1, groups) - draws.normal(size=rows)))
    y = (draws.random(rows) < eta).astype(int)
    cells = torch.tensor(np.stack([(1 - eta)[:, None] * among, eta[:, None] * among], 1))
    fallback = np.zeros(rows, dtype=int)
    if labels == 3:
        y, fallback = np.where(y == 0, 2 * draws.integers(0, 2, rows), y), 2 * draws.integers(0, 2, rows)
    other, label, group = (torch.tensor(values) for values in (fallback, y, own))
    counts = np.stack([np.bincount(own[(y == 1) == side], minlength=groups) for side in (False, True)])
    gain, shape = torch.tensor(2 * eta - 1), (labels, groups)
    return HeldOutRows(gain, cells, other, label, group, shape), torch.tensor(counts / rows)


def fitted_accuracy(rows: HeldOutRows, shares: Tensor, target: str) -> float:
    """The accuracy of the fitted rule, which is within the target by its own predictions."""
    fitted = fit_blind(rows.count, rows.totals(), shares, Target.parse(target), confidence=0.5)
    predicted = torch.where(fitted.rule.favourable(rows.gain, rows.cells), 1, rows.fallback)
    correct = float((predicted == rows.labels).double().mean())
    assert fitted.within
    assert Target.parse(target).meets(fitted.tally.metrics())
    assert fitted.tally.accuracy() == pytest.approx(correct, abs=1e-12)
    return correct


@pytest.mark.parametrize(
    ("bound", "accuracy", "dpd", "low", "high"),
    [(1.0, 0.875, 0.25, 0.15, 0.3), (0.25, 0.875, 0.25, 0.15, 0.3), (0.2, 0.75, 0.0, 0.1, 0.15)],
)
def test_the_hand_worked_example(bound: float, accuracy: float, dpd: float, low: float, high: float) -> None:
    rows = hand_worked()
    target = Target.parse(f"dpd <= {bound}")
    fitted = fit_blind(rows.count, rows.totals(), QUARTERS, target, confidence=0.5)
    assert (fitted.tally.accuracy(), fitted.tally.dpd()) == (accuracy, dpd)
    assert low <= float(fitted.rule.weights[0, 0]) / 2 <= high
    assert float(fitted.rule.weights[0, 1]) == -float(fitted.rule.weights[0, 0])


def test_the_rule_of_no_multiplier_is_the_models_own_decision() -> None:
    rows = hand_worked()
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    own = BlindRule(nothing).favourable(rows.gain, rows.cells)
    assert torch.equal(own, rows.gain >= 0)
    assert torch.equal(
        rows.count(nothing, nothing, torch.zeros(1, dtype=torch.float64))[0, 0].sum(0), torch.tensor([3, 1])
    )


@pytest.mark.parametrize("target", ["dpd <= 0.05", "eod <= 0.03", "impact_ratio >= 0.9"])
@pytest.mark.parametrize("seed", range(3))
def test_two_groups_are_as_good_as_every_multiplier_tried_by_itself(target: str, seed: int) -> None:
    rows, shares = drawn(400, 2, seed=seed)
    aim = Target.parse(target)
    part = (rows.cells[:, 1] if "eod" in target else rows.cells.sum(1)).numpy()
    size = (shares[1] if "eod" in target else shares.sum(0)).numpy()
    label, group = rows.labels.numpy(), rows.groups.numpy()
    best = 0.0
    for multiplier in GRID.tolist():
        chosen = rows.gain.numpy() >= multiplier * (part[:, 0] / size[0] - part[:, 1] / size[1])
        counted = label == 1 if "eod" in target else np.ones(400, dtype=bool)
        rates = [chosen[counted & (group == one)].mean() for one in (0, 1)]
        gap = min(rates) / max(rates, default=1) if "ratio" in target and max(rates) else abs(rates[0] - rates[1])
        if aim.bounds[0].meets(gap):
            best = max(best, float((chosen == label).mean()))
    assert fitted_accuracy(rows, shares, target) >= best - 1e-12


def test_three_groups_come_near_the_best_of_a_lattice() -> None:
    rows, shares = drawn(900, 3)
    lines = directions(Target.parse("dpd <= 0.05"), shares)
    steps = torch.linspace(-1, 1, 81, dtype=torch.float64)
    best, free = 0.0, rows.gain >= 0
    for outer in steps:
        tried = rows.count(outer * lines[0], lines[1], steps)[:, 0].double()  # (step, label, group)
        rates = tried.sum(1) / rows.totals()[0].sum(0)
        right = tried[:, 1].sum(-1) + (rows.totals()[0, 0] - tried[:, 0]).sum(-1)
        within = rates.amax(-1) - rates.amin(-1) <= 0.05
        best = max([best, *(right[within] / 900).tolist()])
    assert fitted_accuracy(rows, shares, "dpd <= 0.05") >= best - 0.01
    assert best < float((free.long() == rows.labels).double().mean())


@pytest.mark.parametrize("target", ["equalized_odds <= 0.1", "accuracy_parity <= 0.05", "dpd <= 0.1, eod <= 0.1"])
def test_other_targets_are_met(target: str) -> None:
    assert fitted_accuracy(*drawn(600, 2), target) > 0.6


def test_three_labels_fall_back_to_the_likeliest_other() -> None:
    assert fitted_accuracy(*drawn(600, 2, labels=3), "dpd <= 0.05") > 0.4
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 2.0]])
    gain, fallback = gains(logits, 1)
    likely = logits.double().softmax(-1)
    assert torch.allclose(gain, torch.stack([likely[0, 1] - likely[0, 2], likely[1, 1] - likely[1, 0]]))
    assert fallback.tolist() == [2, 0]


def test_counts_add_up_over_sites() -> None:
    rows, shares = drawn(300, 3, labels=3)
    line = directions(Target.parse("dpd <= 0.1"), shares)[0]
    halves = [
        HeldOutRows(
            rows.gain[part], rows.cells[part], rows.fallback[part], rows.labels[part], rows.groups[part], rows.shape
        )
        for part in (slice(0, 100), slice(100, None))
    ]
    whole = rows.count(0.1 * line, line, GRID)
    assert torch.equal(halves[0].count(0.1 * line, line, GRID) + halves[1].count(0.1 * line, line, GRID), whole)
    for step, counts in itertools.islice(zip(GRID, whole, strict=True), 0, None, 32):
        chosen = BlindRule((0.1 + step) * line).favourable(rows.gain, rows.cells)
        assert int(counts.sum()) == int(chosen.sum())


def test_an_offset_moves_the_threshold_of_the_score() -> None:
    logits = torch.tensor([[0.0, 0.5], [0.0, 1.5]])
    assert (gains(logits, 1, 1.0)[0] >= 0).tolist() == [False, True]
    rule = BlindRule(torch.zeros(2, 2, dtype=torch.float64), 1.0)
    assert rule.predict(logits, torch.full((2, 2, 2), 0.25), 1).tolist() == [0, 1]


def test_confidence_leaves_a_margin_and_is_lowered_where_rows_are_few() -> None:
    rows, shares = drawn(4000, 2)
    aim = Target.parse("dpd <= 0.05")
    sure = fit_blind(rows.count, rows.totals(), shares, aim, confidence=0.9)
    assert sure.within
    assert sure.tally.interval("dpd", 0.8)[1] <= 0.05
    few, shares = drawn(60, 2)
    assert fit_blind(few.count, few.totals(), shares, aim).level < 0.8


def test_a_rule_out_of_reach_is_told_and_comes_nearest() -> None:
    rows, shares = drawn(40, 3)
    fitted = fit_blind(rows.count, rows.totals(), shares, Target.parse("dpd <= 0.0001"), confidence=0.99)
    assert not fitted.within


def test_a_rule_survives_a_file() -> None:
    rule = BlindRule(torch.tensor([[0.5, -1.0], [0.25, 2.0]], dtype=torch.float64), -0.5)
    again = BlindRule.from_plain(rule.to_plain(("a", "b")))
    assert torch.equal(again.weights, rule.weights)
    assert again.offset == rule.offset
    with pytest.raises(UserError, match="fit it again"):
        BlindRule.from_plain({"kind": "blind"})


def test_a_group_that_is_not_compared_counts_for_accuracy_alone() -> None:
    rows, shares = drawn(1500, 3)
    target = Target.parse("dpd <= 0.03")
    lines = directions(target, shares, excluded=1)
    assert len(lines) == 1 and bool((lines[0][:, 2] == 0).all())
    found = fit_blind(rows.count, rows.totals(), shares, target, confidence=0.5, excluded=1)
    whole = fit_blind(rows.count, rows.totals(), shares, target, confidence=0.5)
    assert found.within and found.tally.excluded == 1 and found.tally.dpd() <= 0.03
    assert bool((found.rule.weights[:, 2] == 0).all())
    assert found.tally.accuracy() > whole.tally.accuracy()
    predicted = torch.where(found.rule.favourable(rows.gain, rows.cells), 1, rows.fallback)
    assert found.tally.accuracy() == pytest.approx(float((predicted == rows.labels).double().mean()))


@pytest.mark.parametrize(
    ("target", "groups"),
    [("dpd <= 0.02", 2), ("dpd <= 0.02", 3), ("equalized_odds <= 0.05, accuracy_parity <= 0.05", 3)],
)
def test_every_question_of_a_search_is_known_and_there_are_no_more_than_told(target: str, groups: int) -> None:
    rows, shares = drawn(400, groups)
    aim, asked = Target.parse(target), 0

    def query(weights: Tensor, line: Tensor, steps: Tensor) -> Tensor:
        nonlocal asked
        asked += 1
        assert known_question(weights, line, steps, aim, shares, 0)
        assert not known_question(weights, line * 1.01 + 0.01, steps, aim, shares, 0)
        assert not known_question(weights, line, steps + 0.001, aim, shares, 0)
        return rows.count(weights, line, steps)

    fit_blind(query, rows.totals(), shares, aim, confidence=0.5)
    assert asked <= most_questions(aim, shares) / len(LEVELS)


@pytest.mark.parametrize(
    ("metric", "lines"),
    [
        ("dpd <= 0.1", [[[4, -4 / 3], [4, -4 / 3]]]),  # 1 / P(s) in both rows
        ("impact_ratio >= 0.8", [[[4, -4 / 3], [4, -4 / 3]]]),
        ("eod <= 0.1", [[[0, 0], [20, -4]]]),  # 1 / P(s, favourable)
        ("equalized_odds <= 0.1", [[[0, 0], [20, -4]], [[5, -2], [0, 0]]]),
        ("accuracy_parity <= 0.1", [[[-4, 4 / 3], [4, -4 / 3]]]),
        ("dpd <= 0.1, impact_ratio >= 0.8", [[[4, -4 / 3], [4, -4 / 3]]]),  # one line for both
    ],
)
def test_the_lines_of_each_metric_are_those_of_its_formula(metric: str, lines: list[list[list[float]]]) -> None:
    """P(not favourable, s) is 0.2 and 0.5, P(favourable, s) 0.05 and 0.25."""
    shares = torch.tensor([[0.2, 0.5], [0.05, 0.25]], dtype=torch.float64)
    found = directions(Target.parse(metric), shares)
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        torch.testing.assert_close(line, torch.tensor(expected, dtype=torch.float64))
    without = torch.cat([shares, torch.zeros(2, 1, dtype=torch.float64)], 1)
    assert len(directions(Target.parse(metric), without)) == len(lines), "a group that nobody is in has no line"


def test_a_row_at_the_threshold_is_favourable_whatever_the_multiplier_if_it_has_no_part_in_the_line() -> None:
    """Gains 0 and -0.1, and no chance of any cell, so that no step moves them."""
    none = torch.zeros(2, 2, dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.int64)
    gain, cells = torch.tensor([0.0, -0.1], dtype=torch.float64), torch.zeros(2, 2, 2, dtype=torch.float64)
    rows = HeldOutRows(gain, cells, zeros, zeros, zeros, (2, 2))
    steps = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert rows.count(none, none + 1, steps).sum((1, 2, 3)).tolist() == [1, 1, 1]


def test_with_rows_enough_the_rule_has_the_default_margin() -> None:
    rows, shares = drawn(6000, 2)
    found = fit_blind(rows.count, rows.totals(), shares, Target.parse("dpd <= 0.05"))
    assert (found.level, found.within) == (LEVELS[0], True)
    assert found.tally.interval("dpd", 2 * LEVELS[0] - 1)[1] <= 0.05


def test_questions_of_another_shape_or_from_weights_that_no_search_reaches_are_not_known() -> None:
    shares, aim = torch.tensor([[0.2, 0.5], [0.05, 0.25]], dtype=torch.float64), Target.parse("dpd <= 0.1")
    (line,) = directions(aim, shares)
    none, single = torch.zeros_like(shares), torch.zeros(1, dtype=torch.float64)

    def known(weights: Tensor, line: Tensor, steps: Tensor, target: Target = aim) -> bool:
        return known_question(weights, line, steps, target, shares, 0)

    assert known(none, line, GRID) and known(line, none, single)
    assert not known(line, line, GRID), "with one line a search starts from 0"
    assert not known(none, line[:, :1], GRID) and not known(none[:1], line, GRID)
    assert not known(none, line, GRID.unsqueeze(0)) and not known(none, none, GRID)
    assert not known(torch.full_like(shares, torch.nan), none, single)
    far = 6 * 4.0  # sweeps, each by no more than the last step of the grid
    two = Target.parse("equalized_odds <= 0.1")
    for sign in (1, -1):
        reached, beyond = (sign * share * far * directions(two, shares)[0] for share in (1.0, 1.01))
        assert known(reached, none, single, two) and not known(beyond, none, single, two)
    assert not known(shares, none, single, two), "no sum of its lines"


def counted(rows: list[tuple[float, int]]) -> ScoreHistogram:
    """A histogram of (score, label), all of one group beside one without rows."""
    scores, labels = torch.tensor([score for score, _ in rows]), torch.tensor([label for _, label in rows])
    zeros = torch.zeros_like(labels)
    return ScoreHistogram.of(scores, zeros, labels, zeros, (2, 2), 1)


def test_the_offset_is_the_most_accurate_threshold_and_0_if_that_is_infinite() -> None:
    aim = Target.parse("dpd <= 0.1")
    split = [(2.0 + 0.01 * place, 1) for place in range(300)] + [(1.0 - 0.01 * place, 0) for place in range(300)]
    assert 1.0 < best_offset(counted(split), aim) <= 2.0
    assert best_offset(counted([(-99.0, 1)] * 300), aim) == 0.0

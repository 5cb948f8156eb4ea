"""Descent directions for several objectives: hand-worked numbers, their properties, and a published synthetic check."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ffalm.algorithms.pareto import constrained_direction, pareto_direction, smooth_max_weights


def products(*vectors: Tensor) -> Tensor:
    together = torch.stack(vectors)
    return together @ together.T


def test_smooth_max_weights_by_hand() -> None:
    values = torch.tensor([0.4, 0.6], dtype=torch.float64)
    assert smooth_max_weights(values, 0.5).tolist() == pytest.approx([0.401312, 0.598688], abs=1e-6)
    assert smooth_max_weights(values, 1e-4).tolist() == pytest.approx([0.0, 1.0], abs=1e-12)


def test_a_violated_constraint_whose_gradient_opposes_the_loss_gives_an_orthogonal_direction() -> None:
    loss, gap = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    alpha = constrained_direction(products(loss, gap), met=False)
    assert alpha == (0.5, 0.5)
    assert (alpha[0] * loss + alpha[1] * gap).tolist() == [0.0, 0.5]


@pytest.mark.parametrize("met", [True, False])
def test_the_closed_form_is_the_best_of_all_convex_combinations(met: bool) -> None:
    draws = torch.Generator().manual_seed(0)
    first = torch.linspace(0, 1, 2001, dtype=torch.float64)
    grid = torch.stack([first, 1 - first], -1)
    for _ in range(200):
        vectors = torch.randn(2, 3, generator=draws, dtype=torch.float64)
        gram = vectors @ vectors.T
        alpha = torch.tensor(constrained_direction(gram, met), dtype=torch.float64)
        assert alpha.sum() == 1
        assert bool((alpha >= 0).all())
        by_loss, by_gap = (grid @ gram).unbind(-1)
        if met:
            assert alpha @ gram[:, 0] >= by_loss.max() - 1e-12
            assert gram[0, 0] < gram[0, 1] or alpha.tolist() == [1.0, 0.0]
        else:
            assert alpha @ gram[:, 0] >= -1e-12
            assert alpha @ gram[:, 1] >= by_gap[by_loss >= 0].max() - 1e-12


@pytest.mark.parametrize("count", [2, 3, 6])
def test_along_a_pareto_direction_no_objective_rises(count: int) -> None:
    draws = torch.Generator().manual_seed(count)
    for _ in range(4):
        vectors = torch.randn(count, 8, generator=draws, dtype=torch.float64)
        gram = vectors @ vectors.T
        goal = gram[:, :-1].mean(-1)
        alpha = pareto_direction(gram, goal)
        assert float(alpha.sum()) == pytest.approx(1, abs=1e-9)
        assert bool((alpha >= 0).all())
        assert bool((gram @ alpha >= -1e-6 * gram.abs().max()).all())
        shortest = minimum_norm(gram)
        assert alpha @ goal >= shortest @ goal - 1e-3 * gram.abs().max()


def minimum_norm(gram: Tensor) -> Tensor:
    """The shortest vector of the convex hull, by Frank-Wolfe: a point that every constraint allows."""
    alpha = torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
    for step in range(1000):
        nearest = torch.zeros_like(alpha)
        nearest[(gram @ alpha).argmin()] = 1
        alpha = alpha + 2 / (step + 2) * (nearest - alpha)
    return alpha


def test_objectives_that_agree_follow_the_goal_alone() -> None:
    gram = products(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])).double()
    assert pareto_direction(gram, gram[:, :1].mean(-1)).tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_gradients_that_vanish_or_are_no_numbers_give_equal_weights(value: float) -> None:
    gram = torch.full((3, 3), value, dtype=torch.float64)
    assert pareto_direction(gram, gram[:, 0]).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_pareto_directions_do_not_depend_on_the_unit_of_the_gradients(scale: float) -> None:
    draws = torch.Generator().manual_seed(1)
    vectors = torch.randn(4, 6, generator=draws, dtype=torch.float64)
    gram = vectors @ vectors.T
    alpha = pareto_direction(gram, gram[:, :-1].mean(-1))
    assert pareto_direction(scale * gram, scale * gram[:, :-1].mean(-1)).tolist() == pytest.approx(alpha.tolist())


@pytest.mark.parametrize("broken", ["products", "goal"])
def test_a_single_product_that_is_no_number_gives_equal_weights(broken: str) -> None:
    gram, goal = torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    (gram if broken == "products" else goal)[0] = math.nan
    assert pareto_direction(gram, goal).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("loss", "gap", "met", "alpha"),
    [
        ((1.0, 0.0), (1.0, 1.0), True, (1.0, 0.0)),  # |G_l|^2 = <G_l, G_g>: the loss alone
        ((1.0, 1.0), (1.0, 0.0), False, (0.0, 1.0)),  # |G_g|^2 = <G_l, G_g>: as little of the loss as is allowed
        ((0.0, 0.0), (1.0, 0.0), False, (0.0, 1.0)),  # no gradient of the loss: nothing forbids the gap's
    ],
)
def test_directions_at_the_ends_of_the_closed_form(
    loss: tuple[float, ...], gap: tuple[float, ...], met: bool, alpha: tuple[float, float]
) -> None:
    assert constrained_direction(products(torch.tensor(loss), torch.tensor(gap)), met) == alpha


PUBLISHED = {
    "within the budget": {0.2: (0.9026, 0.2012), 0.4: (0.8066, 0.4030), 0.6: (0.6589, 0.6044), 0.8: (0.3900, 0.8140)},
    "beyond the budget": {0.2: (0.9025, 0.2015), 0.4: (0.8075, 0.4014), 0.6: (0.6515, 0.6122), 0.8: (0.4119, 0.8014)},
}
FRONT = {0.2: 0.903, 0.4: 0.807, 0.6: 0.652, 0.8: 0.412}  # f_1 as the authors' plot marks it
STARTS = {"within the budget": torch.full((20,), -0.2), "beyond the budget": torch.tensor([0.3, -0.3]).repeat(10)}


@pytest.mark.parametrize("epsilon", [0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("start", PUBLISHED)
def test_the_published_synthetic_problem_ends_where_it_was_published(start: str, epsilon: float) -> None:
    """x in R^20, f = 1 - exp(-|x -/+ 1/sqrt(20)|^2), f_2 in the place of the disparity, 700 steps."""
    x = STARTS[start].double()
    centre = torch.full_like(x, 1 / math.sqrt(20))
    for _ in range(700):
        away = torch.stack([x - centre, x + centre])
        near = (-away.square().sum(-1)).exp()
        gradients, values = 2 * away * near.unsqueeze(-1), 1 - near
        alpha = constrained_direction(gradients @ gradients.T, bool(values[1] <= epsilon))
        direction = torch.tensor(alpha, dtype=torch.float64) @ gradients
        x = x - 10 * max(float(values[1]), 0.1) * 0.005 * direction
    found = (1 - (-torch.stack([x - centre, x + centre]).square().sum(-1)).exp()).tolist()
    assert found == pytest.approx(PUBLISHED[start][epsilon], abs=1e-3)
    assert found[0] == pytest.approx(FRONT[epsilon], abs=0.03)

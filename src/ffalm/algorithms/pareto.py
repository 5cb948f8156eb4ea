"""Descent directions for several objectives at once, from the inner products of their gradients.

A direction is a convex combination d = sum_j alpha_j v_j of gradients v_j. Along -d no objective rises to first order
whose gradient has <d, v_j> >= 0. All of this depends on the gradients through their inner products alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def smooth_max_weights(values: Tensor, delta: float) -> Tensor:
    """softmax((values - max) / delta): the gradient of a smooth maximum, which is the maximum as delta -> 0."""
    return ((values - values.max()) / delta).softmax(-1)


def constrained_direction(products: Tensor, met: bool) -> tuple[float, float]:
    """(alpha_1, alpha_2) of the descent direction of a loss under a constraint, from the products of their gradients.

    With A = |G_l|^2, s = <G_l, G_g> and B = |G_g|^2: if the constraint is met, alpha maximises <d, G_l>; if it is
    violated, <d, G_g> subject to <d, G_l> >= 0. Over the simplex both have a closed form, since each is linear in
    alpha_1; where gradients oppose each other (s < 0), the second is orthogonal to G_l.
    """
    (a, s), (_, b) = products.tolist()
    if met:
        first = float(a >= s)
    else:
        lowest = -s / (a - s) if s < 0 else 0.0
        first = lowest if b >= s else 1.0
    return first, 1 - first


def pareto_direction(products: Tensor, goal: Tensor) -> Tensor:
    """alpha over the simplex that maximises <d, goal> subject to <d, v_j> >= 0 for every j, by linear programming.

    `products` are <v_i, v_j>, and `goal` the products of each v_j with the vector to follow. There is always such an
    alpha: the shortest vector of the convex hull is one.
    """
    from scipy.optimize import linprog

    count = len(goal)
    equal = torch.full((count,), 1 / count, dtype=torch.float64)
    scale = float(products.abs().max())
    if not (bool(products.isfinite().all()) and bool(goal.isfinite().all())) or scale == 0:
        return equal
    found = linprog(
        -(goal / scale).numpy(),
        A_ub=-(products / scale).numpy(),
        b_ub=np.zeros(count),
        A_eq=np.ones((1, count)),
        b_eq=np.ones(1),
        bounds=(0, None),
        method="highs",
    )
    return torch.from_numpy(found.x).double() if found.success else equal

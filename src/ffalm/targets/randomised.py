"""Randomised group thresholds: each group draws one of a few edges for each row, by a linear programme.

One threshold per group may leave no choice within equalised odds; mixtures of thresholds reach every point of a group's
ROC hull. With w[g, e] = P(edge e | group g) all rates are linear in w:

    maximise  sum w[g, e] value[g, e]
    subject to  l_c <= sum_e w[g, e] rate_c[g, e] <= l_c + epsilon_c,    sum_e w[g, e] = 1

The window of a ratio reaches from its bound times x to x. Where x is 0 nobody is selected and there is no ratio, so x
is at least the smallest rate above 0 that a threshold gives a group.
"""

from __future__ import annotations

import numpy as np

from ffalm.targets.rate_table import Array, RateConstraint, RateTable
from ffalm.targets.target import Bound

_NEGLIGIBLE = 1e-9


def mixed_thresholds(table: RateTable) -> Array | None:
    """P(edge | group) of shape (group, edge); None if nothing is within the bounds."""
    from scipy.optimize import linprog

    groups, edges = table.value.shape
    constraints = table.constraints
    size = groups * edges + len(constraints)  # the last ones are the lower ends l_c, or the largest rate of a ratio
    rows: list[Array] = []
    limits: list[float] = []
    for number, constraint in enumerate(constraints):
        for group in map(int, np.flatnonzero(constraint.trials > 0)):
            below, above, slack = _window(constraint.bound)
            for sign, share, limit in ((1.0, above, slack), (-1.0, below, 0.0)):
                row = np.zeros(size)
                row[group * edges : (group + 1) * edges] = sign * constraint.rates[group]
                row[groups * edges + number] = -sign * share
                rows.append(row)
                limits.append(limit)
    each = np.zeros((groups, size))
    for group in range(groups):
        each[group, group * edges : (group + 1) * edges] = 1
    scale = max(1.0, float(np.abs(table.value).max()))
    found = linprog(
        np.concatenate([-table.value.ravel() / scale, np.zeros(len(constraints))]),
        A_ub=np.array(rows) if rows else None,
        b_ub=np.array(limits) if rows else None,
        A_eq=each,
        b_eq=np.ones(groups),
        bounds=[(0, 1)] * (groups * edges) + [(_least(one), 1) for one in constraints],
        method="highs",
    )
    if found.x is None:
        return None
    weights = found.x[: groups * edges].reshape(groups, edges)
    weights = np.where(weights < _NEGLIGIBLE, 0.0, weights)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _window(bound: Bound) -> tuple[float, float, float]:
    """(a, b, s) such that a x <= rate <= b x + s for the window's own variable x."""
    return (1.0, 1.0, bound.value) if bound.at_most else (bound.value, 1.0, 0.0)


def _least(constraint: RateConstraint) -> float:
    """The least value of a window's own variable."""
    rates = constraint.rates[constraint.hits > 0]
    return 0.0 if constraint.bound.at_most else float(rates.min(initial=1.0))

"""The search over pairs of groups, against every combination."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from ffalm.targets.compatible_edges import CompatibleEdges

Values = list[NDArray[np.float64]]
Pairs = dict[tuple[int, int], NDArray[np.bool_]]


def drawn(seed: int, share: float) -> tuple[Values, Pairs]:
    """Groups with different numbers of edges, of whose pairs so many go together; some values are not allowed."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(1, 8, draws.integers(2, 5))
    values = [np.where(draws.random(size) < 0.1, -np.inf, draws.normal(size=size)) for size in sizes]
    pairs = itertools.combinations(range(len(sizes)), 2)
    return values, {(one, other): draws.random((sizes[one], sizes[other])) < share for one, other in pairs}


def allowed(edges: tuple[int, ...], values: Values, together: Pairs) -> bool:
    """Whether every edge may be chosen, and each two go together."""
    fit = all(flags[edges[one], edges[other]] for (one, other), flags in together.items())
    return fit and bool(np.isfinite([own[edge] for own, edge in zip(values, edges, strict=True)]).all())


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_it_finds_the_best_of_all_combinations_that_go_together(share: float) -> None:
    for seed in range(60):
        values, together = drawn(seed, share)
        sums = {
            edges: float(sum(own[edge] for own, edge in zip(values, edges, strict=True)))
            for edges in itertools.product(*(range(len(own)) for own in values))
            if allowed(edges, values, together)
        }
        search = CompatibleEdges(values, together)
        found = search.search()
        assert search.complete
        assert (None if found is None else sums[tuple(found)]) == pytest.approx(max(sums.values(), default=None))


def test_a_search_that_is_cut_short_says_so_and_what_it_found_goes_together() -> None:
    values, together = [np.arange(40.0)] * 3, dict.fromkeys([(0, 1), (0, 2)], np.ones((40, 40), dtype=bool))
    together[1, 2] = np.arange(40)[:, None] + np.arange(40) < 40
    search = CompatibleEdges(values, together, steps=4)
    found = search.search()
    assert not search.complete
    assert found is None or allowed(tuple(found), values, together)
    whole = CompatibleEdges(values, together)
    assert whole.search() is not None and whole.complete and whole.best == 39 + 39

"""Duals that charts name by group."""

from __future__ import annotations

import torch

from ffalm.algorithms import algorithms
from ffalm.data.types import Task


def test_an_algorithm_whose_duals_are_named_by_group_has_one_a_group_or_one_less() -> None:
    task = Task("loans", group_names=("a", "b", "c"))
    counts = torch.full((4, 2, 3), 10)  # client, label, group
    named = {name: cls for name, cls in algorithms().items() if cls.duals_by_group}
    assert {"ffalm", "fpfl", "lagrangian"} <= set(named)
    for name, cls in named.items():
        state = cls().start(task, counts)
        widths = {value.numel() for key, value in state.items() if "dual" in key}
        assert widths <= {2, 3} and widths, name

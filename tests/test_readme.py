"""What the README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import ffalm
from ffalm.algorithms.registry import _REGISTERED
from ffalm.config import parse

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)

    def part() -> tuple[np.ndarray, ...]:
        return draws.normal(size=(30, 3)), draws.integers(0, 2, 30), draws.integers(0, 2, 30)

    (x1, y1, g1), (x2, y2, g2), (x, y, g) = part(), part(), part()
    names: dict[str, Any] = {"x1": x1, "y1": y1, "g1": g1, "x2": x2, "y2": y2, "g2": g2, "x": x, "y": y, "g": g}
    names |= {"MyModule": lambda: nn.Linear(3, 2), "y_true": y1, "y_pred": y2, "group": g1}
    branches = {"branch": draws.choice(["north", "south"], 200), "income": draws.normal(size=200)}
    people = {"sex": draws.choice(["f", "m"], 200), "paid": draws.choice(["yes", "no"], 200)}
    pd.DataFrame(branches | people).to_csv(tmp_path / "loans.csv", index=False)
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[0].replace("rounds=70", "rounds=2"), names)
    assert names["loans"].client_names == ("north", "south")
    results = names["results"]
    assert isinstance(results, list)
    assert [result.seed for result in results] == [0, 1, 2]


def test_the_example_of_an_own_algorithm_is_a_working_plugin(tmp_path: Path) -> None:
    plugin = tmp_path / "worst_group.py"
    plugin.write_text(BLOCKS[1])
    try:
        config = parse({"plugins": [str(plugin)], "algorithms": {"worst-group": {}}})
        federation = ffalm.load("census", rows=600, clients=3, alpha=5.0)
        result = ffalm.simulate(config.entries[0].algorithm, federation, rounds=2)
        assert 0.5 < result.test["accuracy"] <= 1
    finally:
        _REGISTERED.pop("worst-group", None)

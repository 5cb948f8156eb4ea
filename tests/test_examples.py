"""The scripts of examples/ run, here with few rounds and rows."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ffalm.algorithms.registry import _REGISTERED

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_every_example_is_tested_and_listed() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == {"study.py", "own_table.py", "own_algorithm.py"}
    assert all(f"({name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8") for name in scripts)


def test_the_study_prints_one_line_per_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    means = example("study.py")["main"](rounds=1, seeds=2, rows=1000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(name in "\n".join(lines) for name in means)
    assert all(40 < found["accuracy"] <= 100 for found in means.values())


def test_a_table_with_three_labels_and_groups_is_trained_on() -> None:
    result = example("own_table.py")["main"](rounds=3)
    assert result.tally is not None and result.tally.confusion.shape == (3, 3, 3)
    assert result.favourable == 2
    assert result.test["dpd"] == result.tally.dpd(favourable=2)


def test_an_own_algorithm_is_compared_with_fedavg() -> None:
    try:
        found = example("own_algorithm.py")["main"](rounds=1, rows=1000)
    finally:
        _REGISTERED.pop("worst-group", None)
    assert found.keys() == {"fedavg", "worst-group"}

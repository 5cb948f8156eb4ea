"""A run folder with a damaged file gives the same numbers or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzzing import folders


@pytest.mark.parametrize(("cases", "seed"), [(6, 17), pytest.param(2000, 18, marks=pytest.mark.slow)])
def test_a_damaged_file_never_changes_a_number(tmp_path: Path, cases: int, seed: int) -> None:
    expected = folders.prepare(tmp_path)
    for number in range(cases):
        outcome, case = folders.run(number, seed, tmp_path, expected)
        assert outcome.fine, f"case {number} of seed {seed}, {case}: {outcome}"


@pytest.mark.slow
def test_a_damaged_file_never_changes_a_prediction(tmp_path: Path) -> None:
    expected = folders.prepare_models(tmp_path)
    for number in range(2000):
        outcome, case = folders.run_model(number, 18, tmp_path, expected)
        assert outcome.fine, f"case {number}, {case}: {outcome}"

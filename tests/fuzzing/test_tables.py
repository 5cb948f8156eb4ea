"""Whatever a data file or frame holds, it is loaded or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzzing import tables

pytestmark = pytest.mark.filterwarnings("ignore")  # of pyarrow, about the odd frames that are made here


@pytest.mark.parametrize(("cases", "seed"), [(60, 17), pytest.param(10_000, 18, marks=pytest.mark.slow)])
def test_broken_tables_are_loaded_or_refused(tmp_path: Path, cases: int, seed: int) -> None:
    for number in range(cases):
        outcome, case = tables.run(number, seed, tmp_path)
        assert outcome.fine, f"case {number} of seed {seed}, {case}: {outcome}"

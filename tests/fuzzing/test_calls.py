"""Whatever is given in Python is taken, or refused with a `UserError`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzzing import calls, commands

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about the odd tensors that are made here


@pytest.mark.parametrize(("cases", "seed"), [(60, 17), pytest.param(20_000, 18, marks=pytest.mark.slow)])
def test_random_arguments_are_taken_or_refused(tmp_path: Path, cases: int, seed: int) -> None:
    commands.prepare_files(tmp_path)
    federation = calls.small_federation()
    for number in range(cases):
        outcome, case = calls.run(number, seed, tmp_path, federation)
        assert outcome.fine, f"case {number} of seed {seed}, {case}: {outcome}"

from __future__ import annotations

from dataclasses import replace

import pytest

from ffalm.theory.constants import PAPER


def test_the_papers_step_is_lawful_from_round_5472_on() -> None:
    assert PAPER.largest_step == pytest.approx(1 / 342)
    assert PAPER.first_lawful_round == 5472
    assert PAPER.model_step(5472) <= PAPER.largest_step * (1 + 1e-12)
    assert PAPER.model_step(5471) > PAPER.largest_step


def test_the_dual_step_is_long_enough_from_round_72_on() -> None:
    needed = [2 * PAPER.pl / PAPER.concavity * PAPER.model_step(number) for number in (71, 72)]
    assert PAPER.dual_step(71) < needed[0]
    assert PAPER.dual_step(72) >= needed[1] * (1 - 1e-12)
    assert PAPER.first_fast_dual_round == 72


def test_the_dual_step_decays_from_round_611_on() -> None:
    assert PAPER.first_decaying_round == 611
    assert PAPER.dual_step(610) == 1 / 18
    assert PAPER.dual_step(611) < 1 / 18


def test_a_bound_that_is_a_whole_number_counts_itself() -> None:
    assert replace(PAPER, smoothness=2.0, pl=1.0).first_lawful_round == 12  # 2 (2 + 4)

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.contract import batch_of

from ffalm.algorithms import FFALM
from ffalm.theory import errata as theory
from ffalm.theory.constants import PAPER
from ffalm.theory.trajectories import Setting, run


def test_the_page_in_the_documents_has_every_slip_with_its_numbers() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    for slip in theory.errata():
        assert f"{slip.where}**" in text
        assert f"Instead: {slip.correction}\n" in text
        assert f"Shown by: {slip.shown}\n" in text


def test_the_dual_at_the_average_model_misses_what_the_clients_measure() -> None:
    assert theory.dual_ascents() == (0.5, 0.0)


def test_the_later_dual_would_turn_a_rows_weight_around() -> None:
    assert theory.moved_dual() == pytest.approx(-0.3)
    assert theory.row_weights(0.7) == pytest.approx((0.10, 0.40))
    assert theory.row_weights(theory.moved_dual()) == pytest.approx((-0.40, 0.90))


def test_the_weights_are_those_that_ffalm_itself_gives() -> None:
    losses, groups = torch.tensor([0.2, 0.4, 0.6, 1.0]), torch.tensor([0, 0, 1, 1])
    state = {"dual": torch.tensor(0.7), "penalty": torch.tensor(2.0)}
    weights = FFALM().slopes(batch_of(losses, groups), state)
    assert weights.tolist() == pytest.approx([0.10, 0.10, 0.40, 0.40])


def test_the_lagrangian_has_no_largest_value_without_a_decay_of_the_dual() -> None:
    assert [theory.largest_lagrangian(size) for size in (1.0, 10.0, 100.0)] == pytest.approx([1.3, 5.8, 50.8])
    closed = 0.55 + (2.0 / 2 + 1 / 2) * 0.25
    assert [theory.largest_lagrangian(size, decay=1.0) for size in (1.0, 100.0)] == pytest.approx([closed] * 2)


def test_the_printed_drift_lemma_fails_and_the_corrected_one_holds() -> None:
    measured, printed = theory.drift(5, 1e-4, 2.0)
    assert measured > 1000 * printed
    by_the_paper = theory.drift(5, 1e-4, 2.0, PAPER)[1]
    assert by_the_paper == pytest.approx((1e-4 * 18 * 11) ** 2 * 15)  # (eta L G)^2 E (E + 1) / 2
    assert measured > 1000 * by_the_paper
    for steps, size, model in itertools.product((1, 2, 5, 10), (1e-4, 1e-3, 1e-2), np.linspace(-2.5, 2.5, 7)):
        left, right = theory.corrected_drift(steps, size, float(model))
        assert left <= right + 1e-12


def test_one_local_step_has_no_drift() -> None:
    assert theory.corrected_drift(1, 0.01, 1.3) == (0.0, 0.0)


def test_the_common_dual_breaks_the_pl_lemmas_third_inequality() -> None:
    left, right = theory.common_dual()
    assert left == pytest.approx(0.0, abs=1e-12)
    assert right == pytest.approx(-(1 / 6 + 1 / 14) / 2)
    assert left > right


def test_the_common_dual_breaks_the_dual_lemmas_fifth_inequality() -> None:
    left, right = theory.own_maximiser()
    assert left > right == pytest.approx(-64 / 36)


def test_clipped_slopes_leave_whole_stretches_at_rest() -> None:
    ends = [end for stretch in theory.clipped_rest() for end in stretch]
    assert ends == pytest.approx([-1.443, -0.473, 0.504, 1.418], abs=1e-3)
    inside = Setting(1, clip=1.0, start=-1.0, cap=0.01)
    assert run(inside, 200).last == pytest.approx(-1.0)

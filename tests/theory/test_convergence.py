from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.theory.pages import table_lines

from ffalm.theory import convergence, measured_rate
from ffalm.theory.bound import bound, first_round, floor
from ffalm.theory.convergence import Curve, Slope, descend, marked_rounds, model_step, slope
from ffalm.theory.problem import CLIENTS, CONCAVITY, DIMENSIONS, Problem, hill_slope


@pytest.fixture(scope="module")
def curves() -> list[Curve]:
    """A short measurement."""
    return measured_rate.curves(rounds=4000, seeds=48)


def test_the_gap_falls_faster_than_the_theorem_promises(curves: list[Curve]) -> None:
    for curve in curves:
        found = slope(curve.rounds, curve.gaps)
        assert found.high < measured_rate.PROMISED
        assert found.value == pytest.approx(-1.0, abs=0.15)


def test_the_duals_squared_error_falls_as_the_proof_says(curves: list[Curve]) -> None:
    for curve in curves:
        assert slope(curve.rounds, curve.dual_errors).value == pytest.approx(-2 / 3, abs=0.15)


def test_no_run_shows_the_part_of_the_bound_that_does_not_vanish(curves: list[Curve]) -> None:
    for curve in curves[1:]:
        assert curve.gaps[:, -1].mean() < 1e-3 < floor(curve.constants)


def test_the_corrected_bound_holds_even_without_that_part_where_the_primal_risk_has_the_pl_property(
    curves: list[Curve],
) -> None:
    for curve in curves[:3]:
        first = next(at for at, number in enumerate(curve.rounds) if number >= first_round(curve.constants))
        start = float(curve.potentials[:, first].mean())
        limit = bound(curve.constants, curve.rounds[-1], start) - floor(curve.constants)
        assert curve.potentials[:, -1].mean() < limit


def test_heterogeneity_slows_descent_but_not_its_power(curves: list[Curve]) -> None:
    last = [float(curve.gaps[:, -1].mean()) for curve in curves[:3]]
    assert last[0] < last[1] < last[2] < 2 * last[0]


def test_the_model_step_never_exceeds_the_proofs_limit() -> None:
    constants = Problem(1.0).constants()
    steps = [model_step(constants, number) for number in (1, 10, constants.first_lawful_round, 10_000)]
    assert steps[0] == steps[1] == constants.largest_step
    assert steps[3] == constants.model_step(10_000) < constants.largest_step


@pytest.mark.parametrize("local_steps", [1, 3])
def test_one_round_of_all_levels_together_is_one_round_of_each_client_by_hand(local_steps: int) -> None:
    levels, seeds = (0.0, 1.0), 2
    noise = next(convergence._noise(1, seeds, local_steps))
    found = descend(levels, 1, seeds, local_steps)
    for level, curve in zip(levels, found, strict=True):
        problem, constants = Problem(level), curve.constants
        step = model_step(constants, 1) / local_steps
        for seed in range(seeds):
            models, ascents = [], []
            for client in range(CLIENTS):
                w = np.array(convergence._START)
                for k in range(local_steps):
                    drawn = noise[k, :DIMENSIONS, client, 0, seed]
                    w = np.clip(w - step * (hill_slope(w - problem.centres[client]) + drawn), -3, 3)
                violation = w @ problem.couplings[client] - problem.offsets[client]
                models.append(w)
                ascents.append(violation - CONCAVITY * 0.0 + noise[-1, DIMENSIONS, client, 0, seed])
            mean = np.mean(models, axis=0)
            dual = np.clip(constants.dual_step(1) * np.mean(ascents), -1, 1)
            assert curve.gaps[seed, 0] == pytest.approx(problem.primal_risk(mean) - problem.least)
            assert curve.dual_errors[seed, 0] == pytest.approx((dual - problem.best_dual(mean)) ** 2)


def test_the_same_call_gives_the_same_numbers() -> None:
    first, second = descend((0.5,), 50, 3)[0], descend((0.5,), 50, 3)[0]
    assert (first.gaps == second.gaps).all()


def test_the_slope_of_a_power_is_its_exponent() -> None:
    rounds = marked_rounds(10_000)
    scale = np.random.default_rng(0).uniform(0.5, 2, (30, 1))
    found = slope(rounds, scale * np.array(rounds, dtype=float) ** -0.75)
    assert (found.value, found.low, found.high) == pytest.approx((-0.75, -0.75, -0.75))
    assert str(Slope(-1.004, -1.1, -0.9)) == "-1.00 [-1.10, -0.90]"


def test_more_seeds_narrow_the_interval_of_a_noisy_slope() -> None:
    rounds = marked_rounds(10_000)
    noise = np.random.default_rng(0).gamma(1.0, 1.0, (400, len(rounds)))
    values = noise / np.array(rounds)
    few, many = slope(rounds, values[:20]), slope(rounds, values)
    assert many.high - many.low < (few.high - few.low) / 2
    assert many.low < -1 < many.high


def test_the_rate_writes_its_table_and_its_chart(tmp_path: Path) -> None:
    found = measured_rate.write_rate(tmp_path, rounds=400, seeds=4)
    assert {path.name for path in found.files.values()} == {f"rate.{end}" for end in ("md", "tex", "csv", "svg")}
    firsts = [(one["heterogeneity"], one["E"]) for one in found.values]
    assert firsts == [("0", "1"), ("0.5", "1"), ("1", "1"), ("1", "4")]
    assert all(len(one.cells) == len(found.tables[0].columns) for one in found.tables[0].rows)


@pytest.mark.slow
def test_the_documents_show_the_rate_as_measured(tmp_path: Path) -> None:
    from ffalm.theory import rate

    document = Path(__file__).resolve().parents[2] / "docs" / "theory.md"
    text = document.read_text(encoding="utf-8")
    found = rate(tmp_path)
    assert all(line in text for line in [*table_lines(found.tables[0]), *found.notes])

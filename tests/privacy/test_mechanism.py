"""A round under privacy, step by step: what the server's state is made of and what the book says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.contract import TASK, report_of
from torch import Tensor

import ffalm
from ffalm.algorithms import Algorithm, Measure, RoundReport, State
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.privacy import LEDGER, KeyedNoise, Mechanism, Privacy, epsilon_of

COUNTS = torch.tensor([[[20, 10], [10, 20]], [[10, 10], [10, 10]], [[5, 15], [15, 5]]])
WIDE: dict[str, Any] = {"clip": 1e9, "state_clip": 1e9, "loss_bound": 1e9}


def mechanism(noise: float = 2.0, seed: int = 0, **settings: float) -> Mechanism:
    return Mechanism(Privacy(noise, **settings), KeyedNoise(seed))


def report(round: int = 1, absent: int | None = None, worse: Tensor | None = None) -> RoundReport:
    """Three clients whose first group has the higher loss; `worse` adds to their mean losses."""
    means = torch.tensor([[0.6, 0.4], [0.8, 0.3]], dtype=torch.float64) + (0.0 if worse is None else worse)
    ones = COUNTS // 2
    part = torch.tensor([client != absent for client in range(3)])
    there = part.view(3, 1, 1)
    tally = Tally(torch.stack([COUNTS - ones, ones], 1) * there.unsqueeze(1), COUNTS * means * there)
    return report_of(round, COUNTS.sum((-1, -2)), part, tally, validation=tally.pooled())


def plain(algorithm: Algorithm, given: RoundReport) -> tuple[Tensor, State]:
    return algorithm.update(algorithm.start(TASK, COUNTS), given)


@pytest.mark.parametrize("name", [name for name, cls in ffalm.algorithms().items() if not cls.gradients])
def test_without_noise_and_bounds_every_algorithm_updates_as_ever(name: str) -> None:
    algorithm = ffalm.algorithms()[name]()
    given = report(absent=1)
    weights, state = plain(algorithm, given)
    mine, after = mechanism(0.0, **WIDE).update(algorithm, algorithm.start(TASK, COUNTS), given)
    torch.testing.assert_close(mine, weights)
    book = after.pop(LEDGER)
    assert after.keys() == state.keys()
    for entry, value in state.items():
        torch.testing.assert_close(after[entry], value)
    assert book.tolist() == [math.inf, 0.0, math.inf]


def test_ffalm_gets_noise_on_its_dual_and_none_on_its_schedule() -> None:
    algorithm = ffalm.FFALM(penalty_growth=1.5)
    _, state = mechanism().update(algorithm, algorithm.start(TASK, COUNTS), report())
    _, other = mechanism(seed=1).update(algorithm, algorithm.start(TASK, COUNTS), report())
    assert state["penalty"] == other["penalty"] == 3.0
    assert state["dual"] != other["dual"]


def test_noise_on_the_dual_has_the_standard_deviation_that_the_accountant_counts_with() -> None:
    algorithm, given = ffalm.FFALM(), report()
    duals = [
        float(mechanism(4.0, seed, state_clip=0.3).update(algorithm, algorithm.start(TASK, COUNTS), given)[1]["dual"])
        for seed in range(300)
    ]
    largest_share = float(given.shares().max())
    assert float(torch.tensor(duals).std()) == pytest.approx(4.0 * 0.3 * largest_share, rel=0.12)


def test_a_client_moves_the_dual_no_further_than_its_share_of_the_clip() -> None:
    algorithm = ffalm.FFALM()
    step = torch.zeros(3, 2, 2, dtype=torch.float64)
    step[1, :, 0] = 100.0
    near, far = (
        float(
            mechanism(0.0, state_clip=0.05).update(algorithm, algorithm.start(TASK, COUNTS), report(worse=by))[1][
                "dual"
            ]
        )
        for by in (-step, step)
    )
    assert far - near == pytest.approx(2 * 0.05 * 40 / 140)


@pytest.mark.parametrize(("algorithm", "usual"), [(ffalm.FFALM(), 0.1), (ffalm.algorithms()["fedgft"](), 1.0)])
def test_the_clip_of_a_step_fits_the_algorithm_unless_it_is_given(algorithm: Algorithm, usual: float) -> None:
    """A bound of 0.1 would all but switch off FedGFT, whose own step is of rates and prices themselves."""
    given, start = report(worse=torch.full((3, 2, 2), 5.0)), algorithm.start(TASK, COUNTS)
    default, same, other = (
        Mechanism(Privacy(0.0, state_clip=clip), KeyedNoise(0)).update(algorithm, start, given)[1]
        for clip in (None, usual, usual / 2)
    )
    assert all(torch.equal(default[name], same[name]) for name in start)
    assert not all(torch.equal(default[name], other[name]) for name in start)


def test_a_bound_of_the_dual_holds_after_noise_too() -> None:
    algorithm = ffalm.FFALM(dual_bound=0.25)
    for seed in range(20):
        _, state = mechanism(500.0, seed).update(algorithm, algorithm.start(TASK, COUNTS), report())
        assert abs(float(state["dual"])) <= 0.25


@pytest.mark.parametrize("constraint", ["abs", "positive_part"])
def test_fpfl_gets_noise_on_every_multiplier_even_beyond_a_tolerance(constraint: str) -> None:
    algorithm = ffalm.FPFL(constraint=constraint, tolerance=0.5)  # type: ignore[arg-type]
    _, state = mechanism().update(algorithm, algorithm.start(TASK, COUNTS), report())
    assert (state["duals"] != 0).all()


def test_fairfed_weighs_by_noisy_rows_alone() -> None:
    algorithm, loud = ffalm.FairFed(), mechanism(3.0)
    weights, state = loud.update(algorithm, algorithm.start(TASK, COUNTS), report())
    other, _ = mechanism(3.0, seed=1).update(algorithm, algorithm.start(TASK, COUNTS), report())
    assert not torch.allclose(weights, other)
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all() and state["client_weights"].isfinite().all()


def test_the_book_charges_those_who_took_part_and_composes() -> None:
    algorithm, private = ffalm.FFALM(), mechanism(4.0, tally_noise=8.0)
    state = algorithm.start(TASK, COUNTS)
    for round, absent in ((1, None), (2, 0), (3, 0)):
        _, state = private.update(algorithm, state, report(round, absent))
    each = 4 / 16 + 4 / 64
    assert state[LEDGER].tolist() == pytest.approx([each, 3 * each, 3 * each])
    assert private.epsilon(state) == pytest.approx(epsilon_of(math.sqrt(3 * each), 1e-5))


@pytest.mark.parametrize(("noise", "epsilon"), [(1e-60, 4e120), (1e-170, math.inf)])
def test_hardly_any_noise_is_worth_hardly_anything(noise: float, epsilon: float) -> None:
    algorithm, private = ffalm.FFALM(), mechanism(noise)
    _, state = private.update(algorithm, algorithm.start(TASK, COUNTS), report())
    assert private.epsilon(state) == pytest.approx(epsilon)


def test_an_algorithm_that_asks_for_no_tally_pays_for_the_model_only() -> None:
    algorithm = ffalm.FedAvg()
    given = report_of(1, COUNTS.sum((-1, -2)), torch.tensor([True, True, True]), None)
    _, state = mechanism(4.0).update(algorithm, {}, given)
    assert state[LEDGER].tolist() == pytest.approx([4 / 16] * 3)


def test_the_scores_of_the_final_model_are_charged_to_everybody() -> None:
    private = mechanism(4.0, tally_noise=2.0)
    state = {LEDGER: torch.tensor([0.0, 0.5], dtype=torch.float64)}
    assert private.scored(state)[LEDGER].tolist() == pytest.approx([1.0, 1.5])


def test_rounds_without_a_book_before_this_one_had_no_privacy() -> None:
    algorithm = ffalm.FFALM()
    _, state = mechanism().update(algorithm, algorithm.start(TASK, COUNTS), report(round=2))
    assert mechanism().epsilon(state) == math.inf


@dataclass(frozen=True)
class Choosy(Algorithm):
    """Needs single Tallies of batches, whose rows are nobody's to know."""

    name: ClassVar[str] = "choosy"
    title: ClassVar[str] = "Choosy"

    @property
    def measure(self) -> Measure:
        return Measure.LAST_BATCH


def test_single_tallies_of_rows_that_are_not_public_are_refused() -> None:
    with pytest.raises(UserError, match="Choosy needs the Tally of each client's last batch"):
        Mechanism.check(Choosy())
    Mechanism.check(ffalm.FFALM(dual_data="last_batch"))
    Mechanism.check(ffalm.FairFed())

"""Which algorithms need no more than sums: their update is the mean of what each client would come to alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.contract import TASK, report_of
from tests.variants import variants

import ffalm
from ffalm.algorithms import Algorithm, Measure, RoundReport, State
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.federate.secure.secure_settings import check_summable

CLIENTS = 5


def everything() -> Iterator[Algorithm]:
    yield from variants()
    yield ffalm.FFALM(dual_bound=0.05)
    yield ffalm.FFALM.preset("safe")
    yield ffalm.FFALM.preset("released-code")
    yield ffalm.FFALM(dual_step_cap=0.1, dual_decay=0.2, dual_proportional=0.5, dual_bound=0.6, normalised_gap=True)
    yield ffalm.FFALM(sufficient_decrease=0.9, penalty_growth=1.5)
    yield ffalm.FPFL(tolerance=0.1)


def told(algorithm: Algorithm, seed: int) -> tuple[State, RoundReport]:
    """A report in which clients differ much, one lacks a group and one does not take part."""
    draw = torch.Generator().manual_seed(seed)
    confusion = torch.randint(0, 40, (CLIENTS, 2, 2, 2), generator=draw)
    confusion[1, ..., 1] = 0
    part = torch.tensor([True, True, True, False, True])
    confusion[~part] = 0
    loss = torch.rand(CLIENTS, 2, 2, generator=draw, dtype=torch.float64) * confusion.sum(-3) * 3
    tally = None if algorithm.measure is Measure.NOTHING else Tally(confusion, loss)
    sizes = torch.tensor([50, 7, 400, 90, 33])
    counts = torch.randint(1, 9, (CLIENTS, 2, 2), generator=draw)
    state = {name: value + 0.3 for name, value in algorithm.start(TASK, counts).items()}
    return state, report_of(1 + seed, sizes, part, tally)


def alone(report: RoundReport, client: int) -> RoundReport:
    tally = None if report.tally is None else report.tally[client : client + 1]
    return report_of(report.round, report.sizes[client : client + 1], torch.tensor([True]), tally)


def from_sums(algorithm: Algorithm, state: State, report: RoundReport) -> State:
    """What a server comes to that sees nothing but the sum of the clients' own, weighted results."""
    shares = report.shares()
    total = {name: torch.zeros_like(value) for name, value in state.items()}
    for client in report.taking_part.nonzero().flatten().tolist():
        own = algorithm.dual_step(state, alone(report, client))
        total = {name: value + shares[client] * own[name] for name, value in total.items()}
    return algorithm.project(total)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("algorithm", [one for one in everything() if one.separable], ids=repr)
def test_a_separable_algorithm_comes_to_the_same_from_sums(algorithm: Algorithm, seed: int) -> None:
    state, report = told(algorithm, seed)
    weights, expected = algorithm.update(state, report)
    assert torch.equal(weights, report.shares())
    found = from_sums(algorithm, state, report)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def test_which_algorithms_are_not_separable() -> None:
    others = [one for one in everything() if not one.separable]
    assert {one.name for one in others} == {
        *("fairfed", "lagrangian", "fcfl", "qffl", "ffalm", "afl", "fedfb", "reductions")
    }
    assert [one.gap for one in others if isinstance(one, ffalm.FFALM)] == ["pooled", "held_out"]


def test_an_algorithm_of_ones_own_may_say_it_as_a_fact_of_its_class() -> None:
    @dataclass(frozen=True)
    class Own(Algorithm):
        title = "Own"
        measure = Measure.RECEIVED
        separable = True

    @dataclass(frozen=True)
    class Silent(Algorithm):
        title = "Silent"
        measure = Measure.RECEIVED

    check_summable(Own())
    with pytest.raises(UserError, match="Silent needs every site's own answer"):
        check_summable(Silent())


def test_which_algorithms_tell_gaps_alone_depends_on_their_settings() -> None:
    assert {one.name for one in everything() if one.tells_gaps} == {"ffalm", "fairalm"}
    assert all(one.tells_gaps for one in everything() if isinstance(one, ffalm.FFALM))
    assert [ffalm.FairALM(labels=labels).tells_gaps for labels in ("all", "favourable")] == [True, False]
    assert [one for one in everything() if one.tells_gaps_of_cells] == [ffalm.FairALM(labels="favourable")]


def test_an_algorithm_that_compares_single_clients_needs_more_than_sums() -> None:
    assert not any(algorithm.needs_only_sums for algorithm in everything() if algorithm.products)


def test_a_bound_is_kept_after_averaging_not_before() -> None:
    """Two clients pull by +6 and -5 at equal sizes: together +0.5, within the bound; clamped one by one, 0."""
    algorithm = ffalm.FFALM(dual_lr=1.0, dual_bound=1.0)
    confusion = torch.tensor([[[1, 1], [0, 0]], [[0, 0], [0, 0]]]).expand(2, 2, 2, 2)
    losses = torch.tensor([[[6.0, 0.0], [0.0, 0.0]], [[0.0, 5.0], [0.0, 0.0]]], dtype=torch.float64)
    report = report_of(1, torch.tensor([2, 2]), torch.tensor([True, True]), Tally(confusion, losses))
    state = algorithm.start(TASK, torch.ones(2, 2, 2))
    assert float(from_sums(algorithm, state, report)["dual"]) == 0.5
    assert float(algorithm.update(state, report)[1]["dual"]) == 0.5


def test_algorithms_that_need_single_tallies_are_refused_in_a_sentence() -> None:
    for algorithm in (ffalm.FedAvg(), ffalm.FFALM(), ffalm.FPFL(), ffalm.FedGFT(), ffalm.Reductions()):
        check_summable(algorithm)
    refused = (ffalm.FairFed(), ffalm.FedFB(), ffalm.AFL(), ffalm.FCFL(), ffalm.QFFL(), ffalm.FFALM(gap="pooled"))
    for one in (*refused, ffalm.Reductions(measured="train")):
        with pytest.raises(UserError, match=f"{one.title} needs every site's own answer"):
            check_summable(one)
    check_summable(ffalm.FFALM(gap="held_out"))  # by what the server has: the sum of the held-out Tallies


def test_an_algorithm_that_overrides_the_update_is_not_taken_for_separable_by_inheritance() -> None:
    @dataclass(frozen=True)
    class Own(ffalm.FFALM):
        title: ClassVar[str] = "Own"

        def update(self, state: State, report: RoundReport) -> tuple[torch.Tensor, State]:
            return report.shares().square(), state

    with pytest.raises(UserError, match="Own needs every site's own answer"):
        check_summable(Own())

"""What the algorithm contract promises: logits, held-out Tallies, recorded state apart from vectors, old signatures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from tests.contract import batch_of, task_of
from tests.engines.test_conformance import FEATURES, assert_same_numbers, jobs_of
from tests.variants import variants
from torch import Tensor, nn

import ffalm
from ffalm.algorithms import Algorithm, Batch, Measure, RoundReport, Rows, State, algorithms
from ffalm.algorithms.contract import Task
from ffalm.engines.loop import LoopEngine
from ffalm.errors import UserError
from ffalm.fairness import Tally, masked_mean


@dataclass(frozen=True)
class RatePenalty(Algorithm):
    """Demographic parity on the batch, by probabilities: needs the logits where there are more than two labels."""

    name: ClassVar[str] = "rate-penalty"
    title: ClassVar[str] = "Rate penalty"

    def by_outputs(self, task: Task) -> bool:
        return task.labels > 2

    def objective(self, batch: Batch, state: State) -> Tensor:
        scores = batch.favourable_probability()
        rates = [masked_mean(scores, batch.mask & (batch.groups == group)) for group in (0, 1)]
        return masked_mean(batch.losses, batch.mask) + (rates[0] - rates[1]) ** 2


@dataclass(frozen=True)
class AlwaysByOutputs(RatePenalty):
    """The same from the logits, however many labels there are."""

    def by_outputs(self, task: Task) -> bool:
        return True


@dataclass(frozen=True)
class HeldOut(Algorithm):
    """Records what the server is told of held-out rows, and moves by their DPD."""

    name: ClassVar[str] = "held-out"
    title: ClassVar[str] = "Held out"
    broadcasts: ClassVar[tuple[str, ...]] = ("pull",)

    def start(self, task: Task, counts: Tensor) -> State:
        return {"pull": torch.tensor(0.0, dtype=torch.float64)}

    def objective(self, batch: Batch, state: State) -> Tensor:
        return masked_mean(batch.losses, batch.mask) * (1 + state["pull"])

    def dual_step(self, state: State, report: RoundReport) -> State:
        assert report.validation is not None
        return {"pull": state["pull"] + report.validation.dpd(report.favourable)}


def wide(labels: int) -> Any:
    return lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, labels)).double()


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("algorithm", [RatePenalty(), AlwaysByOutputs()], ids=str)
def test_objectives_of_the_logits_give_the_same_numbers_on_the_stacked_engine(
    algorithm: Algorithm, labels: int
) -> None:
    assert_same_numbers("stacked", jobs_of(algorithm, wide(labels), labels=labels, local_epochs=2))


def test_losses_and_logits_of_two_labels_give_the_same_training() -> None:
    by_losses, by_logits = (
        list(LoopEngine().train(jobs_of(algorithm, seeds=1)))[-1][1].snapshot.model
        for algorithm in (RatePenalty(), AlwaysByOutputs())
    )
    for name, value in by_losses.items():
        torch.testing.assert_close(by_logits[name], value, rtol=1e-12, atol=1e-12)


def test_the_probability_of_the_favourable_label_from_losses_is_that_from_logits() -> None:
    logits, labels = torch.randn(6, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    for favourable in (0, 1):
        batch = batch_of(losses, labels, labels, task=task_of(favourable=favourable))
        expected = batch._replace(outputs=logits).favourable_probability()
        torch.testing.assert_close(batch.favourable_probability(), expected)
        torch.testing.assert_close(expected, logits.softmax(-1)[:, favourable])


def test_every_report_has_the_held_out_tally_of_the_model_that_was_sent() -> None:
    job = jobs_of(HeldOut(), seeds=1)[0]
    done = [round for _, round in LoopEngine().train([job])]
    sent_dpd = [done[1].record["pull"] - done[0].record["pull"], done[2].record["pull"] - done[1].record["pull"]]
    assert sent_dpd == pytest.approx([done[0].record["dpd"], done[1].record["dpd"]], abs=1e-15)
    assert_same_numbers("stacked", jobs_of(HeldOut()))
    resumed = [round for _, round in LoopEngine().train([replace(job, start=done[0].snapshot)])]
    assert [round.record["pull"] for round in resumed] == [round.record["pull"] for round in done[1:]]


@pytest.mark.parametrize("algorithm", [cls() for cls in algorithms().values()], ids=str)
def test_vectors_are_kept_in_snapshots_and_never_in_the_history(algorithm: Algorithm) -> None:
    done = [round for _, round in LoopEngine().train(jobs_of(algorithm, seeds=1))][-1]
    vectors = {*algorithm.server_vectors, *algorithm.client_vectors, *algorithm.uploads}
    assert set(done.snapshot.vectors) == set(algorithm.server_vectors)
    assert set(done.snapshot.client_vectors) == set(algorithm.client_vectors)
    assert not vectors & done.record.keys()


def test_a_name_that_is_taken_is_refused_whatever_the_class_is_called() -> None:
    class FedAvg(ffalm.Algorithm):
        name = "fedavg"
        title = "Mine"

    with pytest.raises(ffalm.UserError, match=r"'fedavg' already belongs to the algorithm ffalm\.algorithms\.fedavg"):
        ffalm.register(FedAvg)
    for no_algorithm in (None, "fedavg", int, object()):
        with pytest.raises(UserError, match=r"extend `ffalm\.Algorithm`"):
            ffalm.register(no_algorithm)  # type: ignore[arg-type]


def test_rows_behind_the_mask_get_no_slope_from_autograd() -> None:
    rows = Rows(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]), torch.tensor([True, True, False]), task_of(3))
    outputs = torch.randn(3, 3)
    slopes = RatePenalty().slopes(Batch(rows, torch.zeros(3), outputs), {})
    assert slopes.shape == (3, 3)
    assert bool((slopes[2] == 0).all()) and bool((slopes[:2] != 0).all())


def test_tallies_of_many_clients_are_pooled_before_they_are_reported() -> None:
    one = Tally(torch.ones(2, 2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.float64))
    assert int(Tally.stack([one, one]).pooled().confusion.sum()) == 16


def test_an_objective_that_returns_no_tensor_is_named() -> None:
    @dataclass(frozen=True)
    class Forgetful(Algorithm):
        name: ClassVar[str] = "forgetful"
        title: ClassVar[str] = "Forgetful"

        def objective(self, batch: Batch, state: State) -> Tensor:
            return None  # type: ignore[return-value]

    batch = batch_of(torch.tensor([0.5, 1.0]), torch.tensor([0, 1]))
    with pytest.raises(ffalm.UserError, match="objective of Forgetful must return a tensor; it returned NoneType"):
        Forgetful().slopes(batch, {})


def test_an_algorithm_says_whether_its_dual_step_needs_held_out_rows() -> None:
    counts, told = torch.full((2, 2, 2), 5), torch.ones(2, dtype=torch.bool)
    for algorithm in (one for one in variants() if one.measure is Measure.NOTHING and not one.gradients):
        report = RoundReport(1, counts, told, None, task_of())
        if algorithm.needs_held_out:
            with pytest.raises(UserError, match="held-out rows"):
                algorithm.update(algorithm.start(task_of(), counts), report)
        else:
            algorithm.update(algorithm.start(task_of(), counts), report)

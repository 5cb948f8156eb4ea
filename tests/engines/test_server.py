"""The server's part of a round: what counts as diverged, and from where a run goes on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import pytest
import torch
from tests.engines.test_conformance import jobs_of
from torch import nn

import ffalm
from ffalm.algorithms import algorithms
from ffalm.engines import Engine, Snapshot
from ffalm.engines.jobs import Model
from ffalm.engines.loop import LoopClients, LoopEngine
from ffalm.engines.server import ClientUpdate, ServerContext, rounds
from ffalm.engines.stacked import StackedEngine


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_a_server_vector_that_overflows_counts_as_divergence(engine: type[Engine]) -> None:
    """(1e25)^2 is infinite in float32: FedAdam's variance is lost while its step, m / (inf + tau), is 0."""
    single = lambda: nn.Linear(9, 2)  # noqa: E731
    (job,) = jobs_of(ffalm.FedAdam(), single, seeds=1, lr=1e25, local_steps=1)
    ((_, done),) = engine().train([job])
    assert all(bool(value.isfinite().all()) for value in done.snapshot.model.values())
    assert done.diverged == (
        "FedAdam diverged in round 1: its variance is no longer finite; try a smaller lr or server_lr, or a larger tau."
    )


def test_a_snapshot_is_put_where_the_model_is_and_in_its_order() -> None:
    (job,) = jobs_of(ffalm.SCAFFOLD(), seeds=1)
    first = next(LoopEngine().train([job]))[1].snapshot
    shuffled = {name: dict(reversed(vector.items())) for name, vector in first.vectors.items()}
    context = ServerContext.of(dataclasses.replace(job, start=dataclasses.replace(first, vectors=shuffled)))
    elsewhere = {name: value.to("meta") for name, value in first.model.items()}
    begun = context.begin(elsewhere)
    assert list(begun.vectors["control"]) == list(first.vectors["control"])
    tensors = [begun.model, begun.vectors["control"], begun.client_vectors["control"]]
    assert {value.device.type for entries in tensors for value in entries.values()} == {"meta"}
    assert all(isinstance(value, torch.Tensor) for value in begun.state.values())


class OutOfOrder(LoopClients):
    """Clients whose models arrive with their entries in another order, as messages may have them."""

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        return {
            client: dataclasses.replace(update, model=dict(reversed(update.model.items())))
            for client, update in super().train(chosen, sent).items()
        }


def test_a_model_keeps_the_order_of_its_entries_whatever_that_of_messages() -> None:
    (job,) = jobs_of(ffalm.FedAvg(), seeds=1)
    done = next(rounds(ServerContext.of(job), OutOfOrder(job)))
    assert list(done.snapshot.model) == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["scaffold", "fedadam"])
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_a_run_on_a_gpu_goes_on_from_a_snapshot_read_from_a_file(engine: type[Engine], algorithm: str) -> None:
    (job,) = jobs_of(ffalm.algorithms()[algorithm](), seeds=1, participation=0.5)
    job = dataclasses.replace(job, spec=dataclasses.replace(job.spec, device=torch.device("cuda")))
    whole = [done.snapshot for _, done in engine().train([job])]
    first = whole[0]
    read = Snapshot(
        first.round,
        on_cpu(first.model),
        first.state,
        {name: on_cpu(vector) for name, vector in first.vectors.items()},
        {name: on_cpu(vector) for name, vector in first.client_vectors.items()},
    )
    resumed = [done.snapshot for _, done in engine().train([dataclasses.replace(job, start=read)])]
    for name, value in whole[-1].model.items():
        torch.testing.assert_close(resumed[-1].model[name], value, rtol=1e-12, atol=1e-12)


def on_cpu(entries: Model) -> Model:
    return {name: value.cpu() for name, value in entries.items()}


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_whatever_bounds_an_algorithm_a_smaller_lr_is_among_what_to_try(name: str) -> None:
    assert re.search(r"\blr\b", algorithms()[name].remedies)

"""A simulation through Flower gives the reference engine's numbers, and fails as it does."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from tests.engines.test_conformance import FEATURES, assert_same_record, by_job, jobs_of
from tests.every_feature import EveryFeature
from tests.variants import variants
from torch import nn

import ffalm
from ffalm.algorithms import Algorithm
from ffalm.engines import Job
from ffalm.engines.flower.engine import FlowerEngine
from ffalm.engines.loop import LoopEngine
from ffalm.errors import UserError

CLOSE = 1e-12
needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None,
    reason="Flower is not installed: pip install 'ffalm[flower]'",
)

normalised = lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))  # noqa: E731
dense = lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 2)).double()  # noqa: E731


MEASURES = (ffalm.FFALM(dual_data="last_batch"), ffalm.FFALM(dual_data="epoch_mean"), ffalm.FFALM(gap="held_out"))
EVERY = tuple(one for one in variants() if one == type(one)())
#: One for each kind of answer that a client gives: state and vectors of all kinds, gradients, Tallies of three moments.
KINDS = (EveryFeature(), ffalm.FCFL(), *MEASURES)


def jobs(algorithms: Sequence[Algorithm]) -> list[Job]:
    """The algorithms with some of their clients, a model with counters and statistics, and a run that goes on."""
    some = [
        job
        for algorithm in algorithms
        for job in jobs_of(algorithm, dense, seeds=1, rounds=2, participation=0.5, local_epochs=2)
    ]
    resumed = jobs_of(ffalm.FFALM(), dense, rounds=4)[1]
    snapshot = by_job(LoopEngine().train([resumed]))[0, 2].snapshot
    return [
        *some,
        *jobs_of(ffalm.FFALM(), normalised, seeds=1, batch_size=15),
        dataclasses.replace(resumed, start=snapshot),
    ]


def assert_gives_the_reference_numbers(algorithms: Sequence[Algorithm]) -> None:
    """In one simulation for all of them, since its start takes seconds; the last job fails at a client."""
    good = jobs(algorithms)
    (bad,) = jobs_of(ffalm.FedAvg(), normalised, seeds=1)  # a last batch of one row
    running = FlowerEngine().train([*good, bad])
    expected = by_job(LoopEngine().train(good))
    found = by_job(next(running) for _ in expected)
    assert found.keys() == expected.keys()
    for key, reference in expected.items():
        done = found[key]
        assert done.snapshot.model.keys() == reference.snapshot.model.keys()
        for name, entry in [*reference.snapshot.model.items(), *reference.snapshot.state.items()]:
            value = {**done.snapshot.model, **done.snapshot.state}[name]
            assert value.dtype == entry.dtype
            torch.testing.assert_close(value, entry, rtol=CLOSE, atol=CLOSE, msg=f"{key} {name}")
        assert_same_record(done.record, reference.record)
    with pytest.raises(UserError, match=r"^BatchNorm cannot train on the single row"):
        next(running)


@needs_flower
def test_every_kind_of_answer_gives_the_reference_numbers_and_a_clients_mistake_comes_out_as_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ffalm.engines.flower.engine.cores", lambda: 1)  # each process of Ray imports torch and Flower
    assert_gives_the_reference_numbers(KINDS)


@needs_flower
@pytest.mark.slow
def test_every_algorithm_gives_the_reference_numbers() -> None:
    assert_gives_the_reference_numbers((*EVERY, *KINDS))


def test_a_machine_without_flower_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("The engine 'flower' needs Flower: pip install 'ffalm[flower]'.")):
        FlowerEngine()


def test_naming_the_engine_costs_no_import_of_flower() -> None:
    asked = "import sys, ffalm.engines; assert not {'flwr', 'ray'} & sys.modules.keys()"
    subprocess.run(
        [sys.executable, "-c", asked], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

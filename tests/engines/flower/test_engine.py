"""A simulation through Flower gives the reference engine's numbers, and fails as it does."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys

import pytest
import torch
from tests.engines.test_conformance import FEATURES, assert_same_record, by_job, jobs_of
from tests.every_feature import EveryFeature
from tests.variants import variants
from torch import nn

import ffalm
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


def jobs() -> list[Job]:
    """Every algorithm with some of its clients, and a model with counters and statistics."""
    some = [
        job
        for algorithm in (*(one for one in variants() if one == type(one)()), *MEASURES, EveryFeature())
        for job in jobs_of(algorithm, dense, seeds=1, rounds=2, participation=0.5, local_epochs=2)
    ]
    resumed = jobs_of(ffalm.FFALM(), dense, rounds=4)[1]
    snapshot = by_job(LoopEngine().train([resumed]))[0, 2].snapshot
    return [
        *some,
        *jobs_of(ffalm.FFALM(), normalised, seeds=1, batch_size=15),
        dataclasses.replace(resumed, start=snapshot),
    ]


@needs_flower
def test_every_algorithm_gives_the_reference_numbers_and_a_clients_mistake_comes_out_as_its_own() -> None:
    good = jobs()
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


def test_a_machine_without_flower_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("The engine 'flower' needs Flower: pip install 'ffalm[flower]'.")):
        FlowerEngine()


def test_naming_the_engine_costs_no_import_of_flower() -> None:
    asked = "import sys, ffalm.engines; assert not {'flwr', 'ray'} & sys.modules.keys()"
    subprocess.run(
        [sys.executable, "-c", asked], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

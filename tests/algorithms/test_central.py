"""Central training: FedAvg of one client that holds everybody's rows, scored like every other run."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

import ffalm
from ffalm.data.row_views import ClientRows
from ffalm.errors import UserError
from ffalm.federate.federation_config import FederationConfig

SETTINGS: dict[str, Any] = {"rounds": 4, "batch_size": 8, "lr": 0.2, "engine": "loop"}


@pytest.fixture(scope="module")
def federation() -> ffalm.Federation:
    return ffalm.load("census", rows=600, clients=3, alpha=1.0)


def test_the_pooled_federation_holds_every_clients_rows(federation: ffalm.Federation) -> None:
    pooled, apart = federation.pooled(), ffalm.Federation(list(federation.clients), None, None, federation.task)
    for one in (pooled, apart.pooled()):
        assert len(one.clients) == 1
        assert torch.equal(one.counts().sum(0), federation.counts().sum(0))
        assert torch.equal(one.clients[0].x, torch.cat([client.x for client in federation.clients]))
    assert isinstance(pooled.clients, ClientRows) and pooled.row_views[0].source is federation.row_views[0].source


def test_central_training_is_fedavg_of_the_one_client(federation: ffalm.Federation) -> None:
    central = ffalm.simulate("central", federation, **SETTINGS)
    alone = ffalm.simulate("fedavg", federation.pooled(), **SETTINGS)
    for name, value in alone.state_dict.items():
        assert torch.equal(central.state_dict[name], value)
    assert central.test == pytest.approx(alone.test, nan_ok=True)
    assert len(central.clients) == 3


def test_a_central_model_takes_the_table_that_it_was_trained_on() -> None:
    frame = pd.DataFrame({"town": ["a", "b", "c", "d"] * 20, "sex": ["m", "f"] * 40, "paid": [0, 0, 1] * 26 + [1, 1]})
    federation = ffalm.load(frame, label="paid", group="sex", favourable=1, clients=2)
    assert len(ffalm.simulate("central", federation, rounds=1).predict(frame)) == len(frame)


def test_a_study_stores_and_reports_it_beside_the_others(federation: ffalm.Federation) -> None:
    study = ffalm.compare(federation, ["central", "fedavg"], seeds=1, **{**SETTINGS, "engine": "auto"})
    assert [run.label for run in study.results] == ["Central", "FedAvg"]
    assert len(study.record.clients) == 3
    assert study.results[0].test["accuracy"] != study.results[1].test["accuracy"]


def test_neither_privacy_nor_a_real_federation_takes_it(federation: ffalm.Federation) -> None:
    with pytest.raises(UserError, match="no clients' answers to protect"):
        ffalm.simulate("central", federation, privacy=ffalm.Privacy(noise=1.0), **SETTINGS)
    named = {"name": "a", "sites": ["b"], "algorithm": {"name": "central"}}
    with pytest.raises(UserError, match="reference for simulations"):
        FederationConfig.parse({**named, "data": {"label": "y", "group": "g"}})

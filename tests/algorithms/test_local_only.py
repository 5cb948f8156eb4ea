"""Local training: every client by itself; Tallies and histograms are means by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ffalm
from ffalm.errors import UserError

SETTINGS: dict[str, Any] = {"rounds": 2, "batch_size": 16, "lr": 0.2, "engine": "loop"}


@pytest.fixture(scope="module")
def federation() -> ffalm.Federation:
    return ffalm.load("census", rows=600, clients=3, alpha=1.0)


@pytest.fixture(scope="module")
def local(federation: ffalm.Federation) -> ffalm.Result:
    found: ffalm.Result = ffalm.simulate("local", federation, **SETTINGS)
    return found


def test_scores_are_means_by_size_of_what_each_client_reaches_alone(
    federation: ffalm.Federation, local: ffalm.Result
) -> None:
    sizes = federation.counts().sum((1, 2)).double()
    shares = (sizes / sizes.sum()).tolist()
    alone = [ffalm.simulate("fedavg", federation.alone(client), **SETTINGS) for client in range(3)]
    assert federation.test is not None and local.tally is not None
    confusion = sum(share * one.tally.confusion.double() for share, one in zip(shares, alone, strict=True) if one.tally)
    torch.testing.assert_close(local.tally.confusion, confusion)
    assert float(local.tally.confusion.sum()) == pytest.approx(len(federation.test))
    accuracy = sum(share * one.test["accuracy"] for share, one in zip(shares, alone, strict=True))
    assert local.test["accuracy"] == pytest.approx(accuracy)
    assert local.test["dpd"] == pytest.approx(local.tally.dpd())
    counts = sum(share * one.scores["test"].counts.double() for share, one in zip(shares, alone, strict=True))
    torch.testing.assert_close(local.scores["test"].counts, counts)
    assert [one["accuracy"] for one in local.clients] == [one.clients[0]["accuracy"] for one in alone]


def test_records_are_means_by_size_and_there_is_no_one_model(federation: ffalm.Federation, local: ffalm.Result) -> None:
    alone = [ffalm.simulate("fedavg", federation.alone(client), **SETTINGS).history for client in range(3)]
    weights = local.history[0]["weights"]
    assert [record["round"] for record in local.history] == [1, 2]
    expected = sum(weight * history[1]["accuracy"] for weight, history in zip(weights, alone, strict=True))
    assert local.history[1]["accuracy"] == pytest.approx(expected)
    assert local.state_dict == {}


def test_a_client_that_lacks_a_group_trains_all_the_same() -> None:
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=draws), torch.arange(40) % 2
    mixed = torch.arange(40) // 2 % 2
    federation = ffalm.Federation.from_arrays([(x, y, mixed), (x, y, 0 * mixed)], test=(x, y, mixed))
    assert len(ffalm.simulate("local", federation, **SETTINGS).clients) == 2


def test_a_study_stores_it_beside_the_others_and_no_answer_chooses_a_reference(
    federation: ffalm.Federation, local: ffalm.Result, tmp_path: Path
) -> None:
    algorithms = ["local", "fedavg", "central"]
    settings = {**SETTINGS, "engine": "auto"}
    study = ffalm.compare(federation, algorithms, seeds=2, target="dpd <= 0.5", out=tmp_path / "out", **settings)
    assert [run.label for run in study.results[::2]] == ["Local only", "FedAvg", "Central"]
    assert study.results[0].test["accuracy"] == pytest.approx(local.test["accuracy"], abs=1e-6)
    assert study.record.references == ("Local only", "Central")
    assert {one.label for one in study.answer().candidates} == {"FedAvg"}
    assert float(study.scores(study.results[0])["test"].counts.sum()) == pytest.approx(120)
    assert "Local only" in study.table()
    (study.folder / "runs/local-seed-1/result.json").unlink()
    again = ffalm.compare(
        federation, algorithms, seeds=2, target="dpd <= 0.5", out=tmp_path / "out", resume=True, **settings
    )
    assert again.results[1].test == pytest.approx(study.results[1].test, nan_ok=True)
    assert len(again.results[1].history) == 2


def test_a_study_of_references_alone_has_no_answer(federation: ffalm.Federation) -> None:
    study = ffalm.compare(federation, ["local"], seeds=1, **SETTINGS)
    with pytest.raises(UserError, match="references, which an answer never chooses"):
        study.answer()


def test_own_rows_are_scored_by_each_clients_own_model(tmp_path: Path) -> None:
    rows = ["score,sex,bank,paid", *(f"{i % 7},{i // 3 % 2},{'ab'[i % 2]},{int(i % 7 > 3)}" for i in range(300))]
    (tmp_path / "loans.csv").write_text("\n".join(rows) + "\n")
    asked: dict[str, Any] = {"label": "paid", "group": "sex", "favourable": 1, "owner": "bank"}
    federation = ffalm.load(tmp_path / "loans.csv", **asked)
    found = ffalm.simulate("local", federation, **SETTINGS).client_scores["test"]
    for client in range(2):
        alone = ffalm.simulate("fedavg", federation.alone(client), **SETTINGS)
        assert torch.equal(found[client].counts, alone.client_scores["test"][0].counts)

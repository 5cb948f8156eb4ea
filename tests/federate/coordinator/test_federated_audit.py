"""Audits across sites: exactly what an audit of all their held-out rows together would say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federate.makers import NAMES, World, config, exchange_keys, people, site_folder

import ffalm
from ffalm.auditing.fairness_audit import Audit
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_audit import AuditRequest, audit_sites
from ffalm.federate.coordinator.federated_run import coordinate, lead
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.site.rows import read_rows


def predicted(rows: int, seed: int) -> pd.DataFrame:
    """People with a score that somebody else made, and its decision."""
    frame, draw = people(rows, seed), np.random.default_rng(100 + seed)
    score = np.clip((frame["age"] - 18) / 62 + draw.normal(0, 0.2, rows), 0, 1).round(3)
    rare = np.where(draw.random(rows) < 0.9, 0.0, score)  # a long tail
    return frame.assign(p=score, rare=rare, said=np.where(score >= 0.5, "yes", "no"))


@pytest.fixture
def sites(tmp_path: Path) -> World:
    frames = {name: predicted(rows, seed) for seed, (name, rows) in enumerate(zip(NAMES, (90, 70, 80), strict=False))}
    folders = {name: site_folder(tmp_path / "sites", name, frame) for name, frame in frames.items()}
    exchange_keys(folders)
    return World(folders)


def audited(plan: FederationConfig, folder: Path, sites: World, **request: Any) -> Audit:
    folder.mkdir(parents=True)
    AuditRequest(**request).write(folder)
    return audit_sites(plan, folder, sites, pause=0.001)


def held_out(plan: FederationConfig, sites: World) -> pd.DataFrame:
    """The held-out rows of all sites, which nobody sees."""
    parts = []
    for folder in sites.folders.values():
        rows = read_rows(SiteConfig.read(folder / "site.toml"), plan.data, folder).parts  # type: ignore[union-attr]
        parts.append(pd.read_csv(folder / "rows.csv").iloc[np.concatenate(rows[1:])])
    return pd.concat(parts)


def expected(plan: FederationConfig, sites: World, **what: Any) -> Audit:
    return ffalm.audit(held_out(plan, sites), label="loan", group="sex", favourable="yes", min_group=0, **what)


@pytest.mark.parametrize("secure", [False, True])
def test_a_column_of_predictions_is_pooled_exactly(tmp_path: Path, sites: World, secure: bool) -> None:
    plan = config(rules={"secure": secure}, data={"drop": ["said", "p"]})
    found = audited(plan, tmp_path / "audit", sites, prediction="said")
    whole = expected(plan, sites, prediction="said")
    assert found.groupings[0].groups == whole.groupings[0].groups
    assert found.groupings[0].metrics == whole.groupings[0].metrics
    assert found.rows == whole.rows
    assert not {kind for kind, _ in sites.asked} & {"train"}


@pytest.mark.parametrize("score", ["p", "rare"])
def test_a_column_of_scores_is_decided_where_asked(tmp_path: Path, sites: World, score: str) -> None:
    found = audited(config(), tmp_path / "audit", sites, score=score, decision=0.6)
    whole = expected(config(), sites, score=score, decision=0.6)
    rates = [[one.metrics["selection_rate"] for one in audit.groupings[0].groups] for audit in (found, whole)]
    assert rates[0] == rates[1]
    assert found.metrics["eod"] == pytest.approx(whole.metrics["eod"])
    assert found.threshold == 0.6


def test_a_decision_beyond_every_score_selects_nobody(tmp_path: Path, sites: World) -> None:
    found = audited(config(), tmp_path / "audit", sites, score="p", decision=1e300)
    assert [one.metrics["selection_rate"].value for one in found.groupings[0].groups] == [0, 0]


def test_a_trained_model_is_audited_with_its_thresholds(tmp_path: Path, sites: World) -> None:
    plan = config(training={"rounds": 2}, data={"drop": ["said", "p"]}, target="dpd <= 0.05")
    coordinate(plan, tmp_path / "fed" / "run", sites, pause=0.001)
    found = audited(plan, tmp_path / "audit", sites, model=str(tmp_path / "fed"))
    rows = held_out(plan, sites)
    said = ffalm.load_model(tmp_path / "fed").predict(rows, group="sex")
    whole = ffalm.audit(
        rows.assign(said=said), label="loan", prediction="said", group="sex", favourable="yes", min_group=0
    )
    assert found.metrics["dpd"] == pytest.approx(whole.metrics["dpd"])
    assert found.metrics["accuracy"] == pytest.approx(whole.metrics["accuracy"])


def test_cells_of_too_few_rows_are_withheld_and_told(tmp_path: Path, sites: World) -> None:
    plan = config(rules={"min_group": 6})
    found = audited(plan, tmp_path / "audit", sites, prediction="said")
    assert found.rows < expected(plan, sites, prediction="said").rows
    assert any("too small to be sent" in note for note in found.notes)


def test_an_audit_can_be_read_again_and_asks_nobody_twice(tmp_path: Path, sites: World) -> None:
    found = audited(config(), tmp_path / "audit", sites, prediction="said")
    asked = len(sites.asked)
    assert audit_sites(config(), tmp_path / "audit", sites, pause=0.001) == found
    assert len(sites.asked) == asked


def test_the_coordinators_app_leads_an_audit(tmp_path: Path, sites: World) -> None:
    config().write(tmp_path / "federation.toml")
    folder = tmp_path / "audits" / "1"
    folder.mkdir(parents=True)
    AuditRequest(prediction="said").write(folder)
    lead(sites, {"folder": str(tmp_path), "audit": "audits/1"})
    assert (folder / "result.json").exists()


def test_what_cannot_be_audited_is_told(tmp_path: Path, sites: World) -> None:
    with pytest.raises(UserError, match="Give one of"):
        AuditRequest()
    with pytest.raises(UserError, match="label or a group"):
        audited(config(), tmp_path / "a", sites, prediction="sex")
    with pytest.raises(UserError, match="which is no value of 'loan'"):
        audited(config(), tmp_path / "b", sites, prediction="job")
    with pytest.raises(UserError, match="take that section out"):
        audited(config(privacy={"noise": 1.0}), tmp_path / "c", sites, prediction="said")

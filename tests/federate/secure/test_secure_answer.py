"""A fairness target under secure aggregation: the answer of the open run, from sums alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federate.makers import World, config, people
from tests.federate.secure.test_secure_rounds import led, secure, watched

from ffalm import load_model
from ffalm.errors import UserError
from ffalm.federate.federation_config import SiteConfig
from ffalm.federate.histogram_bytes import PARTS
from ffalm.federate.site.answering import THRESHOLDS
from ffalm.report.answer_card import answer_card
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder
from ffalm.targets import site_answers

AIM: dict[str, Any] = {"target": "dpd <= 0.1", "confidence": 0.5, "algorithm": {"name": "fedavg"}}


def facts(run: Path) -> dict[str, dict[str, Any]]:
    return {site["name"]: site for site in json.loads((run / "sites.json").read_text())["sites"]}


def test_a_secure_federation_gives_the_open_ones_answer_and_shows_no_single_histogram(tmp_path: Path) -> None:
    sites, rules = watched(tmp_path), {"min_group": 3}
    led(config(training={"rounds": 1}, rules=rules, **AIM), tmp_path / "open", World(sites.folders))
    led(secure(1, rules=rules, **AIM), tmp_path / "run", sites)
    scores = [message for _, move, _, message in sites.seen if move == "score"]
    assert len(scores) == 3 and all(message.tensors.keys() == {"masked"} for message in scores)
    expected = RunFolder(tmp_path / "open").scores(1)
    for part, histogram in RunFolder(tmp_path / "run").scores(1).items():
        assert np.array_equal(histogram.counts, expected[part].counts)
        told = torch.tensor([site["rows"][PARTS[part]] for site in facts(tmp_path / "run").values()])
        assert np.array_equal(histogram.counts.sum((0, 1)), told.sum(0))
        assert bool((told == 0).any()) == (part != "training")  # small cells
    assert (tmp_path / "run" / "repair.json").read_text() == (tmp_path / "open" / "repair.json").read_text()
    assert not any("repaired" in site for site in facts(tmp_path / "run").values())
    studies = [Study.load(tmp_path / name) for name in ("run", "open")]
    cards = [answer_card(study.answer(), "yes") for study in studies]
    assert cards[0] == cards[1] and len(studies[0].outcome.answers) == 1
    with pytest.raises(UserError, match="keeps sums over sites alone"):
        studies[1].answer(scope="sites")


def test_under_secure_each_site_fits_the_open_ones_thresholds_by_itself_and_tells_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_answers, "ENOUGH_ROWS", 3)
    sites, aim = watched(tmp_path), {**AIM, "confidence": 0.7}
    led(config(training={"rounds": 1}, scope="sites", **aim), tmp_path / "open", World(sites.folders))
    assert not any((folder / THRESHOLDS).exists() for folder in sites.folders.values())
    led(secure(1, **aim), tmp_path / "federation", World(sites.folders))
    led(secure(1, scope="sites", **aim), tmp_path / "run", sites)
    expected = {one.site: one.repair for one in Study.load(tmp_path / "open").answer().sites if one.own}
    found = {name: folder / THRESHOLDS for name, folder in sites.folders.items() if (folder / THRESHOLDS).exists()}
    assert found.keys() == expected.keys() and len({str(one) for one in expected.values()}) > 1
    for name, file in found.items():
        written = json.loads(file.read_text())
        assert written.pop("checksum") and written == expected[name]
        assert file.stat().st_mode & 0o077 == 0
    answers = [message for _, move, _, message in sites.seen if move == "score"]
    assert all(message.tensors.keys() == {"masked"} for message in answers)
    told = [{path.name for path in (tmp_path / name).rglob("*")} for name in ("run", "federation")]
    assert told[0] == told[1]  # the coordinator keeps nothing more than without thresholds of sites
    pair = [(tmp_path / name / "repair.json").read_text() for name in ("run", "federation")]
    assert pair[0] == pair[1]
    answer = Study.load(tmp_path / "run").answer()
    assert not answer.sites and any("in thresholds.json of its folder" in note for note in answer.notes)


def test_a_sites_own_thresholds_serve_in_its_copy_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_answers, "ENOUGH_ROWS", 3)
    sites = watched(tmp_path)
    led(secure(1, scope="sites", **AIM), tmp_path / "run", sites)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.copy(sites.folders["north"] / THRESHOLDS, tmp_path / "copy" / "repair.json")
    rows = people(50, 9)
    own, shared = (load_model(tmp_path / name).predict(rows, group=rows["sex"]) for name in ("copy", "run"))
    assert (own != shared).any()


def test_a_site_of_too_few_rows_keeps_no_thresholds_of_an_earlier_run(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    (sites.folders["north"] / THRESHOLDS).write_text("{}")
    led(secure(1, scope="sites", **AIM), tmp_path / "run", sites)
    assert not any((folder / THRESHOLDS).exists() for folder in sites.folders.values())


def test_a_site_that_sends_no_histograms_does_not_agree_to_a_secure_sum_of_them(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    file = sites.folders["west"] / "site.toml"
    replace(SiteConfig.read(file), histograms=False).write(file)
    led(secure(1, **AIM), tmp_path / "run", sites)
    assert "send no score histograms" in facts(tmp_path / "run")["west"]["refused"]
    assert Study.load(tmp_path / "run").answer().candidates

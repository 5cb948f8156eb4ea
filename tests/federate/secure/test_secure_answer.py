"""A fairness target under secure aggregation: the answer of the open run, from sums alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federate.makers import World, config
from tests.federate.secure.test_secure_rounds import led, secure, watched

from ffalm.errors import UserError
from ffalm.federate.federation_config import SiteConfig
from ffalm.federate.histogram_bytes import PARTS
from ffalm.report.answer_card import answer_card
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder

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


def test_a_site_that_sends_no_histograms_does_not_agree_to_a_secure_sum_of_them(tmp_path: Path) -> None:
    sites = watched(tmp_path)
    file = sites.folders["west"] / "site.toml"
    replace(SiteConfig.read(file), histograms=False).write(file)
    led(secure(1, **AIM), tmp_path / "run", sites)
    assert "send no score histograms" in facts(tmp_path / "run")["west"]["refused"]
    assert Study.load(tmp_path / "run").answer().candidates

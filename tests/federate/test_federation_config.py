"""federation.toml and site.toml: complete when written, checked when read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ffalm.algorithms import registry
from ffalm.errors import UserError
from ffalm.federate.federation_config import FederationConfig, LocalImages, SharedImages, SiteConfig

SMALL: dict[str, Any] = {"name": "h", "sites": ["a", "b"], "data": {"label": "y", "group": "g"}}


def test_the_written_federation_gives_the_same_one_back(tmp_path: Path) -> None:
    config = FederationConfig.parse(
        {
            **SMALL,
            "seed": 4,
            "rules": {"misfit": "wait", "min_group": 0},
            "data": {"label": "y", "group": "g", "favourable": 1, "groups": ["x", 2], "label_values": [0, 1]},
            "model": {"name": "mlp", "hidden": [8, 4]},
            "training": {"batch_size": "none"},
            "algorithm": {"name": "ffalm", "preset": "safe", "penalty": 3},
            "target": "eod <= 5%, impact_ratio >= 0.8",
            "repair": "randomised",
            "confidence": 0.9,
        }
    )
    config.write(tmp_path / "federation.toml")
    assert FederationConfig.read(tmp_path / "federation.toml") == config
    assert config.contender.label == "FFALM (safe)"
    assert config.target == "eod <= 0.05, impact_ratio >= 0.8"


def test_the_written_site_gives_the_same_one_back(tmp_path: Path) -> None:
    settings = {"source": "images", "folder": "pictures", "labels": "labels.csv", "size": 32}
    site = SiteConfig.parse({"name": "a", "data": settings, "split": {"column": "part", "seed": 2}})
    site.write(tmp_path / "site.toml")
    assert SiteConfig.read(tmp_path / "site.toml") == site
    assert isinstance(site.data, LocalImages)


def test_what_is_left_out_has_the_designs_defaults() -> None:
    config = FederationConfig.parse(SMALL)
    rules = config.rules
    assert (rules.min_sites, rules.deadline, rules.patience) == (2, 600.0, 600.0)
    endless = FederationConfig.parse({**SMALL, "rules": {"patience": math.inf, "outlier": math.inf}}).rules
    assert (endless.patience, endless.outlier) == (math.inf, math.inf)
    assert (rules.misfit, rules.min_group, rules.outlier) == ("go_on", 10, 10.0)
    assert config.algorithm.name == "ffalm" and config.training.rounds == 70


def test_images_have_a_size() -> None:
    shared = {"source": "images", "label": "y", "group": "g", "size": 32}
    assert FederationConfig.parse({**SMALL, "data": shared}).data == SharedImages("y", "g", size=32)


@pytest.mark.parametrize("host", ["fair.example", "node_1.local", "x", "10.0.0.5", "[fd00::5]", "[fe80::1%eth0]", "a."])
def test_a_coordinator_has_a_name_or_an_address_of_either_kind(host: str) -> None:
    assert FederationConfig.parse({**SMALL, "address": f"{host}:9"}).address == f"{host}:9"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"sites": []}, "at least one site"),
        ({"sites": ["a", "a"]}, "different names"),
        ({"sites": ["North", "north"]}, "different names"),
        ({"sites": ["north", "coordinator"]}, "cannot be named 'coordinator'"),
        ({"sites": ["../a", "b"]}, "letters, digits"),
        ({"address": "here"}, "HOST:PORT"),
        ({"address": "host:99999"}, "HOST:PORT"),
        ({"address": f"host:{'9' * 5000}"}, "HOST:PORT"),
        ({"address": "https://fair.example:9"}, "name a host as DNS does"),
        ({"address": "fair example:9"}, "name a host as DNS does"),
        ({"address": "münchen.example:9"}, "in ASCII"),
        ({"address": "0.0.0.0:9"}, "No site can call"),
        ({"address": "[::]:9"}, "No site can call"),
        ({"seed": -1}, "'seed' of federation must be 0 or more"),
        ({"rules": {"min_sites": 3}}, "asks for 3 sites, but the federation has 2"),
        ({"rules": {"min_sites": 0}}, "'min_sites' of rules must be 1 or more"),
        ({"rules": {"outlier": 1}}, "above 1"),
        ({"rules": {"deadline": 0}}, "above 0 seconds"),
        ({"logs": {"keep": 1000}}, "'keep' of logs must be at most 999"),
        ({"metrics": {"port": 65536}}, "'port' of metrics must be at most 65,535"),
        (
            {"data": {"source": "images", "label": "y", "group": "g", "size": 4}},
            "'size' of federation's data must be 8",
        ),
        ({"rules": {"misfit": "stop"}}, "must be one of go_on, wait"),
        ({"rules": {"min_site": 1}}, "did you mean 'min_sites'"),
        ({"data": {"source": "census"}}, "no data source of a federation 'census'"),
        ({"data": {"label": "y", "group": "y"}}, "different columns"),
        ({"data": {"label": "y", "group": "g", "groups": ["x"]}}, "at least two groups"),
        ({"data": {"label": "y", "group": "g", "label_values": [1]}}, "all values of the label"),
        ({"data": {"label": "y"}}, "needs the setting group"),
        ({"data": {"label": "y", "group": "g", "file": "rows.csv"}}, "no setting of federation's data 'file'"),
        ({"algorithm": {"name": "fedagv"}}, "did you mean 'fedavg'"),
        ({"algorithm": {"name": "qffl"}, "rules": {"aggregation": "median"}}, "q-FFL compares the sites' answers"),
        ({"algorithm": {"name": "fcfl"}, "rules": {"aggregation": "trimmed"}}, "FCFL compares the sites' answers"),
        ({"algorithm": {"name": "qffl"}, "rules": {"secure": True}}, "q-FFL needs every site's own answer"),
        ({"algorithm": {"name": "fcfl"}, "rules": {"secure": True}}, "FCFL needs every site's own answer"),
        ({"data": 3}, "must be a section"),
        ({"datum": {}}, "did you mean 'data'"),
        ({"target": "dp <= 0.05"}, "metric of a target"),
        ({"repair": "group"}, "did you mean 'groups'"),
        ({"repair": "blind", "scope": "sites"}, "one for all sites"),
        ({"confidence": 1.0}, "confidence of a target must be"),
        ({"target": "dpd <= 0.05", "privacy": {"noise": 1.0}}, "choose one of 'target' and"),
        *(
            (
                {"algorithm": algorithm, "privacy": {"noise": 1.0}, "rules": rules},
                "measures gaps on held-out rows, which sites",
            )
            for algorithm in ({"name": "lagrangian"}, {"name": "reductions"}, {"name": "ffalm", "gap": "held_out"})
            for rules in ({}, {"secure": True})
        ),
    ],
)
def test_a_mistake_in_federation_toml_is_told_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        FederationConfig.parse({**SMALL, **change})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "a"}, "needs the setting file"),
        ({"name": "a", "data": {"file": "x.csv"}, "split": {"test": 1.0}}, "leave rows to train on"),
        ({"name": "a", "data": {"file": "x.csv", "label": "y"}}, "no setting of site's data 'label'"),
        ({"data": {"file": "x.csv"}}, "needs the setting name"),
    ],
)
def test_a_mistake_in_site_toml_is_told_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        SiteConfig.parse(settings)


def test_plugins_are_looked_for_beside_the_file_and_register_their_algorithms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from ffalm.algorithms import Algorithm, register\n"
        "@register\n@dataclass(frozen=True)\n"
        "class Mine(Algorithm):\n    name: ClassVar[str] = 'mine_of_federation'\n    title: ClassVar[str] = 'Mine'\n"
    )
    plan = FederationConfig.parse(
        {**SMALL, "plugins": ["mine.py"], "algorithm": {"name": "mine_of_federation"}}, tmp_path
    )
    assert plan.algorithm.name in registry.algorithms()
    assert FederationConfig.parse(plan.settings()).settings() == plan.settings()

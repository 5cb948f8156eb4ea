"""`ffalm settings`, `ffalm models` and `ffalm init`."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ffalm.cli import study_commands
from ffalm.cli.setting_facts import configuration, sections
from ffalm.config import parse
from ffalm.errors import UserError
from ffalm.models import ARCHITECTURES
from ffalm.run_settings import Privacy, StudySettings, Training
from ffalm.system import toml

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_every_setting_of_a_study_is_listed_with_its_default_and_a_meaning() -> None:
    found = {one.name: {own.name: own for own in one.settings} for one in sections()}
    assert {one.name for one in dataclasses.fields(Training)} == found["training"].keys()
    assert {one.name for one in dataclasses.fields(Privacy)} == found["privacy"].keys()
    own = {one.name for one in dataclasses.fields(StudySettings)} - {"model", "training", "privacy"}
    assert own < found[""].keys()
    assert [(name, own.name) for name, every in found.items() for own in every.values() if not own.help] == []
    assert found["training"]["rounds"].default == 70
    assert found["privacy"]["noise"].required
    assert found["partition"]["kind"].flag == "--partition"


def test_settings_are_shown_by_section(cli: Cli) -> None:
    code, shown, _ = cli("settings", "training")
    assert code == 0
    assert "--local-epochs" in shown and "[privacy]" not in shown
    code, shown, _ = cli("settings", "--json")
    assert list(json.loads(shown)) == ["study", "data", "partition", "model", "training", "privacy"]
    code, _, said = cli("settings", "trainig")
    assert (code, said) == (2, "ffalm: There is no section of settings 'trainig': did you mean 'training'?\n")


def test_models_are_listed_with_their_settings(cli: Cli) -> None:
    code, shown, _ = cli("models")
    assert code == 0
    assert all(name in shown for name in (*ARCHITECTURES, "hidden", "--set model.weights"))
    facts = json.loads(cli("models", "--json")[1])
    assert facts["mlp"]["settings"][0]["default"] == [64]
    assert all(one["help"] for model in facts.values() for one in model["settings"])


def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """The studies that commands ask for from now on, and whether their learning rate is to be chosen; none is run."""
    seen: list[tuple[Any, bool]] = []

    def begun(config: Any, _: str, values: dict[str, Any], *__: object) -> None:
        seen.append((config, values["free_rate"]))
        raise UserError("That is enough.")

    monkeypatch.setattr(study_commands, "run_shown", begun)
    return seen


def test_init_writes_the_study_that_compare_makes_without_flags(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = asked_for(monkeypatch)
    file = tmp_path / "study.toml"
    code, said, _ = cli("init", file)
    assert code == 0 and f"ffalm compare --config {file}" in said
    cli("compare", "--config", file)
    cli("compare")
    assert seen[0] == seen[1]
    assert cli("init", file)[0] == 2


def test_an_edited_file_of_init_is_the_study_of_the_same_flags(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate is chosen for a table of the user's own, its owners are the clients, and candidates follow the target."""
    seen = asked_for(monkeypatch)
    (tmp_path / "loans.csv").write_text("income,branch,sex,paid\n1,north,f,yes\n2,south,m,no\n", encoding="utf-8")
    table = {
        "file": str(tmp_path / "loans.csv"),
        "label": "paid",
        "group": "sex",
        "favourable": "yes",
        "owner": "branch",
    }
    written = tomllib.loads(configuration())
    del written["partition"]["clients"], written["partition"]["alpha"]
    edited = written | {"data": {"source": "table", **table}, "target": "eod <= 0.1"}
    (tmp_path / "study.toml").write_text(toml.dumps(edited), encoding="utf-8")
    cli("compare", "--config", tmp_path / "study.toml")
    flags = [word for name, value in table.items() for word in (f"--{name}", value)]
    cli("compare", "--data", *flags[1:], "--target", "eod <= 0.1")
    assert seen[0] == seen[1]
    (config, free_rate), _ = seen
    assert free_rate and config.partition.kind == "silos"
    assert "lagrangian-eo-0.1" in {entry.key for entry in config.entries}


def test_a_file_that_names_algorithms_has_no_others_and_its_own_target_or_none(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = asked_for(monkeypatch)
    (tmp_path / "study.toml").write_text("[algorithms.fedavg]\n", encoding="utf-8")
    cli("compare", "--config", tmp_path / "study.toml")
    config, _ = seen[0]
    assert [entry.key for entry in config.entries] == ["fedavg"] and config.target is None


def test_the_sections_that_are_commented_out_are_good_too() -> None:
    lines = configuration().splitlines()
    for mark, length in (("# [privacy]", 7), ("# [algorithms.fedavg]", 100)):
        first = lines.index(mark)
        lines[first : first + length] = [line.removeprefix("#").lstrip() for line in lines[first : first + length]]
    config = parse(tomllib.loads("\n".join(lines)))
    assert config.privacy == Privacy(noise=1.0)
    assert len(config.entries) == 6

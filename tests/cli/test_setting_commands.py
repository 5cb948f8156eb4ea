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


def test_init_writes_the_study_that_compare_makes_without_flags(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def begun(config: Any, *_: object) -> None:
        seen.append(config)
        raise UserError("That is enough.")

    monkeypatch.setattr(study_commands, "run_shown", begun)
    file = tmp_path / "study.toml"
    code, said, _ = cli("init", file)
    assert code == 0 and f"ffalm compare --config {file}" in said
    cli("compare", "--config", file)
    cli("compare")
    assert seen[0] == seen[1]
    assert cli("init", file)[0] == 2


def test_the_sections_that_are_commented_out_are_good_too() -> None:
    lines = configuration().splitlines()
    first = lines.index("# [privacy]")
    lines[first : first + 7] = [line.removeprefix("# ") for line in lines[first : first + 7]]
    assert parse(tomllib.loads("\n".join(lines))).privacy == Privacy(noise=1.0)

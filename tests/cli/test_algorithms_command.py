"""`ffalm algorithms` lists and describes what is registered, ours and a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.contract import task_of

import ffalm
from ffalm.algorithms import Algorithm, registry
from ffalm.cli.algorithm_facts import facts_of
from ffalm.engines import ENGINES
from ffalm.errors import UserError

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

OURS = [cls for cls in ffalm.algorithms().values() if cls.__module__.startswith("ffalm.")]


@pytest.mark.parametrize("cls", OURS)
def test_every_algorithm_of_ours_has_a_summary_a_paper_limits_and_help_for_each_setting(cls: type[Algorithm]) -> None:
    facts = facts_of(cls)
    assert facts.summary.endswith(".") and facts.paper and facts.limits.endswith(".")
    assert all(one.help.endswith(".") and one.takes and not one.required for one in facts.settings)


@pytest.mark.parametrize("cls", OURS)
def test_the_number_of_groups_is_what_the_algorithm_takes(cls: type[Algorithm]) -> None:
    task = task_of(groups=3)
    try:
        cls().start(task, torch.ones(2, 2, 3, dtype=torch.int64))
        taken = True
    except UserError:
        taken = False
    assert taken == (facts_of(cls).most_groups is None)


def test_all_algorithms_are_listed(cli: Cli) -> None:
    code, shown, _ = cli("algorithms")
    assert code == 0
    assert all(name in shown for name in ffalm.algorithms())
    assert "The engine graphed does not run fcfl." in shown and "The engine loop" not in shown
    facts = json.loads(cli("algorithms", "--json")[1])
    assert facts.keys() == ffalm.algorithms().keys()
    assert facts["fedavg"]["engines"] == dict.fromkeys(ENGINES)
    assert facts["fairfed"]["most_groups"] == 2 and facts["ffalm"]["most_groups"] is None
    assert {name for name, one in facts.items() if one["secure"]} >= {"fedavg", "ffalm", "scaffold"}


def test_an_algorithm_that_needs_single_clients_vectors_says_where_it_cannot_run(cli: Cli) -> None:
    facts = json.loads(cli("algorithms", "fcfl", "--json")[1])
    assert "upload gradients instead of training" in facts["engines"]["graphed"]
    assert (facts["engines"]["loop"], facts["engines"]["flower"]) == (None, None)
    assert (facts["federated"], facts["secure"], facts["private"]) == (True, False, False)
    facts = json.loads(cli("algorithms", "qffl", "--json")[1])
    assert (facts["federated"], facts["secure"], facts["private"]) == (True, False, False)


@pytest.mark.parametrize("name", ["central", "local"])
def test_a_reference_runs_in_no_real_federation(cli: Cli, name: str) -> None:
    facts = json.loads(cli("algorithms", name, "--json")[1])
    assert (facts["federated"], facts["secure"], facts["private"]) == (False, False, False)


def test_an_algorithm_that_measures_held_out_rows_says_what_privacy_asks_of_it_at_sites(cli: Cli) -> None:
    assert "with sites if gaps are measured on training rows" in " ".join(cli("algorithms", "lagrangian")[1].split())
    assert "training rows" not in cli("algorithms", "fedavg")[1]


def test_one_algorithm_is_described_with_its_settings_presets_and_paper(cli: Cli) -> None:
    code, shown, _ = cli("algorithms", "ffalm")
    assert code == 0
    for word in ("Dunda and Song", "dual_lr_growth", "1.05", "Preset safe (the default)", "full or last_batch"):
        assert word in shown
    assert cli("algorithms", "fcff")[0] == 2


def test_an_algorithm_of_a_plugin_is_described_from_its_class(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import ffalm\n"
        "@ffalm.register\n"
        "@dataclass(frozen=True)\n"
        "class Mine(ffalm.Algorithm):\n"
        "    name: ClassVar[str] = 'mine_of_listing'\n"
        "    title: ClassVar[str] = '[Mine]'\n"
        "    strength: float\n"
        "    bound: float | None = None\n",
        encoding="utf-8",
    )
    code, shown, _ = cli("algorithms", "mine_of_listing", "--plugin", tmp_path / "mine.py")
    assert code == 0
    assert "[Mine]" in shown and "needed" in shown and "number or none" in shown and "by settings" in shown
    assert cli("algorithms", "--plugin", tmp_path / "mine.py")[0] == 0

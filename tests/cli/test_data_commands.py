"""`ffalm data` lists, describes, checks and fetches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ffalm.data import SOURCES

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_every_source_is_listed(cli: Cli) -> None:
    code, shown, _ = cli("data")
    assert code == 0
    assert all(name in shown for name in SOURCES)
    facts = json.loads(cli("data", "--json")[1])
    assert set(facts) == set(SOURCES)
    assert all("favourable" in source["asks"] for source in facts.values())


def test_a_source_describes_its_settings(cli: Cli) -> None:
    code, shown, _ = cli("data", "describe", "utkface")
    assert code == 0
    assert "black_vs_rest" in shown
    assert cli("data", "describe", "utkfaces")[0] == 2


def test_a_users_file_is_checked_and_shown_by_group(cli: Cli, loans: Path) -> None:
    mine = ["--data", loans, "--label", "paid", "--group", "sex", "--favourable", "yes", "--owner", "branch"]
    code, shown, _ = cli("data", "check", *mine)
    assert code == 0
    assert "paid" in shown
    assert "north" in shown
    facts = json.loads(cli("data", "check", *mine, "--json")[1])
    assert sum(facts["rows"].values()) == 400
    assert facts["task"]["label_names"][facts["task"]["favourable"]] == "yes"


def test_an_unknown_download_is_refused(cli: Cli, tmp_path: Path) -> None:
    code, _, said = cli("data", "get", "adullt", "--root", tmp_path)
    assert code == 2
    assert "did you mean 'adult'" in said

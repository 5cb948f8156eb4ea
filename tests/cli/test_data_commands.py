"""`ffalm data` lists, describes, checks and fetches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ffalm.cli.setting_words import settings_of
from ffalm.data import SOURCES, source_class

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
    assert "400 rows" in shown and "Features read as numbers: income" in shown
    assert "The group (sex) is a feature of the model" in shown
    assert "…" not in shown and "validation" in shown.split()
    hidden = cli("data", "check", *mine, "--set", "data.use_group_as_feature=false")[1]
    assert "is a feature of the model" not in hidden
    facts = json.loads(cli("data", "check", *mine, "--json")[1])
    assert facts["columns"]["income"] == "number" and facts["columns"]["sex"] == ["f", "m"]
    assert sum(facts["rows"].values()) == 400
    assert facts["task"]["label_names"][facts["task"]["favourable"]] == "yes"


def test_a_file_without_a_label_or_a_group_is_answered_with_its_columns(cli: Cli, loans: Path) -> None:
    code, _, said = cli("data", "check", "--data", loans)
    assert code == 2 and "is the label and which the group: its columns are 'branch', 'income'" in said


def test_an_unknown_download_is_refused(cli: Cli, tmp_path: Path) -> None:
    code, _, said = cli("data", "get", "adullt", "--root", tmp_path)
    assert code == 2
    assert "did you mean 'adult'" in said
    assert "choose one of acs, adult, compas" in cli("data", "get", "utkface", "--root", tmp_path)[2]


def test_settings_are_described_in_words(cli: Cli) -> None:
    shown = cli("data", "describe", "table")[1]
    assert "list of text" in shown
    assert "refuse or mean" in shown
    assert "tuple" not in shown
    assert "Value" not in shown


@pytest.mark.parametrize("name", SOURCES)
def test_every_setting_of_a_source_has_a_meaning(name: str) -> None:
    assert [one.name for one in settings_of(source_class(name)) if not one.help] == []


def test_brackets_in_a_users_names_are_shown_as_they_are(cli: Cli, loans: Path) -> None:
    text = loans.read_text().replace("sex", "[sex]").replace(",f,", ",[/f],").replace(",m,", ",[m],")
    odd = loans.with_name("loans[a].csv")
    odd.write_text(text)
    mine = ["--data", odd, "--label", "paid", "--group", "[sex]", "--favourable", "yes"]
    code, shown, _ = cli("data", "check", *mine)
    assert code == 0
    assert all(part in shown for part in ("loans[a]", "[sex]", "[/f]", "[m]"))
    few = ["--rounds", "1", "--clients", "2", "--workers", "1", "--algorithm", "fedavg"]
    code, shown, said = cli("run", *mine, *few, "--out", loans.parent / "out[b]")
    assert code == 0
    assert "out[b]" in shown
    assert "[/f]" in said


def test_many_groups_fit_on_a_terminal_one_a_line(cli: Cli, loans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    monkeypatch.setenv("COLUMNS", "80")
    table = pd.read_csv(loans)
    table["age"] = [f"{10 * (number % 8) + 18} and up" for number in range(len(table))]
    table.to_csv(loans, index=False)
    code, shown, _ = cli("data", "check", "--data", loans, "--label", "paid", "--group", "age", "--favourable", "yes")
    assert code == 0
    assert "…" not in shown
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()]
    assert [name for name, *_ in lines if name.endswith("and up")] == [
        f"{10 * number + 18} and up" for number in range(8)
    ]
    (counts,) = (cells[1::2] for cells in lines if cells[0] == "all")
    assert counts == ["280", "40", "80"]

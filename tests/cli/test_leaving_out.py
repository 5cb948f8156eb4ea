"""`--leave-out each`, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_every_branch_is_left_out_in_turn_and_the_command_resumes(cli: Cli, loans: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--data", loans, "--label", "paid", "--group", "sex", "--favourable", "yes", "--owner", "branch"]
    flags += ["--rounds", "1", "--algorithm", "central", "--model", "linear", "--engine", "loop", "--workers", "1"]
    command = ["run", *flags, "--leave-out", "each", "--out", out]
    code, shown, told = cli(*command)
    assert code == 0, told
    assert "Leave one site out" in shown and "without-west" in told
    assert all(site in shown for site in ("north", "south", "west", "Central"))
    code, shown, _ = cli("run", "--out", out, "--resume", "--json", "--quiet")
    again = json.loads(shown)
    assert code == 0 and [one["site"] for one in again["sites"]] == ["north", "south", "west"]
    assert sum(one["rows"] for one in again["sites"]) == 400
    code, _, told = cli(*command)
    assert code == 2 and "is not empty" in told
    code, _, told = cli(*command, "--resume", "--rounds", "2")
    assert code == 2 and "made with other settings" in told
    assert cli("run", "--out", out, "--resume", "--quiet")[0] == 0  # its settings are still there
    code, shown, _ = cli("report", out / "without-west")
    assert code == 0 and (out / "without-west" / "report.html").exists()


def test_a_folder_of_something_else_is_not_written_to(cli: Cli, loans: Path, tmp_path: Path) -> None:
    flags = ["--data", loans, "--label", "paid", "--group", "sex", "--favourable", "yes", "--owner", "branch"]
    flags += ["--rounds", "1", "--algorithm", "fedavg", "--model", "linear", "--engine", "loop", "--workers", "1"]
    assert cli("run", *flags, "--out", tmp_path / "study")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, reason in (("study", "made with other settings"), ("mine", "holds no study to resume")):
        code, _, told = cli("run", *flags, "--leave-out", "each", "--out", tmp_path / name, "--resume")
        assert code == 2 and reason in told
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_data_that_is_not_there_leaves_no_folder_behind(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--data", "gone.csv", "--label", "paid", "--group", "sex", "--favourable", "yes", "--owner", "branch"]
    code, _, told = cli("compare", *flags, "--leave-out", "each")
    assert code == 2 and "There is no file" in told
    assert not list(tmp_path.iterdir())

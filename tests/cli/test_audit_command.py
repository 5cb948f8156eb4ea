"""`ffalm audit` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.auditing.test_fairness_audit import scored

from ffalm import __version__
from ffalm.cli import run

COLUMNS = ["--label", "paid", "--group", "race", "--favourable", "yes"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("audit") / "scored.csv"
    scored().to_csv(path, index=False)
    return str(path)


def test_tables_and_sentences_are_printed_and_the_page_written(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "audit.html"
    assert run(["audit", file, *COLUMNS, "--score", "score", "--group", "sex", "--out", str(page)]) == 0
    told = capsys.readouterr().out
    assert "Gaps by race" in told and "Groups of race, sex" in told and "Threshold sweep" in told
    assert page.exists()


def test_a_file_of_decisions_alone_is_audited_and_its_page_names_it(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "audit.html"
    decisions = ["audit", file, "--prediction", "said", "--group", "race", "--favourable", "yes"]
    assert run([*decisions, "--fail-if", "dpd > 0.9", "--out", str(page)]) == 0
    told = capsys.readouterr().out
    assert "True outcomes were not given" in told and "EOD" not in told
    assert "Passed: no condition holds (dpd > 0.9)." in told
    text = page.read_text(encoding="utf-8")
    assert "scored.csv" in text and f"Made by ffalm {__version__}" in text


def test_a_condition_that_holds_ends_with_code_3(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", file, *COLUMNS, "--prediction", "said", "--json", "--fail-if"]
    assert run([*arguments, "dpd > 0.0001", "--fail-if", "accuracy < 0.1"]) == 3
    assert [one["condition"] for one in json.loads(capsys.readouterr().out)["failures"]] == ["dpd > 0.0001"]
    assert run([*arguments, "dpd > 0.99"]) == 0


def test_a_file_as_spreadsheets_of_other_languages_write_it(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "décisions.csv"
    frame = scored().assign(race=lambda table: table["race"].replace({"a": "ä"}))
    frame.to_csv(there, index=False, sep=";", decimal=",", encoding="latin-1")
    frame.to_csv(usual := tmp_path / "usual.csv", index=False)
    arguments = [*COLUMNS, "--score", "score", "--json"]
    assert run(["audit", str(there), *arguments]) == 2
    assert "(--encoding)" in capsys.readouterr().err
    assert run(["audit", str(there), *arguments, "--encoding", "latin-1"]) == 2
    assert "set decimal to ',' (--decimal ,)" in capsys.readouterr().err
    assert run(["audit", str(there), *arguments, "--encoding", "latin-1", "--decimal", ","]) == 0
    found = json.loads(capsys.readouterr().out)["groupings"]
    assert run(["audit", str(usual), *arguments]) == 0
    assert found == json.loads(capsys.readouterr().out)["groupings"]
    assert run(["audit", str(usual), *arguments, "--decimal", "x"]) == 2
    assert "a dot or a comma" in capsys.readouterr().err


def test_mistakes_end_with_code_2_and_one_sentence(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", file, *COLUMNS]) == 2
    assert "there are neither" in capsys.readouterr().err
    assert run(["audit", file, *COLUMNS, "--prediction", "said", "--fail-if", "dpd"]) == 2
    assert "is not understood" in capsys.readouterr().err

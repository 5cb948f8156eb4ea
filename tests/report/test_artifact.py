from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ffalm.report.artifact import Artifact, write
from ffalm.report.tables import Column, Section, Table, row


@pytest.fixture
def artifact() -> Artifact:
    rows = [row("one, two", "1.0"), row("three", "-3")]
    table = Table("A table", [Column("claim"), Column("value")], [Section(rows)])
    return Artifact("thing", "A title", [table], ["Mind the gap."], ["An open question: answered."])


def test_the_markdown_has_title_table_notes_and_choices(artifact: Artifact, tmp_path: Path) -> None:
    lines = write(artifact, tmp_path).files["md"].read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# A title"
    assert lines[4:8] == ["| claim | value |", "| --- | --- |", "| one, two | 1.0 |", "| three | -3 |"]
    assert "- Mind the gap." in lines
    assert lines[-1] == "- An open question: answered."


def test_the_csv_is_read_back_whole(artifact: Artifact, tmp_path: Path) -> None:
    text = write(artifact, tmp_path).files["csv"].read_text(encoding="utf-8")
    assert list(csv.reader(text.splitlines())) == [["claim", "value"], ["one, two", "1.0"], ["three", "-3"]]


def test_files_are_written_and_named(artifact: Artifact, tmp_path: Path) -> None:
    written = write(artifact, tmp_path / "made" / "for it", chart="<svg></svg>", about="A picture")
    assert sorted(path.name for path in written.files.values()) == [
        *("thing.csv", "thing.md", "thing.svg", "thing.tex"),
    ]
    assert all(path.stat().st_size > 0 for path in written.files.values())
    assert "![A picture](thing.svg)" in written.files["md"].read_text(encoding="utf-8")

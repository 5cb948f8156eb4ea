from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

from ffalm.report.artifact import Artifact, write
from ffalm.report.tables import Column, Section, Table, row

CHART: dict[str, Any] = {"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a"}}}


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
    written = write(artifact, tmp_path / "made" / "for it", chart=lambda: CHART, about="A picture")
    assert sorted(path.name for path in written.files.values()) == [
        *("thing.csv", "thing.md", "thing.pdf", "thing.png", "thing.tex"),
    ]
    assert all(path.stat().st_size > 0 for path in written.files.values())
    assert "![A picture](thing.png)" in written.files["md"].read_text(encoding="utf-8")


def test_without_a_chart_library_the_table_is_written_and_a_note_says_what_is_missing(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    written = write(artifact, tmp_path, chart=lambda: CHART)
    assert sorted(written.files) == ["csv", "md", "tex"]
    assert "vl_convert is not installed here" in written.notes[-1]
    assert written.notes[-1] in written.files["md"].read_text(encoding="utf-8")

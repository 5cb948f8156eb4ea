from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

from ffalm.theory.findings import Findings, write

CHART: dict[str, Any] = {"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a"}}}


@pytest.fixture
def findings() -> Findings:
    return Findings("A title", ["claim", "value"], [["one, two", "1.0"], ["three", "-3"]], ["Mind the gap."])


def test_the_markdown_has_title_table_and_notes(findings: Findings) -> None:
    lines = findings.markdown().splitlines()
    assert lines[0] == "# A title"
    assert lines[2:6] == ["| claim | value |", "| --- | --- |", "| one, two | 1.0 |", "| three | -3 |"]
    assert lines[-1] == "- Mind the gap."


def test_the_csv_is_read_back_whole(findings: Findings) -> None:
    assert list(csv.reader(findings.csv().splitlines())) == [findings.columns, *findings.rows]


def test_files_are_written_and_named(findings: Findings, tmp_path: Path) -> None:
    written = write(findings, tmp_path / "made" / "for it", "thing", lambda: CHART)
    assert sorted(written.files) == ["thing.csv", "thing.md", "thing.pdf", "thing.png"]
    assert all(path.stat().st_size > 0 for path in written.files.values())
    assert written.rows == findings.rows


def test_without_a_chart_library_the_table_is_written_and_the_lack_is_told(
    findings: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    written = write(findings, tmp_path, "thing", lambda: CHART)
    assert sorted(written.files) == ["thing.csv", "thing.md"]
    assert "vl_convert is not installed here" in written.notes[-1]
    assert written.notes[-1] in written.files["thing.md"].read_text(encoding="utf-8")


def test_what_the_room_offers_is_two_functions() -> None:
    import ffalm.theory
    import ffalm.theory.measured_rate
    import ffalm.theory.paper_example

    assert callable(ffalm.theory.example)  # no module of the same name may come to hide them
    assert callable(ffalm.theory.rate)

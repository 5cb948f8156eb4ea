from __future__ import annotations

import builtins
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.report.makers import run, study

from ffalm.outcome import StudyOutcome
from ffalm.report import write_report

ALL = ["tables.md", "tables.tex", "tables.csv", "curves.png", "curves.pdf", "report.html"]


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which vl-convert is not installed."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "vl_convert":
            raise ModuleNotFoundError("No module named 'vl_convert'", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_every_file_is_written_whole_and_nothing_else_is_left(compared: StudyOutcome, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    files = write_report(compared, tmp_path / "new" / "folder")
    assert list(files) == ALL
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(ALL)
    assert files["curves.png"].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert files["curves.pdf"].read_bytes().startswith(b"%PDF-")
    html = files["report.html"].read_text(encoding="utf-8")
    assert len(html) < 2_000_000
    numbers = [json.loads(text) for text in re.findall(r'application/json">(.*?)</script>', html, re.S)]
    assert [[curve["name"] for curve in panel] for panel in numbers] == [["FedAvg", "FFALM"]] * 3 + [["dual 1"]]
    assert len(numbers[0][0]["points"]) == 3
    around = re.sub(r"(<script[^>]*>).*?</script>", r"\1", html, flags=re.S)
    assert re.findall(r'(?:src|href)="(?!#|data:)', around) == []


def test_a_label_cannot_close_the_script_that_holds_the_charts(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    history = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.6}]
    hostile = study(run("</script><script>alert(1)</script>", 0, 0.8, 0.1, 0.1, history=history))
    html = write_report(hostile, tmp_path)["report.html"].read_text(encoding="utf-8")
    assert "<script>alert(1)" not in html


def test_without_vl_convert_the_page_has_its_curves_and_says_why_there_is_no_png(
    compared: StudyOutcome, tmp_path: Path, no_charts: None
) -> None:
    (tmp_path / "curves.png").write_bytes(b"of an earlier study")
    files = write_report(compared, tmp_path)
    assert list(files) == ["tables.md", "tables.tex", "tables.csv", "report.html"]
    assert not (tmp_path / "curves.png").exists()
    html = files["report.html"].read_text(encoding="utf-8")
    assert "vl_convert is not installed here" in html
    assert "Round by round" in html


def test_a_study_without_history_has_no_curves_and_needs_none(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    files = write_report(study(run("A", 0, 0.8, 0.1, 0.1)), tmp_path)
    assert "curves.png" not in files
    assert "report.html" in files


def test_a_report_replaces_the_one_before(tmp_path: Path, no_charts: None) -> None:
    write_report(study(run("Old", 0, 0.8)), tmp_path)
    write_report(study(run("New", 0, 0.8)), tmp_path)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "New" in text
    assert "Old" not in text


def test_a_report_neither_imports_altair_nor_starts_a_javascript_engine(
    compared: StudyOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.setattr(vl_convert, "vegalite_to_svg", None)
    assert "curves.png" in write_report(compared, tmp_path)

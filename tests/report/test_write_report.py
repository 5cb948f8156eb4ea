from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from tests.report.makers import run, study

from ffalm.outcome import StudyOutcome
from ffalm.report import write_report

ALL = ["tables.md", "tables.tex", "tables.csv", "curves.svg", "report.html"]


def test_every_file_is_written_whole_and_nothing_else_is_left(compared: StudyOutcome, tmp_path: Path) -> None:
    files = write_report(compared, tmp_path / "new" / "folder")
    assert list(files) == ALL
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(ALL)
    assert ElementTree.parse(files["curves.svg"]).getroot().tag.endswith("svg")
    html = files["report.html"].read_text(encoding="utf-8")
    assert len(html) < 2_000_000
    numbers = [json.loads(text) for text in re.findall(r'application/json">(.*?)</script>', html, re.S)]
    assert [[curve["name"] for curve in panel] for panel in numbers] == [["FedAvg", "FFALM"]] * 3 + [["dual 1"]]
    assert len(numbers[0][0]["points"]) == 3
    around = re.sub(r"(<script[^>]*>).*?</script>", r"\1", html, flags=re.S)
    assert re.findall(r'(?:src|href)="(?!#|data:)', around) == []


def test_a_label_cannot_close_the_script_that_holds_the_charts(tmp_path: Path) -> None:
    history = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.6}]
    hostile = study(run("</script><script>alert(1)</script>", 0, 0.8, 0.1, 0.1, history=history))
    html = write_report(hostile, tmp_path)["report.html"].read_text(encoding="utf-8")
    assert "<script>alert(1)" not in html


def test_a_study_without_history_has_no_curves_and_needs_none(tmp_path: Path) -> None:
    (tmp_path / "curves.svg").write_bytes(b"of an earlier study")
    (tmp_path / "curves.png").write_bytes(b"a drawing of the user's own")
    files = write_report(study(run("A", 0, 0.8, 0.1, 0.1)), tmp_path)
    assert "curves.svg" not in files
    assert not (tmp_path / "curves.svg").exists() and (tmp_path / "curves.png").exists()
    assert "report.html" in files


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    write_report(study(run("Old", 0, 0.8)), tmp_path)
    write_report(study(run("New", 0, 0.8)), tmp_path)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "New" in text
    assert "Old" not in text

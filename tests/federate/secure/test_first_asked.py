"""The number with which a question was first asked stands until the next question."""

from __future__ import annotations

from pathlib import Path

from ffalm.federate.secure.first_asked import FILE, FirstAsked


def test_a_question_keeps_its_first_number_also_after_a_restart(tmp_path: Path) -> None:
    first = FirstAsked(tmp_path)
    assert [first.number("train 1", now) for now in (35.0, 31.0)] == [35.0, 35.0]
    assert FirstAsked(tmp_path).number("train 1", 50.0) == 35.0
    assert first.number("train 2", 50.0) == 50.0
    assert FirstAsked(tmp_path).number("train 2", 7.0) == 50.0


def test_a_damaged_file_is_as_none_and_without_a_folder_a_process_remembers_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{half")
    assert FirstAsked(tmp_path).number("train 1", 3.0) == 3.0
    alone = FirstAsked()
    assert [alone.number("score", now) for now in (1.5, 2.5)] == [1.5, 1.5]

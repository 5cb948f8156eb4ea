"""The number and the sites with which a question was first asked stand until the next question."""

from __future__ import annotations

from pathlib import Path

from ffalm.federate.secure.first_asked import FILE, FirstAsked


def test_a_question_keeps_its_first_number_also_after_a_restart(tmp_path: Path) -> None:
    first = FirstAsked(tmp_path)
    assert [first.number("train 1", now) for now in (35.0, 31.0)] == [35.0, 35.0]
    assert FirstAsked(tmp_path).number("train 1", 50.0) == 35.0
    assert first.number("train 2", 50.0) == 50.0
    assert FirstAsked(tmp_path).number("train 2", 7.0) == 50.0


def test_the_sites_of_a_revealed_sum_are_kept_beside_its_number(tmp_path: Path) -> None:
    first = FirstAsked(tmp_path)
    assert first.number("train 1", 35.0) == 35.0 and not first.summed("train 1")
    first.reveal("train 1", ["north", "south"])
    first.reveal("train 1", ["north", "south", "west"])
    again = FirstAsked(tmp_path)
    assert again.summed("train 1") == ("north", "south") and again.number("train 1", 7.0) == 35.0
    assert not again.summed("train 2")
    again.refused("train 1")
    assert not FirstAsked(tmp_path).summed("train 1") and FirstAsked(tmp_path).number("train 1", 7.0) == 35.0


def test_a_damaged_file_is_as_none_and_without_a_folder_a_process_remembers_alone(tmp_path: Path) -> None:
    for damaged in ("{half", "[]", '{"purpose": 1}', '{"other": ""}'):
        (tmp_path / FILE).write_text(damaged)
        assert FirstAsked(tmp_path).number("train 1", 3.0) == 3.0
    alone = FirstAsked()
    assert [alone.number("score", now) for now in (1.5, 2.5)] == [1.5, 1.5]


def test_proofs_are_kept_with_the_question_also_after_a_restart(tmp_path: Path) -> None:
    first = FirstAsked(tmp_path)
    first.reveal("train 1", ["north", "south"])
    first.prove("train 1", ["one"])
    first.prove("train 1", ["two"])
    again = FirstAsked(tmp_path)
    assert again.proofs("train 1") == ("one", "two") and again.summed("train 1") == ("north", "south")
    assert not again.proofs("train 2")

"""Files that differ from their checksums are named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ffalm.studies import checksums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    contents = {"a": b"one", "b": b"two"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / checksums.FILE).write_text(checksums.listing(contents, round=3))
    return tmp_path


def test_the_file_that_does_not_fit_is_named(folder: Path) -> None:
    assert checksums.damaged(folder) is None
    assert checksums.stored(folder)["round"] == 3
    (folder / "b").write_bytes(b"twO")
    assert checksums.damaged(folder) == "b"
    (folder / "a").unlink()
    assert checksums.damaged(folder) == "a"


def test_checksums_that_cannot_be_read_are_damage_and_none_at_all_is_an_earlier_version(folder: Path) -> None:
    (folder / checksums.FILE).write_text("{")
    assert checksums.damaged(folder) == checksums.FILE
    (folder / checksums.FILE).unlink()
    assert checksums.damaged(folder) is None


def test_values_vouch_for_themselves(folder: Path) -> None:
    file, values = folder / "values.json", {"a": [1, 2.5, None]}
    text = checksums.with_checksum(values)
    file.write_text(text)
    assert checksums.read_checked(file) == values
    file.write_text('{"a": [1, 2.5, null]}')  # by a version that wrote no checksum
    assert checksums.read_checked(file) == values
    file.write_text(text.replace("2.5", "2.6"))
    with pytest.raises(ValueError, match="checksum"):
        checksums.read_checked(file)


def test_values_that_are_not_finite_or_no_lists_vouch_for_what_is_written(folder: Path) -> None:
    (folder / "values.json").write_text(checksums.with_checksum({"a": (1.0, math.nan)}))
    assert checksums.read_checked(folder / "values.json") == {"a": [1.0, None]}

"""Files that differ from their checksums are named."""

from __future__ import annotations

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


def test_values_vouch_for_themselves() -> None:
    values = {"a": [1, 2.5, None]}
    assert checksums.unsealed(checksums.sealed(values)) == values
    assert checksums.unsealed(values) == values
    with pytest.raises(ValueError, match="checksum"):
        checksums.unsealed({**checksums.sealed(values), "a": [1, 2.6, None]})

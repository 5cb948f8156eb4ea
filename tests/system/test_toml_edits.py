"""Settings are replaced in a file that a person has edited, and the rest stays."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ffalm.errors import UserError
from ffalm.system import toml
from ffalm.system.toml import set_values

TEXT = '# agreed in May\nname = "h"\nsites = [\n  "a",  # the first\n  "b",\n]\n\n[rules]\nsites = 1\n'


def test_a_list_over_several_lines_is_replaced_and_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(TEXT)
    set_values(file, {"sites": ["a", "b", "c"], "removed": ["b"]})
    assert tomllib.loads(file.read_text()) == {
        **tomllib.loads(TEXT), "sites": ["a", "b", "c"], "removed": ["b"],
    }  # fmt: skip
    assert "# agreed in May" in file.read_text()


def test_a_setting_that_cannot_be_found_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text('"sites" = ["a"]\n')
    with pytest.raises(UserError, match=r"sites .* cannot be replaced"):
        set_values(file, {"sites": ["b"]})
    assert toml.read(file) == {"sites": ["a"]}

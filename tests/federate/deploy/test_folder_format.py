"""Folders of older versions are migrated, those of newer ones refused."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="real federations need the extra 'flower'")

from ffalm.errors import UserError
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.folder_format import CURRENT, check_format, read_format, upgrade


def test_a_new_folder_needs_nothing(clinics: FederationFolder) -> None:
    assert read_format(clinics.path) == read_format(clinics.site("north")) == CURRENT
    assert upgrade(clinics.path) == upgrade(clinics.site("north")) == []


def test_an_old_folder_loses_message_contents_and_is_closed_to_others(clinics: FederationFolder) -> None:
    (clinics.coordinator / "format.json").unlink()
    with sqlite3.connect(clinics.coordinator / "state.db") as state:
        state.execute("CREATE TABLE objects (content BLOB)")
        state.execute("INSERT INTO objects VALUES ('what a site answered')")
    state.close()
    (clinics.coordinator / "ca.key").chmod(0o644)
    clinics.run.mkdir(mode=0o755)
    assert read_format(clinics.path) == 1
    assert upgrade(clinics.path)[-1] == "format 1 to 2"
    assert b"what a site answered" not in (clinics.coordinator / "state.db").read_bytes()
    assert {path.stat().st_mode & 0o077 for path in (clinics.coordinator / "ca.key", clinics.run)} == {0}
    assert upgrade(clinics.path) == []


def test_a_newer_folder_and_a_damaged_number_are_refused(clinics: FederationFolder) -> None:
    file: Path = clinics.coordinator / "format.json"
    file.write_text(json.dumps({"format": CURRENT + 1}))
    for use in (check_format, upgrade):
        with pytest.raises(
            UserError, match=f"has format {CURRENT + 1}, and ffalm .* up to {CURRENT}: install the newer"
        ):
            use(clinics.path)
    file.write_text("{")
    with pytest.raises(UserError, match="restore it from a backup"):
        check_format(clinics.path)

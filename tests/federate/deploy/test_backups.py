"""A backup is whole, checked and private; restoring one leads nowhere but into its folder."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="real federations need the extra 'flower'")

import ffalm
from ffalm.errors import UserError
from ffalm.federate.deploy import backups
from ffalm.federate.deploy.backups import MANIFEST, back_up, restore
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.membership import add_site


def _contents(folder: Path) -> dict[str, bytes]:
    left_out = ("coordinator/app/", "coordinator/home/")
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(left_out)}


def test_what_was_backed_up_is_restored_with_an_open_database(clinics: FederationFolder, tmp_path: Path) -> None:
    (clinics.coordinator / "home").mkdir()
    (clinics.coordinator / "home" / "config.toml").write_text("")
    ledger = clinics.site("north") / ".answered" / "run.json"
    ledger.parent.mkdir()
    ledger.write_text("{}")
    expected = _contents(clinics.path)
    (clinics.path / ".federation.toml.123").write_text("half")
    state = sqlite3.connect(clinics.coordinator / "state.db")
    state.execute("PRAGMA journal_mode = WAL")
    state.execute("CREATE TABLE nodes (number INTEGER)")
    state.execute("INSERT INTO nodes VALUES (7)")
    state.commit()
    try:
        manifest = back_up(clinics, tmp_path / "b.tar")
    finally:
        state.close()
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert manifest["ffalm"] == ffalm.__version__
    assert restore(tmp_path / "b.tar", tmp_path / "again") == manifest
    found = _contents(tmp_path / "again")
    database = found.pop("coordinator/state.db")
    assert found == expected and database
    with sqlite3.connect(tmp_path / "again" / "coordinator" / "state.db") as copy:
        assert copy.execute("SELECT number FROM nodes").fetchall() == [(7,)]
    assert (tmp_path / "again" / "coordinator" / "ca.key").stat().st_mode & 0o777 == 0o600
    folders = [path for path in (tmp_path / "again").rglob("*") if path.is_dir() and path.name != "app"]
    assert folders and {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert str(tmp_path / "again") in (tmp_path / "again" / "coordinator" / "app" / "pyproject.toml").read_text()


def test_a_site_named_home_is_backed_up_and_only_the_homes_of_processes_are_left_out(
    clinics: FederationFolder, tmp_path: Path
) -> None:
    add_site(clinics, "home")
    expected = {name: content for name, content in _contents(clinics.path).items() if not name.endswith(".lock")}
    for place in (clinics.coordinator, clinics.site("north"), clinics.site("home")):
        (place / "home").mkdir()
        (place / "home" / "config.toml").write_text("")
    own = clinics.site("north") / "data" / "home" / "rows.csv"
    own.parent.mkdir(parents=True)
    own.write_text("age\n")
    back_up(clinics, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "again")
    assert _contents(tmp_path / "again") == expected | {"sites/north/data/home/rows.csv": b"age\n"}
    assert "sites/home/node.key" in expected


def test_secrets_of_a_secure_round_are_not_backed_up(clinics: FederationFolder, tmp_path: Path) -> None:
    secrets = clinics.site("north") / ".secure" / "attempt.json"
    secrets.parent.mkdir()
    secrets.write_text("seed")
    assert not any(".secure" in name for name in back_up(clinics, tmp_path / "b.tar")["files"])


def test_a_copy_during_which_the_training_wrote_is_taken_again(
    clinics: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_SECONDS_BETWEEN", 0.0)
    file, original, writes = clinics.path / "run" / "status.json", backups._add, iter(range(2))
    file.parent.mkdir()

    def add(archive: tarfile.TarFile, path: Path, name: str) -> str:
        digest = original(archive, path, name)
        if name == "federation.toml" and (number := next(writes, None)) is not None:
            file.write_text(f"round {number}")
        return digest

    monkeypatch.setattr(backups, "_add", add)
    back_up(clinics, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "again")
    assert (tmp_path / "again" / "run" / "status.json").read_text() == "round 1"
    monkeypatch.setattr(backups, "_ATTEMPTS", 2)
    writes = iter(range(99))
    with pytest.raises(UserError, match="try again between rounds"):
        back_up(clinics, tmp_path / "c.tar")
    assert [path.name for path in tmp_path.glob("*c.tar*")] == []


def _member(name: str, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


def _link(archive: tarfile.TarFile) -> None:
    archive.addfile(_member("sites", type=tarfile.SYMTYPE, linkname="/etc"))


def _upwards(archive: tarfile.TarFile) -> None:
    archive.addfile(_member("../outside", size=1), io.BytesIO(b"x"))


def _absolute(archive: tarfile.TarFile) -> None:
    archive.addfile(_member("/outside", size=1), io.BytesIO(b"x"))


def _twice(archive: tarfile.TarFile) -> None:
    archive.addfile(_member("federation.toml", size=1), io.BytesIO(b"x"))


def _device(archive: tarfile.TarFile) -> None:
    archive.addfile(_member("null", type=tarfile.CHRTYPE))


@pytest.mark.parametrize("spoil", [_link, _upwards, _absolute, _twice, _device])
def test_a_file_that_leads_elsewhere_is_refused_and_nothing_is_written(
    clinics: FederationFolder, tmp_path: Path, spoil: Callable[[tarfile.TarFile], None]
) -> None:
    back_up(clinics, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar", "a") as archive:
        spoil(archive)
    before = set(tmp_path.iterdir())
    with pytest.raises(UserError, match="nothing was restored"):
        restore(tmp_path / "b.tar", tmp_path / "again")
    assert set(tmp_path.iterdir()) == before


def test_a_damaged_foreign_or_newer_file_is_told(clinics: FederationFolder, tmp_path: Path) -> None:
    back_up(clinics, tmp_path / "b.tar")
    content = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "flipped.tar").write_bytes(content.replace(b'name = "clinics"', b'name = "clinicz"'))
    with pytest.raises(UserError, match=r"federation\.toml do not fit their checksums"):
        restore(tmp_path / "flipped.tar", tmp_path / "again")
    (tmp_path / "text.tar").write_text("no tar file at all")
    with pytest.raises(UserError, match="no backup of a federation"):
        restore(tmp_path / "text.tar", tmp_path / "again")
    (tmp_path / "cut.tar").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError):
        restore(tmp_path / "cut.tar", tmp_path / "again")
    newer = json.dumps({"format": 99, "ffalm": "9.0", "files": {}}).encode()
    with tarfile.open(tmp_path / "newer.tar", "w") as archive:
        archive.addfile(_member(MANIFEST, size=len(newer)), io.BytesIO(newer))
    with pytest.raises(UserError, match=r"written by ffalm 9\.0, which is newer"):
        restore(tmp_path / "newer.tar", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_nothing_is_written_over(clinics: FederationFolder, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    with pytest.raises(UserError, match="in the folder that is backed up"):
        back_up(clinics, clinics.path / "b.tar")
    with pytest.raises(UserError, match="no folder"):
        back_up(clinics, tmp_path / "none" / "b.tar")
    back_up(clinics, file)
    with pytest.raises(UserError, match="never written over"):
        back_up(clinics, file)
    with pytest.raises(UserError, match="never written over"):
        restore(file, clinics.path)
    with pytest.raises(UserError, match="There is no backup"):
        restore(tmp_path / "none.tar", tmp_path / "again")

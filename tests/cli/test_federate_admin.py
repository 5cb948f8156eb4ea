"""`ffalm federate`: what administrators do, as commands; nothing runs."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.cli import run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "clinics"
    flags = ("--sites", "north,south,west", "--label", "paid", "--group", "sex")
    assert run(["federate", "init", str(path), *flags]) == 0
    return path


@pytest.fixture
def clinics(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "clinics"))


def test_sites_are_added_and_removed(cli: Cli, clinics: Path) -> None:
    code, out, said = cli("federate", "add-site", clinics, "east")
    assert code == 0, said
    assert "secure channel" in out and "is let in when the coordinator starts" in out
    code, out, said = cli("federate", "remove-site", clinics, "north")
    assert (code, said) == (0, "") and "Its key is refused when the coordinator starts" in out
    agreed = tomllib.loads((clinics / "federation.toml").read_text())
    assert (agreed["sites"], agreed["removed"]) == (["north", "south", "west", "east"], ["north"])
    cli("federate", "remove-site", clinics, "south")
    code, _, said = cli("federate", "remove-site", clinics, "west")
    assert code == 0 and "the rule min_sites asks for 1 more than there are" in said
    code, _, said = cli("federate", "run", clinics)
    assert code == 2 and "'min_sites' asks for 2 sites, but the federation has 1 (without north, south, west)" in said
    code, _, said = cli("federate", "add-site", clinics, "east")
    assert code == 2 and "rotate-key" in said


def test_keys_are_rotated_by_the_coordinator_and_by_a_site(cli: Cli, clinics: Path) -> None:
    own, key = clinics / "sites" / "north", (clinics / "sites" / "north" / "node.pub").read_text()
    assert cli("federate", "rotate-key", clinics, "north")[0] == 0
    assert (own / "node.pub").read_text() != key
    code, out, _ = cli("federate", "rotate-key", own)
    assert code == 0 and f"Send {own / 'node.pub'}" in out
    code, out, _ = cli("federate", "rotate-key", clinics, "--coordinator")
    assert code == 0 and "--authority" in out
    code, out, _ = cli("federate", "rotate-key", clinics, "--coordinator", "--authority")
    assert code == 0 and "ca.crt to every site" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name one site, or --coordinator"),
        (["north", "--coordinator"], "Name one site, or --coordinator"),
        (["north", "--authority"], "--authority goes with --coordinator"),
        (["nort"], "did you mean 'north'"),
        (["--coordinator", "--public-key", "x"], "name the site"),
        (["north", "--public-key", "nowhere.pub"], "There is no public key nowhere.pub"),
    ],
)
def test_a_key_that_cannot_be_rotated_is_told_in_a_sentence(
    cli: Cli, clinics: Path, arguments: list[str], words: str
) -> None:
    code, _, said = cli("federate", "rotate-key", clinics, *arguments)
    assert code == 2 and words in said and said.count("\n") == 1


def test_a_backup_is_restored_elsewhere(cli: Cli, clinics: Path, tmp_path: Path) -> None:
    code, out, said = cli("federate", "backup", clinics, tmp_path / "clinics.tar")
    assert code == 0 and "MB" in out and "private keys" in said
    shutil.rmtree(clinics)
    code, out, said = cli("federate", "restore", tmp_path / "clinics.tar", clinics)
    assert code == 0, said
    assert "the federation clinics as of" in out
    code, _, said = cli("federate", "restore", tmp_path / "clinics.tar", clinics)
    assert code == 2 and "never written over" in said
    code, out, _ = cli("federate", "upgrade", clinics)
    assert code == 0 and "Nothing to do" in out


def test_an_old_folder_is_upgraded_and_a_newer_one_starts_nothing(cli: Cli, clinics: Path) -> None:
    file = clinics / "coordinator" / "format.json"
    file.unlink()
    code, out, _ = cli("federate", "upgrade", clinics)
    assert code == 0 and "format 1 to 2" in out
    file.write_text('{"format": 99}')
    for command in ("upgrade", "run"):
        code, _, said = cli("federate", command, clinics)
        assert code == 2 and "has format 99" in said
    assert cli("federate", "stop", clinics)[0] == 0
    assert cli("federate", "upgrade", clinics / "sites" / "north")[1].startswith("Nothing to do")


def test_the_doctor_prints_a_line_for_each_check_and_its_exit_code_says_whether_one_failed(
    cli: Cli, clinics: Path
) -> None:
    code, out, _ = cli("federate", "doctor", clinics / "sites" / "north")
    assert code == 3
    assert any(line.startswith("fail  data file ") for line in out.splitlines())
    assert all(line[:4].strip() in ("ok", "warn", "fail") for line in out.splitlines())
    code, out, _ = cli("federate", "doctor", clinics / "sites" / "north", "--json")
    found = json.loads(out)
    assert code == 3 and found["ok"] is False
    assert {"name", "level", "message"} == set(found["checks"][0])
    code, _, said = cli("federate", "doctor", clinics / "nowhere")
    assert code == 2 and said.count("\n") == 1


def test_units_are_printed_for_each_role(cli: Cli, clinics: Path) -> None:
    code, out, said = cli("federate", "systemd", "coordinator", clinics, "--user", "ffalm")
    assert code == 0 and f"federate coordinator {clinics}" in out and "User=ffalm" in out
    assert "ffalm-clinics-coordinator.service" in said
    assert f"federate site {clinics}/sites/west" in cli("federate", "systemd", "site", clinics / "sites" / "west")[1]
    code, _, said = cli("federate", "systemd", "both", clinics)
    assert code == 2 and "coordinator, run, site" in said


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_nobody_else_may_write_to_a_new_federation_whatever_the_umask(cli: Cli, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        flags = ("--sites", "north,south", "--label", "paid", "--group", "sex")
        assert cli("federate", "init", tmp_path / "clinics", *flags)[0] == 0
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "clinics").rglob("*") if not path.is_symlink()}
    assert found and not [path for path, mode in found.items() if mode & (0o022 | umask)]

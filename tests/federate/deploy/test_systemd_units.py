"""Units that systemd takes, with few rights."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from ffalm.errors import UserError
from ffalm.federate.deploy.systemd_units import unit, unit_name


@pytest.mark.parametrize("role", ["coordinator", "run", "site"])
def test_a_unit_is_hardened_and_runs_the_command_of_its_role(role: str) -> None:
    text = unit(role, Path("/srv/clinics"), "clinics", "ffalm")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    service = parsed["Service"]
    assert service["ExecStart"].endswith(f"ffalm federate {role} /srv/clinics")
    assert (service["User"], service["WorkingDirectory"]) == ("ffalm", "/srv/clinics")
    assert (service["Restart"], service["NoNewPrivileges"]) == ("on-failure", "yes")
    assert (service["ProtectSystem"], service["ReadWritePaths"]) == ("strict", "/srv/clinics")
    assert int(service["LimitNOFILE"]) >= 4096
    assert ("ffalm-clinics-coordinator.service" in text) == (role == "run")


@pytest.mark.parametrize("path", ["/srv/a b", "/srv/%h", "/srv/a\nUser=root", '/srv/"'])
def test_what_a_unit_cannot_name_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="cannot name"):
        unit("site", Path(path), "x", "ffalm")
    with pytest.raises(UserError, match="coordinator, run, site"):
        unit("both", Path("/srv/clinics"), "x", "ffalm")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    roles = ("coordinator", "run", "site")
    files = [tmp_path / unit_name(role, "clinics") for role in roles]
    for role, file in zip(roles, files, strict=True):
        file.write_text(unit(role, tmp_path, "clinics", "root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, files)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "clinics" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr

"""Administrators' commands that are killed at any step, or find the disk full: the same command again does its work."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.errors import UserError
from ffalm.federate.deploy.backups import back_up, restore
from ffalm.federate.deploy.certificates import server_key_matches
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.federate.deploy.folder_format import upgrade
from ffalm.federate.deploy.membership import add_site, remove_site, rotate_server_key, rotate_site_key
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.keys import fingerprint, read_private

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")

STEPS = ("replace", "rename", "mkdir", "unlink", "fsync", "chmod", "rmdir")
"""Functions of `os` before and after which a command may end."""

Command = Callable[[FederationFolder], Any]

COMMANDS: dict[str, Command] = {
    "add-site": lambda folder: add_site(folder, "east"),
    "remove-site": lambda folder: remove_site(folder, "south"),
    "rotate-key": lambda folder: rotate_site_key(folder, "north"),
    "rotate-key --coordinator": rotate_server_key,
    "rotate-key --authority": lambda folder: rotate_server_key(folder, authority=True),
    "backup": lambda folder: back_up(folder, folder.path.parent / "backup.tar"),
    "restore": lambda folder: restore(folder.path.parent / "given.tar", folder.path.parent / "restored"),
    "upgrade": lambda folder: upgrade(folder.path),
}


def killed(command: Command, folder: FederationFolder, step: int, full: bool) -> bool:
    """Run a command in a process that ends at a step, or whose disk is full from then on; whether it came so far."""
    child = os.fork()
    if child == 0:
        left = itertools.count(step, -1)

        def ending(original: Callable[..., Any]) -> Callable[..., Any]:
            def stepped(*arguments: Any, **options: Any) -> Any:
                now = next(left)
                if now == 0 and not full:
                    os._exit(9)
                if now == 0:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # nothing can be written
                return original(*arguments, **options)

            return stepped

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for name in STEPS:
            setattr(os, name, ending(getattr(os, name)))
        try:
            command(folder)
        except (OSError, UserError):
            os._exit(9)
        except BaseException:
            os._exit(7)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def assert_sound(folder: FederationFolder) -> None:
    config = FederationConfig.read(folder.path / "federation.toml")
    assert server_key_matches(folder.coordinator)
    for name in config.active:
        own = folder.site(name)
        SiteConfig.read(own / "site.toml")
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = read_private(own / "node.key").public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        assert (own / "node.pub").read_bytes().startswith(public)
        assert (own / "ca.crt").read_bytes() == (folder.coordinator / "ca.crt").read_bytes()
        for other in config.active:
            if other != name:
                peer = folder.site(other) / "peers" / f"{name}.pub"
                assert fingerprint(peer) == fingerprint(own / "node.pub")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=() if name in ("rotate-key", "remove-site") else pytest.mark.slow) for name in COMMANDS],
)
def test_a_command_that_was_killed_at_any_step_does_its_work_the_second_time(
    clinics: FederationFolder, tmp_path: Path, command: str, full: bool
) -> None:
    settings = clinics.path / "federation.toml"
    settings.write_text(settings.read_text().replace("min_sites = 2", "min_sites = 1"))
    back_up(clinics, tmp_path / "given.tar")
    for step in itertools.count(0, 1 if command not in ("add-site", "restore") else 3):
        root = tmp_path / str(step)
        root.mkdir()
        shutil.copy(tmp_path / "given.tar", root)
        folder = FederationFolder(Path(shutil.copytree(clinics.path, root / "clinics")))
        if command == "upgrade":
            (folder.coordinator / "format.json").unlink()
        if not killed(COMMANDS[command], folder, step, full):
            break
        FederationConfig.read(folder.path / "federation.toml")
        done = {
            "add-site": folder.site("east") / "node.pub",
            "restore": root / "restored",
            "backup": root / "backup.tar",
        }
        with nullcontext() if command not in done or not done[command].exists() else suppress(UserError):
            COMMANDS[command](folder)
        assert command != "add-site" or "east" in folder.sites
        assert_sound(folder)
        if command == "restore":
            assert_sound(FederationFolder(root / "restored"))
        shutil.rmtree(root)
    assert step > 0

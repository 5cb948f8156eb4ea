"""Checks of the machine on which a coordinator or a site is to run: versions, disk, file limit, proxies."""

from __future__ import annotations

import resource
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from ffalm.federate.peer_versions import read_versions

Level = Literal["ok", "warn", "fail"]

_LITTLE_DISK, _NO_DISK = 2**30, 100 * 2**20
_FEW_FILES = 4096
_PACKAGES = ("ffalm", "flwr", "torch")


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what to do where it is not well."""

    name: str
    level: Level
    message: str


def versions(others: Path) -> Iterator[Check]:
    """What is installed here, and what the other side said that it has (`versions.json` in a folder)."""
    yield Check("python", "ok", ".".join(map(str, sys.version_info[:3])))
    for package in _PACKAGES:
        try:
            yield Check(package, "ok", version(package))
        except PackageNotFoundError:
            yield Check(package, "fail", "not installed: pip install 'ffalm[flower]'")
    import ffalm

    for name, told in read_versions(others).items():
        if told == ffalm.__version__:
            yield Check(f"ffalm at {name}", "ok", told)
        else:
            yield Check(f"ffalm at {name}", "warn", f"{told}, here {ffalm.__version__}: install the same everywhere")


def disk(folder: Path) -> Check:
    """Whether there is room for checkpoints and logs."""
    free = shutil.disk_usage(folder).free
    told = f"{free / 2**30:.1f} GB free at {folder}"
    if free < _NO_DISK:
        return Check("disk", "fail", f"{told}: make room, at least 1 GB")
    return Check("disk", "warn", f"{told}: make room") if free < _LITTLE_DISK else Check("disk", "ok", told)


def file_limit() -> Check:
    """Whether enough connections may be open at once."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= _FEW_FILES:
        return Check("file limit", "ok", "unlimited" if most == resource.RLIM_INFINITY else str(most))
    return Check(
        "file limit", "warn", f"{most} open files: raise it (LimitNOFILE= in systemd, ulimit -n) to {_FEW_FILES}"
    )


def proxy(host: str) -> Check:
    """Whether a proxy of the environment stands between this machine and the coordinator."""
    found = urllib.request.getproxies()
    named = [f"{scheme}_proxy" for scheme in ("https", "all") if found.get(scheme)]
    if not named:
        return Check("proxy", "ok", "none for HTTPS in the environment")
    if urllib.request.proxy_bypass(host):
        return Check("proxy", "ok", f"{', '.join(named)} is set, and no_proxy leaves {host} out")
    return Check(
        "proxy", "warn", f"{', '.join(named)} is set: connections to {host} go through it; add {host} to no_proxy if "
        "it does not let TLS through unread"
    )  # fmt: skip


def readable(path: Path, what: str) -> Check:
    """Whether this user can read a file or folder."""
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with open(path, "rb") as file:
                file.read(1)
    except OSError as error:
        return Check(
            what, "fail", f"{path}: {error.strerror}: check the path, and the rights of the user who runs this"
        )
    return Check(what, "ok", str(path))


def private(path: Path) -> Check:
    """Whether a secret is closed to other users."""
    name = f"permissions of {path.name}"
    if not path.exists():
        return Check(name, "fail", f"there is no {path}: restore it")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Check(name, "fail", f"{path} has mode {mode:04o}: chmod {'700' if path.is_dir() else '600'} it")
    return Check(name, "ok", f"{mode:04o}")

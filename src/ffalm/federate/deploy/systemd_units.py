"""systemd units for a coordinator, its training and a site, with no rights that they do not need: the template
`systemd_units.service`, filled in."""

from __future__ import annotations

import sys
from pathlib import Path

from ffalm.errors import look_up, require

#: What a unit may be of, and what its description calls it.
ROLES = {"coordinator": "coordinator", "run": "training", "site": "site"}


def unit_name(role: str, name: str) -> str:
    """The file to save a unit as, in /etc/systemd/system."""
    return f"ffalm-{name}-{role}.service"


def unit(role: str, folder: Path, name: str, user: str) -> str:
    """A hardened unit that restarts its process where it fails; the folder is all that it may write to."""
    does = look_up("systemd unit", role, ROLES)
    for text in (str(folder), user):
        require(
            bool(text) and text.isprintable() and not set(text) & set("\"'\\%$") and " " not in text,
            f"A systemd unit cannot name {text!r}: use letters, digits, '/', '.', '-' and '_'.",
        )
    command = f"{Path(sys.executable).parent / 'ffalm'} federate {role} {folder}"
    needs = unit_name("coordinator", name) if role == "run" else "network-online.target"
    binds = f"Requires={needs}" if role == "run" else f"Wants={needs}"
    template = Path(__file__).with_suffix(".service").read_text(encoding="utf-8")
    return template.format(
        does=does,
        name=name,
        binds=binds,
        needs=needs,
        user=user,
        folder=folder,
        command=command,
        private_devices="no" if role == "site" else "yes",
    )

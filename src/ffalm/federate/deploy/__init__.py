"""Running a federation on real machines: folders, keys, certificates, Flower's processes and their status."""

from __future__ import annotations

from ffalm.quiet import require_installed


def require_flower() -> None:
    """Refuse to go on without the extra 'flower'."""
    require_installed("`ffalm federate`", "cryptography", "psutil")
